"""Hostile archives for tests, each with a description of what is wrong with it.

`every()` yields them all: each tar as it is, compressed, inside another tar, inside a compressed tar that is
inside a tar, and some inside a zip; then the zips, and what only compression can do.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import stat
import struct
import tarfile
import zipfile
from collections.abc import Iterator
from typing import NamedTuple

from support.archives import tar_of, zip_of

BLOCK = 512
#: A tar in a zip is read like one in a compressed tar, so a few cases suffice.
IN_ZIPS_TOO = (
    "kind b'2'",
    "the name b'../evil'",
    "a file twice",
    "a wrong checksum",
    "no end",
    "half a member",
)
GOOD = {"good.txt": b"good", "folder/more.txt": b"more"}


class Hostile(NamedTuple):
    what: str
    archive: bytes
    #: A part of the expected error message.
    message: str


def header(
    name: bytes = b"evil",
    size: int | bytes = 0,
    kind: bytes = b"0",
    link: bytes = b"",
    magic: bytes = b"ustar\x0000",
    prefix: bytes = b"",
    mode: bytes = b"0000644\0",
) -> bytes:
    field = b"%011o\0" % size if isinstance(size, int) else size
    block = bytearray(
        struct.pack(
            "100s8s8s8s12s12s8ss100s8s32s32s8s8s155s12x",
            name,
            mode,
            b"0000000\0",
            b"0000000\0",
            field,
            b"00000000000\0",
            b"        ",
            kind,
            link,
            magic,
            b"",
            b"",
            b"",
            b"",
            prefix,
        )
    )
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % BLOCK)


def member(name: bytes, content: bytes = b"evil", kind: bytes = b"0") -> bytes:
    return header(name, len(content), kind) + padded(content)


def pax(records: dict[bytes, bytes], kind: bytes = b"x") -> bytes:
    content = b""
    for key, value in records.items():
        body = b" " + key + b"=" + value + b"\n"
        length = len(body) + len(str(len(body) + len(str(len(body)))))
        content += str(length).encode() + body
    return member(b"pax", content, kind)


def closed(*parts: bytes) -> bytes:
    """Return a tar with a good member, then these parts, then the end mark."""
    good = tar_of({"before.txt": b"before"}, tarfile.USTAR_FORMAT)[: 2 * BLOCK]
    return good + b"".join(parts) + bytes(2 * BLOCK)


def tars() -> Iterator[Hostile]:
    # Types that are neither file nor directory.
    for kind, message in {
        b"1": "hard link",
        b"2": "symbolic link",
        b"3": "device",
        b"4": "device",
        b"6": "pipe",
        b"S": "sparse",
        b"D": "unknown type",
        b"M": "unknown type",
        b"N": "unknown type",
        b"A": "unknown type",
        b"I": "unknown type",
        b"\xff": "unknown type",
    }.items():
        yield Hostile("kind %r" % kind, closed(header(b"evil", 0, kind, link=b"../../etc/passwd")), message)
    yield Hostile("the label of a tape", closed(header(b"evil", 0, b"V")), "label")
    yield Hostile(
        "a link to the outside and a file through it",
        closed(header(b"out", 0, b"2", link=b"/tmp"), member(b"out/evil")),
        "symbolic link",
    )
    yield Hostile(
        "a link with a long name", closed(member(b"L", b"/tmp\0", b"K"), header(b"l", 0, b"2")), "link"
    )
    # Names.
    for name, message in {
        b"../evil": "upwards",
        b"..": "upwards",
        b"folder/../../evil": "upwards",
        b"folder/..": "upwards",
        b"./../evil": "upwards",
        b"/evil": "absolute",
        b"//evil": "absolute",
        b"/": "absolute",
        b"/tmp/olc-evil": "absolute",
        b"..\\evil": "backslash",
        b"C:\\evil": "backslash",
        b"folder\\evil": "backslash",
        b"e\nvil": "control",
        b"\x1b[2Jevil": "control",
        b"evil\x7f": "control",
        b"e\tvil/x": "control",
        b"": "name of a directory",
        b".": "name of a directory",
        b"./": "name of a directory",
        b"evil/": "name of a directory",
    }.items():
        yield Hostile("the name %r" % name, closed(member(name)), message)
        if name:
            yield Hostile("the pax name %r" % name, closed(pax({b"path": name}), member(b"evil")), message)
            yield Hostile(
                "the GNU name %r" % name, closed(member(b"L", name + b"\0", b"L"), member(b"evil")), message
            )
    yield Hostile("a directory upwards", closed(header(b"../evil/", 0, b"5")), "upwards")
    yield Hostile("a prefix upwards", closed(header(b"evil", 0, prefix=b"..")), "upwards")
    yield Hostile("an absolute prefix", closed(header(b"evil", 0, prefix=b"/tmp")), "absolute")
    yield Hostile(
        "a pax name with a NUL", closed(pax({b"path": b"good\0/../evil"}), member(b"e")), "zero byte"
    )
    yield Hostile("a name of 256 bytes", closed(pax({b"path": b"a" * 256}), member(b"e")), "256 bytes")
    yield Hostile("a path of 8,000 bytes", closed(pax({b"path": b"abcdefg/" * 1000}), member(b"e")), "limits")
    yield Hostile("a path of 1,000 parts", closed(pax({b"path": b"a/" * 999 + b"a"}), member(b"e")), "limits")
    # The same name again.
    yield Hostile("a file twice", closed(member(b"evil"), member(b"evil", b"other")), "more than once")
    yield Hostile("a file twice, the same", closed(member(b"evil"), member(b"evil")), "more than once")
    yield Hostile("a file twice by another name", closed(member(b"a/e"), member(b"./a//e")), "more than once")
    yield Hostile(
        "a file, then a directory", closed(member(b"evil"), header(b"evil/", 0, b"5")), "as a file and"
    )
    yield Hostile("a file, then a file in it", closed(member(b"evil"), member(b"evil/x")), "as a file and")
    yield Hostile(
        "a directory, then a file", closed(header(b"evil/", 0, b"5"), member(b"evil")), "more than once"
    )
    # Sizes.
    for what, size, message in (
        ("negative, in base 256", b"\xff" * 12, "negative"),
        ("of exabytes, in base 256", b"\x80" + b"\0" * 3 + b"\x7f" * 8, "bytes"),
        ("beyond 64 bits", b"\x80" + b"\xff" * 11, "negative or absurdly large"),
        ("of 8 GiB that are not there", b"77777777777\0", "truncated"),
        ("with a sign", b"-0000000001\0", "octal"),
        ("with an underscore", b"0000_000001\0", "octal"),
        ("with a nine", b"00000000009\0", "octal"),
        ("that is a word", b"evil\0\0\0\0\0\0\0\0", "octal"),
    ):
        yield Hostile("a size %s" % what, closed(header(b"evil", size), padded(b"x")), message)
    for what, value, message in (
        ("negative", b"-1", "number"),
        ("huge", b"9" * 18, "bytes"),
        ("endless", b"9" * 400, "number"),
        ("a word", b"evil", "number"),
        ("a float", b"1e3", "number"),
    ):
        yield Hostile("a pax size that is %s" % what, closed(pax({b"size": value}), member(b"evil")), message)
    yield Hostile(
        "a pax size that hides a member", closed(pax({b"size": b"2048"}), member(b"e")), "truncated"
    )
    yield Hostile("a directory with content", closed(header(b"evil/", 512, b"5"), padded(b"x")), "content")
    yield Hostile("a link with content", closed(header(b"evil", 512, b"2"), padded(b"x")), "content")
    # Sparse files, in the three forms of pax.
    for what, records in (
        ("0.0", {b"GNU.sparse.size": b"1000000000000", b"GNU.sparse.numblocks": b"0"}),
        ("0.1", {b"GNU.sparse.map": b"0,512", b"GNU.sparse.size": b"1000000000000"}),
        ("1.0", {b"GNU.sparse.major": b"1", b"GNU.sparse.minor": b"0", b"GNU.sparse.realsize": b"9" * 12}),
        ("name only", {b"GNU.sparse.name": b"../evil"}),
    ):
        yield Hostile("sparse, pax %s" % what, closed(pax(records), member(b"evil")), "sparse")
    yield Hostile("sparse for all", closed(pax({b"GNU.sparse.major": b"1"}, b"g"), member(b"e")), "sparse")
    # Extensions.
    yield Hostile("a long name of a gigabyte", closed(header(b"L", 1 << 30, b"L")), "claims")
    yield Hostile("a pax header of a gigabyte", closed(header(b"x", 1 << 30, b"x")), "claims")
    yield Hostile("a global header of 8 GiB", closed(header(b"g", b"77777777777\0", b"g")), "claims")
    yield Hostile("a name without a member", closed(pax({b"path": b"evil"})), "no member follows")
    yield Hostile("a long name without a member", closed(member(b"L", b"evil\0", b"L")), "no member follows")
    for what, content in (
        ("too long", b"99 path=evil\n"),
        ("zero", b"0 path=evil\n"),
        ("negative", b"-5 path=evil\n"),
        ("missing", b"path=evil\n"),
        ("endless", b"9" * 30 + b" path=evil\n"),
    ):
        evil = closed(member(b"x", content, b"x"), member(b"e"))
        yield Hostile("a pax record whose length is %s" % what, evil, "pax header")
    yield Hostile(
        "a pax record without value", closed(member(b"x", b"8 path\n\n", b"x"), member(b"e")), "pax"
    )
    yield Hostile(
        "one name for all",
        closed(pax({b"path": b"evil"}, b"g"), member(b"a"), member(b"b")),
        "more than once",
    )
    # Structure.
    wrong = bytearray(member(b"evil"))
    wrong[0] ^= 1
    yield Hostile("a wrong checksum", closed(bytes(wrong)), "checksum")
    yield Hostile("garbage between members", closed(b"\xa5" * BLOCK), "checksum")
    yield Hostile("a member after the end", closed(bytes(BLOCK), member(b"evil")), "end mark")
    yield Hostile("another archive after the end", closed() + tar_of(GOOD), "end mark")
    yield Hostile("garbage after the end", closed() + b"evil", "end mark")
    yield Hostile("no end", closed(member(b"evil"))[: -2 * BLOCK], "truncated")
    yield Hostile("half a member", closed(member(b"evil"))[: -3 * BLOCK + 2], "truncated")
    yield Hostile("half a header", closed(member(b"evil"))[: -4 * BLOCK + 100], "truncated")


def nested_tars() -> Iterator[Hostile]:
    """Yield cases that need a tar in a tar."""
    whole = closed(member(b"inner"))
    for what, inner in (
        ("without its end", whole[: -2 * BLOCK]),
        ("truncated in a file", whole[: -3 * BLOCK]),
        ("truncated in a header", whole[: 2 * BLOCK + 100]),
        ("that claims more than it has", closed(header(b"evil", 1 << 20))),
        ("that claims the rest of the outer one", closed(header(b"evil", 4 * BLOCK))),
        ("with a long name that is not there", closed(header(b"L", 4096, b"L"))),
    ):
        message = "truncated" if "name" in what else "in.tar is truncated"
        yield Hostile("a tar in a tar %s" % what, tar_of({"in.tar": inner, "after.txt": b"x"}), message)
    yield Hostile("a tar and a file in its place", tar_of({"in": b"x", "in.tar": whole}), "as a file and")
    yield Hostile("two tars with one name", tar_of({"in.tar": whole, "in.TAR": whole}), "more than once")
    yield Hostile(
        "a tar.gz and a directory of its name",
        tar_of({"in.tar.gz": gzip.compress(whole), "in/x": b"x"}),
        "already",
    )
    yield Hostile(
        "a tar.gz and a zip with one name",
        tar_of({"in.tgz": gzip.compress(whole), "in.zip": zip_of(GOOD)}),
        "already",
    )
    deep = whole
    for _ in range(6):
        deep = tar_of({"deep.tar": deep})
    yield Hostile("seven tars inside one another", deep, "limit")
    deep = whole
    for _ in range(6):
        deep = tar_of({"deep.tar.gz": gzip.compress(deep)})
    yield Hostile("seven tar.gz inside one another", deep, "limit")


def zips() -> Iterator[Hostile]:
    for name, message in {
        "../evil": "upwards",
        "/evil": "absolute",
        "..\\evil": "backslash",
        "a/../../evil": "upwards",
        "e\x1bvil": "control",
        "a" * 300: "300 bytes",
        "a/" * 200 + "a": "limits",
    }.items():
        yield Hostile("a zip with %r" % name[:20], zip_of({"good": b"good", name: b"evil"}), message)
    yield Hostile("a zip with a NUL", zip_of({"good_x": b"g"}).replace(b"good_x", b"good\0x"), "control")
    for what, mode in (("link", stat.S_IFLNK), ("pipe", stat.S_IFIFO), ("device", stat.S_IFBLK)):
        info = zipfile.ZipInfo("evil")
        info.external_attr = (mode | 0o777) << 16
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr(info, "/etc/passwd")
        yield Hostile("a zip with a %s" % what, buffer.getvalue(), "link, a device")
    yield Hostile(
        "a zip with a file and a directory", zip_of({"evil": b"x", "evil/x": b"x"}), "as a file and"
    )
    good = zip_of({"good": b"good" * 100})
    for missing in (1, 20, len(good) // 2):
        yield Hostile("a zip that lacks %d bytes" % missing, good[:-missing], "zip is broken")
    encrypted = bytearray(good)
    encrypted[6] |= 1
    encrypted[encrypted.rindex(b"PK\1\2") + 8] |= 1
    yield Hostile("an encrypted zip", bytes(encrypted), "encrypted")
    damaged = bytearray(good)
    damaged[40] ^= 0xFF
    yield Hostile("a zip with damaged content", bytes(damaged), "zip is broken")
    yield Hostile("a zip whose members share bytes", overlapping_zip(), "overlaps something else")
    unknown = bytearray(good)
    unknown[8] = unknown[unknown.rindex(b"PK\1\2") + 10] = 99
    yield Hostile("a zip with unknown compression", bytes(unknown), "does not support")
    twice = zip_of({"evil": b"one", "live": b"two"}).replace(b"live", b"evil")
    yield Hostile("a zip with a file twice", twice, "more than once")
    deep = good
    for _ in range(6):
        deep = zip_of({"deep.zip": deep})
    yield Hostile("seven zips inside one another", deep, "limit")


def overlapping_zip() -> bytes:
    """Return a zip with two entries in its table of contents for the same member."""
    good = bytearray(zip_of({"a": bytes(1000)}))
    start = good.rindex(b"PK\1\2")
    end = good.rindex(b"PK\5\6")
    entry = bytes(good[start:end])
    tail = bytearray(good[end:])
    tail[8:12] = struct.pack("<HH", 2, 2)
    tail[12:16] = struct.pack("<I", 2 * len(entry))
    return bytes(good[:start]) + entry + entry.replace(b"a", b"b") + bytes(tail)


def compressed() -> Iterator[Hostile]:
    whole = closed(member(b"evil", bytes(range(256)) * 40))
    for name, compress in (("gzip", gzip.compress), ("bzip2", bz2.compress), ("xz", lzma.compress)):
        packed = compress(whole)
        yield Hostile("%s that is truncated" % name, packed[:-9], "truncated")
        yield Hostile("%s that is truncated early" % name, packed[: len(packed) // 2], "truncated")
        damaged = bytearray(packed)
        damaged[len(packed) // 2] ^= 0xFF
        yield Hostile("%s that is damaged" % name, bytes(damaged), "")
        yield Hostile("%s with garbage after it" % name, packed + b"evil evil evil", "compression is broken")
        yield Hostile("%s of a truncated tar" % name, compress(whole[:-1200]), "truncated")
        bomb = compress(closed(header(b"bomb", 64 << 20)) + bytes(8 << 20))
        yield Hostile("%s that is a bomb" % name, bomb, "fill the disk")


def every() -> Iterator[Hostile]:
    for case in tars():
        yield case
        yield case._replace(what="gzip: " + case.what, archive=gzip.compress(case.archive, 1))
        yield case._replace(what="in a tar: " + case.what, archive=tar_of({"a/in.tar": case.archive}))
        yield case._replace(
            what="in a tar.xz in a tar: " + case.what,
            archive=tar_of({**GOOD, "in.tar.xz": lzma.compress(case.archive, preset=0)}),
        )
        if case.what in IN_ZIPS_TOO:
            yield case._replace(what="in a zip: " + case.what, archive=zip_of({"in.tar": case.archive}))
    yield from nested_tars()
    for case in (*zips(), *compressed()):
        yield case
        suffix = ".zip" if "zip" in case.what and case.archive[:2] == b"PK" else ".tgz"
        yield case._replace(what="in a tar: " + case.what, archive=tar_of({"in" + suffix: case.archive}))

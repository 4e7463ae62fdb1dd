"""Tar headers are read in every format that the standard library writes, and refused if they are invalid."""

from __future__ import annotations

import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.node.archives import tar_headers
from outlast.node.archives.sink import BadArchive
from outlast.node.archives.tar_headers import Extensions, Header, parse
from support.archives import header, padded, patch_header

FORMS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
NAMES = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=300).map(
    lambda text: text.strip("/") or "x"
)


def read(content: bytes) -> Header:
    """Return the header of the first member, with its extensions applied."""
    extensions = Extensions()
    offset = 0
    while True:
        found = extensions.apply(parse(content[offset : offset + 512]))
        offset += 512
        if found.kind not in tar_headers.EXTENSIONS:
            return found
        extensions.add(found.kind, content[offset : offset + found.size])
        offset += tar_headers.padded(found.size)


@settings(max_examples=200, deadline=None)
@given(
    name=NAMES,
    size=st.integers(0, 1 << 40),
    modified=st.integers(0, 1 << 33),
    mode=st.integers(0, 0o7777),
    form=st.sampled_from(FORMS[1:]),
)
def test_every_header_of_the_standard_library_is_read_back(
    name: str, size: int, modified: int, mode: int, form: int
) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = size, modified, mode
    found = read(info.tobuf(form))
    assert (found.name, found.size, found.mode) == (name.encode(), size, mode)
    if form == tarfile.GNU_FORMAT or modified < 8**11:  # else the time is in a pax record, which is not read
        assert found.modified == modified


@pytest.mark.parametrize("form", FORMS)
def test_a_name_in_two_parts_is_joined_in_the_posix_format_only(form: int) -> None:
    name = "a" * 90 + "/" + "b" * 90
    assert read(tarfile.TarInfo(name).tobuf(form)).name == name.encode()
    # GNU tar has times where POSIX has the prefix.
    gnu = patch_header(header("name"), 345, b"12345670123")
    assert parse(gnu).name == b"name"


def test_without_a_type_flag_a_trailing_slash_means_a_directory() -> None:
    assert parse(patch_header(header("folder/"), 156, b"\0")).kind == tar_headers.DIRECTORY
    assert parse(patch_header(header("file"), 156, b"\0")).kind == b"\0"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (b"00000000012\0", 10),
        (b"         12\0", 10),
        (b"12 \0\0\0\0\0\0\0\0\0", 10),
        (b"\0" * 12, 0),
        (b"\x80" + bytes(9) + b"\1\0", 256),
    ],
)
def test_numbers_are_read_in_every_notation_that_programs_write(field: bytes, value: int) -> None:
    assert parse(patch_header(header("x"), 124, field)).size == value


@pytest.mark.parametrize(
    "field",
    [
        b"-0000000012\0",
        b"+0000000012\0",
        b"0o000000012\0",
        b"0_0_0_00012\0",
        b"00000000018\0",
        b"1\x002345678901",
        b"\xff" * 12,
        b"\x80\xff" + bytes(10),
        b"\x81" + bytes(11),
        b"0x10\0\0\0\0\0\0\0\0",
    ],
)
def test_a_size_that_programs_would_read_differently_is_refused(field: bytes) -> None:
    with pytest.raises(BadArchive, match="number"):
        parse(patch_header(header("x"), 124, field))


@settings(max_examples=300, deadline=None)
@given(offset=st.integers(0, 511), change=st.integers(1, 255))
def test_a_header_with_one_changed_byte_is_refused(offset: int, change: int) -> None:
    block = bytearray(header("some/name.jpg", 12345))
    block[offset] ^= change
    if 148 <= offset < 156:
        # The checksum itself has several valid notations: a space for a zero byte, or a leading zero.
        return
    with pytest.raises(BadArchive, match="checksum"):
        parse(bytes(block))


def test_a_checksum_of_signed_bytes_is_accepted() -> None:
    block = bytearray(header("größe"))
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(byte - 256 if byte > 127 else byte for byte in block)
    assert parse(bytes(block)).name == "größe".encode()


@pytest.mark.parametrize("kind", [b"1", b"2", b"3", b"4", b"5", b"6", b"V"])
def test_a_member_that_is_not_a_file_must_have_no_content(kind: bytes) -> None:
    assert not tar_headers.has_content(parse(header("x", 0, kind)))
    with pytest.raises(BadArchive, match="claims 512 bytes"):
        tar_headers.has_content(parse(header("x", 512, kind)))


@pytest.mark.parametrize(
    ("kind", "message"), [(b"S", "sparse"), (b"M", "unknown type"), (b"Z", "unknown type")]
)
def test_unsupported_types_are_refused(kind: bytes, message: str) -> None:
    with pytest.raises(BadArchive, match=message):
        tar_headers.has_content(parse(header("x", 512, kind)))


def pax(*records: bytes, kind: bytes = b"x") -> Extensions:
    extensions = Extensions()
    extensions.add(kind, b"".join(records))
    return extensions


def test_an_extension_applies_to_one_member_and_a_global_one_to_all() -> None:
    extensions = pax(b"9 path=a\n", b"10 size=7\n")
    assert extensions.apply(parse(header("short", 3)))[:3] == (b"a", 0o644, 7)
    assert extensions.apply(parse(header("short", 3)))[:3] == (b"short", 0o644, 3)
    extensions = pax(b"10 size=7\n", kind=b"g")
    assert [extensions.apply(parse(header("x"))).size for _ in range(2)] == [7, 7]
    extensions.add(b"x", b"10 size=8\n")
    assert extensions.pending
    assert [extensions.apply(parse(header("x"))).size for _ in range(2)] == [8, 7]
    assert not extensions.pending


def test_a_pax_name_takes_precedence_over_a_gnu_name() -> None:
    extensions = pax(b"9 path=a\n")
    extensions.add(b"L", b"b\0")
    extensions.add(b"K", b"c\0")
    found = extensions.apply(parse(header("x")))
    assert (found.name, found.link) == (b"a", b"c")


@pytest.mark.parametrize(
    "content",
    [
        b"x",
        b"9 path=a",
        b"99 path=a\n",
        b"0 path=a\n",
        b"-9 path=a\n",
        b"9 path a\n",
        b" 9 path=a\n",
        b"3 \n",
        b"10 size=x\n",
        b"11 size=-1\n",
        b"2\n",
        b"1" * 40,
        b"12 path=a\0b\n",
        b"22 GNU.sparse.major=1\n",
    ],
)
def test_invalid_and_unsupported_pax_records_are_refused(content: bytes) -> None:
    with pytest.raises(BadArchive):
        pax(content).apply(parse(header("x")))


@settings(max_examples=300, deadline=None)
@given(content=st.binary(max_size=200), records=st.binary(max_size=60))
def test_no_bytes_raise_anything_but_bad_archive(content: bytes, records: bytes) -> None:
    block = padded(content[:500] or b"x")[:512]
    for candidate in (block, patch_header(block, 0, b"")):
        try:
            tar_headers.has_content(pax(records).apply(parse(candidate)))
        except BadArchive:
            continue


def test_control_characters_in_a_printed_name_are_escaped() -> None:
    assert tar_headers.printable(b"a\x1b[2Jb\n\xff") == "a\\x1b[2Jb\\n\\xff"
    assert len(tar_headers.printable(b"x" * 5000)) <= 200


def test_only_the_known_records_of_global_headers_are_kept() -> None:
    extensions = Extensions()
    for number in range(100):
        extensions.add(b"g", b"".join(record(b"k%d-%d" % (number, key), b"v") for key in range(100)))
    extensions.add(b"g", record(b"path", b"named"))
    found = extensions.apply(parse(header("name")))
    assert found.name == b"named"
    assert len(extensions._global) == 1


def test_sparse_records_in_any_number_of_global_headers_are_refused() -> None:
    extensions = Extensions()
    for number in range(100):
        extensions.add(b"g", record(b"GNU.sparse.%d" % number, b"1"))
    assert len(extensions._global) == 1
    with pytest.raises(BadArchive, match="sparse"):
        extensions.apply(parse(header("name")))


def record(key: bytes, value: bytes) -> bytes:
    """Return one record of a pax header."""
    length = len(key) + len(value) + 3
    while len(str(length)) + len(key) + len(value) + 3 != length:
        length = len(str(length)) + len(key) + len(value) + 3
    return b"%d %s=%s\n" % (length, key, value)

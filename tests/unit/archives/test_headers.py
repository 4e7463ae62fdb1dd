"""Headers of tars: read as the standard library writes them, in all of its forms, and refused if they lie."""

from __future__ import annotations

import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.node.archives import tar_headers
from outlast.node.archives.sink import BadArchive
from outlast.node.archives.tar_headers import Extensions, Header, parse
from support.archives import header, padded, rehead

FORMS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
NAMES = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=300).map(
    lambda text: text.strip("/") or "x"
)


def read(content: bytes) -> Header:
    """The first member's header, with the extensions ahead of it."""
    extensions = Extensions()
    place = 0
    while True:
        found = extensions.apply(parse(content[place : place + 512]))
        place += 512
        if found.kind not in tar_headers.EXTENSIONS:
            return found
        extensions.add(found.kind, content[place : place + found.size])
        place += tar_headers.padded(found.size)


@settings(max_examples=200, deadline=None)
@given(
    name=NAMES,
    size=st.integers(0, 1 << 40),
    modified=st.integers(0, 1 << 33),
    mode=st.integers(0, 0o7777),
    form=st.sampled_from(FORMS[1:]),
)
def test_whatever_the_standard_library_writes_is_read_back(
    name: str, size: int, modified: int, mode: int, form: int
) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = size, modified, mode
    found = read(info.tobuf(form))
    assert (found.name, found.size, found.mode) == (name.encode(), size, mode)
    if form == tarfile.GNU_FORMAT or modified < 8**11:  # else it is in a pax record that is not asked for
        assert found.modified == modified


@pytest.mark.parametrize("form", FORMS)
def test_a_name_in_two_parts_is_put_together_in_the_posix_form_only(form: int) -> None:
    name = "a" * 90 + "/" + "b" * 90
    assert read(tarfile.TarInfo(name).tobuf(form)).name == name.encode()
    # GNU tar has times where POSIX has the prefix.
    gnu = rehead(header("name"), 345, b"12345670123")
    assert parse(gnu).name == b"name"


def test_before_there_were_kinds_a_slash_made_a_directory() -> None:
    assert parse(rehead(header("folder/"), 156, b"\0")).kind == tar_headers.DIRECTORY
    assert parse(rehead(header("file"), 156, b"\0")).kind == b"\0"


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
def test_numbers_are_read_in_the_ways_that_programs_write_them(field: bytes, value: int) -> None:
    assert parse(rehead(header("x"), 124, field)).size == value


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
        parse(rehead(header("x"), 124, field))


@settings(max_examples=300, deadline=None)
@given(place=st.integers(0, 511), change=st.integers(1, 255))
def test_a_header_with_one_byte_changed_is_none(place: int, change: int) -> None:
    block = bytearray(header("some/name.jpg", 12345))
    block[place] ^= change
    if 148 <= place < 156:
        # The checksum itself may be written in several ways: with a space for a zero, or a zero in front.
        return
    with pytest.raises(BadArchive, match="checksum"):
        parse(bytes(block))


def test_a_checksum_of_signed_bytes_is_one_too() -> None:
    block = bytearray(header("größe"))
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(byte - 256 if byte > 127 else byte for byte in block)
    assert parse(bytes(block)).name == "größe".encode()


@pytest.mark.parametrize("kind", [b"1", b"2", b"3", b"4", b"5", b"6", b"V"])
def test_what_is_no_file_has_no_content_or_is_refused(kind: bytes) -> None:
    assert not tar_headers.has_content(parse(header("x", 0, kind)))
    with pytest.raises(BadArchive, match="claims 512 bytes"):
        tar_headers.has_content(parse(header("x", 512, kind)))


@pytest.mark.parametrize(("kind", "words"), [(b"S", "sparse"), (b"M", "not known"), (b"Z", "not known")])
def test_kinds_that_cannot_be_read_right_are_refused(kind: bytes, words: str) -> None:
    with pytest.raises(BadArchive, match=words):
        tar_headers.has_content(parse(header("x", 512, kind)))


def pax(*records: bytes, kind: bytes = b"x") -> Extensions:
    extensions = Extensions()
    extensions.add(kind, b"".join(records))
    return extensions


def test_an_extension_holds_for_one_member_and_a_global_one_for_all() -> None:
    extensions = pax(b"9 path=a\n", b"10 size=7\n")
    assert extensions.apply(parse(header("short", 3)))[:3] == (b"a", 0o644, 7)
    assert extensions.apply(parse(header("short", 3)))[:3] == (b"short", 0o644, 3)
    extensions = pax(b"10 size=7\n", kind=b"g")
    assert [extensions.apply(parse(header("x"))).size for _ in range(2)] == [7, 7]
    extensions.add(b"x", b"10 size=8\n")
    assert extensions.pending
    assert [extensions.apply(parse(header("x"))).size for _ in range(2)] == [8, 7]
    assert not extensions.pending


def test_a_pax_name_counts_more_than_a_gnu_one() -> None:
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
def test_pax_records_that_are_none_or_cannot_be_served_are_refused(content: bytes) -> None:
    with pytest.raises(BadArchive):
        pax(content).apply(parse(header("x")))


@settings(max_examples=300, deadline=None)
@given(content=st.binary(max_size=200), records=st.binary(max_size=60))
def test_no_bytes_lead_to_another_error(content: bytes, records: bytes) -> None:
    block = padded(content[:500] or b"x")[:512]
    for candidate in (block, rehead(block, 0, b"")):
        try:
            tar_headers.has_content(pax(records).apply(parse(candidate)))
        except BadArchive:
            continue


def test_a_name_is_shown_so_that_a_terminal_takes_no_harm() -> None:
    assert tar_headers.shown(b"a\x1b[2Jb\n\xff") == "a\\x1b[2Jb\\n\\xff"
    assert len(tar_headers.shown(b"x" * 5000)) <= 200


def test_of_what_is_said_for_all_members_only_what_matters_is_kept() -> None:
    extensions = Extensions()
    for number in range(100):
        extensions.add(b"g", b"".join(record(b"k%d-%d" % (number, key), b"v") for key in range(100)))
    extensions.add(b"g", record(b"path", b"named"))
    found = extensions.apply(parse(header("name")))
    assert found.name == b"named"
    assert len(extensions._global) == 1


def test_a_sparse_map_for_all_members_is_refused_however_often_it_is_said() -> None:
    extensions = Extensions()
    for number in range(100):
        extensions.add(b"g", record(b"GNU.sparse.%d" % number, b"1"))
    assert len(extensions._global) == 1
    with pytest.raises(BadArchive, match="sparse"):
        extensions.apply(parse(header("name")))


def record(key: bytes, value: bytes) -> bytes:
    """Of a pax header."""
    length = len(key) + len(value) + 3
    while len(str(length)) + len(key) + len(value) + 3 != length:
        length = len(str(length)) + len(key) + len(value) + 3
    return b"%d %s=%s\n" % (length, key, value)

"""Archives that were cut, damaged or made to harm: refused with a reason, and never read beyond their end."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outlast.data import Archive, BadArchive
from outlast.data.scan import MAX_DEPTH
from support.archives import Files, header, padded, put, rehead, tar, zipped

END = bytes(1024)
INNER: Files = {"1": b"one", "2": b"two" * 300}
WHOLE = tar({"cat.tar": INNER, "dog.tar": INNER}, 2)


def refused(tmp_path: Path, content: bytes) -> str:
    with pytest.raises(BadArchive) as caught:
        Archive(put(tmp_path / "a.tar", content))
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"], "a bad archive has no index"
    assert str(caught.value).startswith("%s cannot be read in place: " % (tmp_path / "a.tar"))
    return str(caught.value)


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/passwd", "a/..", "..", "a\\..\\x", "a\nb", "."])
def test_names_that_lead_elsewhere_are_refused(name: str, tmp_path: Path) -> None:
    refused(tmp_path, header(name, 1) + padded(b"x") + END)


@pytest.mark.parametrize("kind", [b"1", b"2", b"3", b"4", b"6", b"S", b"M", b"Z"])
def test_what_is_no_file_is_refused_by_its_name(kind: bytes, tmp_path: Path) -> None:
    assert "cat/x" in refused(tmp_path, header("cat/x", 0, kind, "/etc/passwd") + END)


def test_a_name_that_comes_twice_is_refused(tmp_path: Path) -> None:
    member = header("a/x", 1) + padded(b"1")
    assert "a/x is there twice" in refused(tmp_path, member + header("./a//x", 1) + padded(b"2") + END)
    assert Archive(put(tmp_path / "b.tar", tar({"a.tar": {"x": b""}, "b.tar": {"x": b""}}))).names == [
        "a.tar/x",
        "b.tar/x",
    ]


@pytest.mark.parametrize("size", [513, 4096, 1 << 33, 1 << 62])
def test_a_member_that_claims_more_than_there_is_is_refused(size: int, tmp_path: Path) -> None:
    assert "beyond the archive" in refused(tmp_path, header("x", size) + padded(b"x"))


def test_an_inner_archive_cannot_reach_into_what_follows_it(tmp_path: Path) -> None:
    inner = header("x", 5000) + padded(b"x")
    secret = header("secret", 6000) + bytes(6144)
    said = refused(tmp_path, header("in.tar", len(inner)) + inner + secret + END)
    assert "in in.tar: x ends " in said
    assert "nested=False" in said


def test_a_size_in_a_pax_header_is_held_to_the_same_bounds(tmp_path: Path) -> None:
    record = b"24 size=9000000000000000\n"[:25]
    extension = header("p", len(record), b"x") + padded(record)
    refused(tmp_path, extension + header("x", 1) + padded(b"x") + END)


def test_an_enormous_name_is_not_read_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with path.open("wb") as file:
        file.write(header("long", 2 << 30, b"L"))
        file.truncate(3 << 30)
    with pytest.raises(BadArchive, match="a name of 2147483648 bytes"):
        Archive(path)


def test_archives_are_not_followed_without_end(tmp_path: Path) -> None:
    files: Files = {"x": b"at the bottom"}
    for _ in range(MAX_DEPTH):
        files = {"a.tar": files}
    assert Archive(put(tmp_path / "b.tar", tar(files)))[0] == b"at the bottom"
    (tmp_path / "b.tar").unlink()
    (tmp_path / ".b.tar.index").unlink()
    assert "more than 32 deep" in refused(tmp_path, tar({"a.tar": files}))


def test_joined_archives_are_refused_rather_than_half_read(tmp_path: Path) -> None:
    assert "joined" in refused(tmp_path, tar({"a": b"1"}) + tar({"b": b"2"}))


def test_an_extension_without_a_member_is_refused(tmp_path: Path) -> None:
    assert "no member" in refused(tmp_path, header("long", 5, b"L") + padded(b"name\0") + END)


@pytest.mark.parametrize("program", [b"\x1f\x8b\x08", b"BZh9", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd"])
def test_a_compressed_archive_is_refused_with_what_to_do(program: bytes, tmp_path: Path) -> None:
    assert "`unpack: yes`" in refused(tmp_path, program + bytes(2000))


def test_an_archive_cut_anywhere_is_refused(tmp_path: Path) -> None:
    end = len(WHOLE.rstrip(b"\0")) + 1024 + 512  # inner end, outer padding
    for length in [*range(1, end, 97), *range(512, end, 512)]:
        try:
            names = Archive(put(tmp_path / ("%d.tar" % length), WHOLE[:length])).names
        except BadArchive:
            continue
        pytest.fail("cut after %d bytes it is taken for whole: %s" % (length, names))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=4))
def test_whatever_is_changed_items_lie_within_the_archive_or_it_is_refused(
    changes: list[tuple[int, int]], tmp_path: Path
) -> None:
    content = bytearray(WHOLE)
    for place, value in changes:
        content[place] = value
        # A header that was changed on purpose has a checksum that fits.
        block = place // 512 * 512
        if content[block + 257 : block + 262] == b"ustar":
            content[block : block + 512] = rehead(bytes(content[block : block + 512]), 0, b"")
    path = put(tmp_path / "a.tar", bytes(content))
    try:
        with Archive(path) as found:
            for item in range(len(found)):
                assert found[item] in content
                assert len(found[item]) == len(found.view(item))
                assert found.name(item)
    except BadArchive:
        return


def test_a_zip_that_lies_about_its_items_is_refused(tmp_path: Path) -> None:
    good = zipped({"cat/1": b"1" * 5000, "cat/2": b"2"})
    assert "cannot be read as one" in refused(tmp_path, good[:-30])
    for place, value in [(good.find(b"PK\1\2") + 8, 1), (good.find(b"PK\1\2") + 10, 12)]:
        assert "cat/1" in refused(tmp_path, good[:place] + bytes([value]) + good[place + 1 :])
    moved = good.find(b"PK\1\2") + 42
    assert "not where" in refused(tmp_path, good[:moved] + b"\7" + good[moved + 1 :])
    assert "twice" in refused(tmp_path, good.replace(b"cat/2", b"cat/1"))
    assert "leads upwards" in refused(tmp_path, good.replace(b"cat/2", b"../x2"))


def test_a_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        info = zipfile.ZipInfo("link")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, "/etc/passwd")
    assert "link is a link" in refused(tmp_path, buffer.getvalue())


@pytest.mark.parametrize("size", [10, 4999, 5001, 1 << 31])
def test_a_compressed_item_gives_the_bytes_it_promised_or_none(size: int, tmp_path: Path) -> None:
    good = zipped({"cat/1": b"1" * 5000})
    place = good.find(b"PK\1\2") + 24
    archive = Archive(put(tmp_path / "a.zip", good[:place] + size.to_bytes(4, "little") + good[place + 4 :]))
    with pytest.raises(BadArchive, match="cat/1: .* not the %d bytes" % size):
        archive[0]


def test_a_compressed_item_that_is_damaged_is_an_error_with_its_name(tmp_path: Path) -> None:
    good = zipped({"cat/1": bytes(range(256)) * 20})
    place = good.find(b"cat/1") + 5
    archive = Archive(put(tmp_path / "a.zip", good[:place] + b"\xff\xff\xff" + good[place + 3 :]))
    with pytest.raises(BadArchive, match="cat/1: its compressed content is damaged"):
        archive[0]

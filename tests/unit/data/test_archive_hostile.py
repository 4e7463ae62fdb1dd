"""Truncated, damaged and hostile archives are refused with a reason, and never read beyond their end."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outlast.data import Archive, BadArchive
from outlast.data.scan import MAX_DEPTH
from support.archives import Files, header, padded, patch_header, put, tar, zipped

END = bytes(1024)
INNER: Files = {"1": b"one", "2": b"two" * 300}
WHOLE = tar({"cat.tar": INNER, "dog.tar": INNER}, 2)


def refusal_message(tmp_path: Path, content: bytes) -> str:
    """Return the message with which the archive is refused."""
    with pytest.raises(BadArchive) as caught:
        Archive(put(tmp_path / "a.tar", content))
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"], "a bad archive must have no index"
    assert str(caught.value).startswith("%s cannot be read in place: " % (tmp_path / "a.tar"))
    return str(caught.value)


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/passwd", "a/..", "..", "a\\..\\x", "a\nb", "."])
def test_names_that_lead_out_of_the_archive_are_refused(name: str, tmp_path: Path) -> None:
    refusal_message(tmp_path, header(name, 1) + padded(b"x") + END)


@pytest.mark.parametrize("kind", [b"1", b"2", b"3", b"4", b"6", b"S", b"M", b"Z"])
def test_links_devices_and_unknown_types_are_refused_by_name(kind: bytes, tmp_path: Path) -> None:
    assert "cat/x" in refusal_message(tmp_path, header("cat/x", 0, kind, "/etc/passwd") + END)


def test_a_repeated_name_is_refused(tmp_path: Path) -> None:
    member = header("a/x", 1) + padded(b"1")
    assert "a/x is there twice" in refusal_message(
        tmp_path, member + header("./a//x", 1) + padded(b"2") + END
    )
    assert Archive(put(tmp_path / "b.tar", tar({"a.tar": {"x": b""}, "b.tar": {"x": b""}}))).names == [
        "a.tar/x",
        "b.tar/x",
    ]


@pytest.mark.parametrize("size", [513, 4096, 1 << 33, 1 << 62])
def test_a_member_that_claims_more_than_the_archive_has_is_refused(size: int, tmp_path: Path) -> None:
    assert "beyond the archive" in refusal_message(tmp_path, header("x", size) + padded(b"x"))


def test_an_inner_archive_cannot_reach_into_what_follows_it(tmp_path: Path) -> None:
    inner = header("x", 5000) + padded(b"x")
    secret = header("secret", 6000) + bytes(6144)
    message = refusal_message(tmp_path, header("in.tar", len(inner)) + inner + secret + END)
    assert "in in.tar: it is truncated: x ends " in message
    assert "nested=False" in message


def test_a_size_in_a_pax_header_has_the_same_bounds(tmp_path: Path) -> None:
    record = b"24 size=9000000000000000\n"[:25]
    extension = header("p", len(record), b"x") + padded(record)
    refusal_message(tmp_path, extension + header("x", 1) + padded(b"x") + END)


def test_an_enormous_name_is_not_read_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with path.open("wb") as file:
        file.write(header("long", 2 << 30, b"L"))
        file.truncate(3 << 30)
    with pytest.raises(BadArchive, match="a name of 2147483648 bytes"):
        Archive(path)


def test_the_nesting_of_archives_is_limited(tmp_path: Path) -> None:
    files: Files = {"x": b"at the bottom"}
    for _ in range(MAX_DEPTH):
        files = {"a.tar": files}
    assert Archive(put(tmp_path / "b.tar", tar(files)))[0] == b"at the bottom"
    (tmp_path / "b.tar").unlink()
    (tmp_path / ".b.tar.index").unlink()
    assert "more than 32 deep" in refusal_message(tmp_path, tar({"a.tar": files}))


def test_concatenated_archives_are_refused_rather_than_half_read(tmp_path: Path) -> None:
    assert "concatenated" in refusal_message(tmp_path, tar({"a": b"1"}) + tar({"b": b"2"}))


def test_an_extension_without_a_member_is_refused(tmp_path: Path) -> None:
    assert "no member" in refusal_message(tmp_path, header("long", 5, b"L") + padded(b"name\0") + END)


@pytest.mark.parametrize("magic", [b"\x1f\x8b\x08", b"BZh9", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd"])
def test_a_compressed_archive_is_refused_with_a_hint(magic: bytes, tmp_path: Path) -> None:
    assert "`unpack: yes`" in refusal_message(tmp_path, magic + bytes(2000))


def test_an_archive_truncated_anywhere_is_refused(tmp_path: Path) -> None:
    end = len(WHOLE.rstrip(b"\0")) + 1024 + 512  # inner end, outer padding
    for length in [*range(1, end, 97), *range(512, end, 512)]:
        try:
            names = Archive(put(tmp_path / ("%d.tar" % length), WHOLE[:length])).names
        except BadArchive:
            continue
        pytest.fail("truncated after %d bytes it is accepted as complete: %s" % (length, names))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=4))
def test_with_any_bytes_changed_items_are_within_the_archive_or_it_is_refused(
    changes: list[tuple[int, int]], tmp_path: Path
) -> None:
    content = bytearray(WHOLE)
    for offset, value in changes:
        content[offset] = value
        # Correct the checksum, so that the changed header is parsed.
        block = offset // 512 * 512
        if content[block + 257 : block + 262] == b"ustar":
            content[block : block + 512] = patch_header(bytes(content[block : block + 512]), 0, b"")
    path = put(tmp_path / "a.tar", bytes(content))
    try:
        with Archive(path) as found:
            for item in range(len(found)):
                assert found[item] in content
                assert len(found[item]) == len(found.view(item))
                assert found.name(item)
    except BadArchive:
        return


def test_a_zip_with_wrong_facts_about_its_items_is_refused(tmp_path: Path) -> None:
    good = zipped({"cat/1": b"1" * 5000, "cat/2": b"2"})
    assert "cannot be read as one" in refusal_message(tmp_path, good[:-30])
    for offset, value in [(good.find(b"PK\1\2") + 8, 1), (good.find(b"PK\1\2") + 10, 12)]:
        assert "cat/1" in refusal_message(tmp_path, good[:offset] + bytes([value]) + good[offset + 1 :])
    moved = good.find(b"PK\1\2") + 42
    assert "not at the offset" in refusal_message(tmp_path, good[:moved] + b"\7" + good[moved + 1 :])
    assert "twice" in refusal_message(tmp_path, good.replace(b"cat/2", b"cat/1"))
    assert "leads upwards" in refusal_message(tmp_path, good.replace(b"cat/2", b"../x2"))


def test_a_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        info = zipfile.ZipInfo("link")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, "/etc/passwd")
    assert "link is a link" in refusal_message(tmp_path, buffer.getvalue())


@pytest.mark.parametrize("size", [10, 4999, 5001, 1 << 31])
def test_a_compressed_item_must_have_the_stated_size(size: int, tmp_path: Path) -> None:
    good = zipped({"cat/1": b"1" * 5000})
    offset = good.find(b"PK\1\2") + 24
    archive = Archive(
        put(tmp_path / "a.zip", good[:offset] + size.to_bytes(4, "little") + good[offset + 4 :])
    )
    with pytest.raises(BadArchive, match="cat/1: .* not the %d bytes" % size):
        archive[0]


def test_the_error_of_a_damaged_compressed_item_names_it(tmp_path: Path) -> None:
    good = zipped({"cat/1": bytes(range(256)) * 20})
    offset = good.find(b"cat/1") + 5
    archive = Archive(put(tmp_path / "a.zip", good[:offset] + b"\xff\xff\xff" + good[offset + 3 :]))
    with pytest.raises(BadArchive, match="cat/1: its compressed content is damaged"):
        archive[0]

"""The table of contents of a zip is read in parts: a large one takes no more memory than a small one."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from outlast.node.archives import zip_table
from outlast.node.archives.limits import ArchiveLimits
from outlast.node.archives.sink import BadArchive
from outlast.node.archives.unpacking import unpack_file


def zip_of(count: int, comment: bytes = b"", before: bytes = b"", name: str = "%d/file") -> bytes:
    buffer = io.BytesIO(before)
    with zipfile.ZipFile(buffer, "a") as archive:
        for number in range(count):
            archive.writestr(name % number, b"content %d" % number)
        archive.comment = comment
    return buffer.getvalue()


def listed(content: bytes, members: int = 10**6) -> dict[str, bytes]:
    return {
        info.filename: archive.read(info)
        for archive in zip_table.parts(io.BytesIO(content), members)
        for info in archive.infolist()
    }


@pytest.mark.parametrize("part", [1, 46, 60, 200, 1 << 20])
@pytest.mark.parametrize("count", [0, 1, 7])
@pytest.mark.parametrize("more", [{}, {"comment": b"packed by hand"}, {"before": b"#!/bin/sh\n"}])
def test_all_members_are_found_whatever_the_size_of_a_part(
    monkeypatch: pytest.MonkeyPatch, part: int, count: int, more: dict[str, bytes]
) -> None:
    monkeypatch.setattr(zip_table, "_PART", part)
    assert listed(zip_of(count, **more)) == {"%d/file" % n: b"content %d" % n for n in range(count)}


def test_a_zip_with_more_members_than_32_bit_records_can_count_is_read() -> None:
    assert len(listed(zip_of(66_000))) == 66_000


def test_too_many_members_are_refused_before_they_are_all_read() -> None:
    with pytest.raises(BadArchive, match="more than 9 members"):
        listed(zip_of(10), members=9)


@pytest.mark.parametrize("cut", [1, 30, 60, 100])
def test_a_damaged_table_is_a_broken_zip(cut: int) -> None:
    whole = zip_of(3)
    start = whole.index(b"PK\x01\x02")
    with pytest.raises((zipfile.BadZipFile, BadArchive)):
        listed(whole[:start] + whole[start + cut :])


def test_the_memory_for_a_large_table_is_that_of_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zip_table, "_PART", 1 << 16)
    path = tmp_path / "many.zip"
    path.write_bytes(zip_of(30_000, name="a-folder-with-a-long-name/%d"))
    tracemalloc.start()
    try:
        with zipfile.ZipFile(path):
            all_at_once = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    tracemalloc.start()
    try:
        with path.open("rb") as file:
            for archive in zip_table.parts(file, 10**6):
                assert archive.infolist()
        in_parts = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert in_parts < all_at_once / 5


def test_members_that_are_not_listed_in_order_are_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "mixed.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(5):
            archive.writestr("%d" % number, b"%d" % number)
        archive.filelist.reverse()
    unpack_file(str(path), str(tmp_path / "tree"))
    assert {file.name: file.read_bytes() for file in (tmp_path / "tree").iterdir()} == {
        "%d" % number: b"%d" % number for number in range(5)
    }


def test_a_zip_with_more_members_than_allowed_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "many.zip"
    path.write_bytes(zip_of(10))
    with pytest.raises(BadArchive, match="more than 5 members"):
        unpack_file(str(path), str(tmp_path / "tree"), limits=ArchiveLimits(members=5))
    assert [file.name for file in tmp_path.iterdir()] == ["many.zip"]

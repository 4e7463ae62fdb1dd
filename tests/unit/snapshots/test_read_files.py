"""A training that never reads what was saved before starts from the beginning."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from outlast.node.snapshots.read_files import ReadFiles


def overwrite(path: Path) -> None:
    path.write_bytes(b"new")


def replace(path: Path) -> None:
    path.with_name("new").write_bytes(b"new")
    path.with_name("new").replace(path)


def read(path: Path) -> None:
    path.read_bytes()


def read_and_overwrite(path: Path) -> None:
    read(path)
    overwrite(path)


def overwrite_and_read(path: Path) -> None:
    overwrite(path)
    read(path)


def map_into_memory(path: Path) -> None:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
        assert content[0]


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def write_more(path: Path) -> None:
    path.write_bytes(b"longer than before")


def look(path: Path) -> None:
    assert path.exists() and path.stat().st_size


@pytest.mark.parametrize(
    ("act", "none_read"),
    [
        *((overwrite, True), (write_more, True), (replace, True), (overwrite_and_read, True), (look, True)),
        *((read, False), (read_and_overwrite, False), (map_into_memory, False), (append, False)),
    ],
)
def test_a_file_that_is_only_overwritten_or_replaced_was_not_read(
    tmp_path: Path, act: object, none_read: bool
) -> None:
    path, other = tmp_path / "ckpt.pt", tmp_path / "best.pt"
    path.write_bytes(b"old")
    other.write_bytes(b"old")
    files = ReadFiles([str(path), str(other)])
    try:
        act(path)  # type: ignore[operator]
        assert files.none_was_read() is none_read
    finally:
        files.close()


def test_without_files_or_where_one_cannot_be_watched_nothing_is_claimed(tmp_path: Path) -> None:
    for paths in ([], [str(tmp_path / "missing")], [str(tmp_path)] * 1001):
        files = ReadFiles(paths)
        assert not files.none_was_read()
        files.close()

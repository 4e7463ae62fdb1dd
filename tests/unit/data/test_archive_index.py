"""The index of an archive on disk saves time and is never trusted."""

from __future__ import annotations

import os
import random
import threading
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.data import Archive, archive_file, index_file
from outlast.data.index_file import Fingerprint
from outlast.data.item_table import Table
from support.archives import Files, put, tar

FILES: Files = {"cat.tar": {"1": b"one", "2": b"two"}, "dog/3": b"three"}
CONTENTS = [b"one", b"two", b"three"]


class Scans:
    """Counts how often an archive was scanned."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        real = archive_file.scan

        def counted(*arguments: Any) -> Table:
            self.count += 1
            return real(*arguments)

        monkeypatch.setattr(archive_file, "scan", counted)


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> Scans:
    return Scans(monkeypatch)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "data"
    folder.mkdir()
    yield put(folder / "a.tar", tar(FILES))


def index_of(archive: Path) -> Path:
    return archive.with_name(".a.tar.index")


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_index_is_stored_beside_the_archive_and_reused(archive: Path, scans: Scans) -> None:
    assert list(Archive(archive)) == CONTENTS
    again = Archive(archive)
    assert list(again) == CONTENTS
    assert again.names == ["cat.tar/1", "cat.tar/2", "dog/3"]
    assert scans.count == 1
    assert names_in(archive.parent) == [".a.tar.index", "a.tar"]


def test_an_empty_archive_has_an_index_too(archive: Path, scans: Scans) -> None:
    put(archive, tar({}))
    for _ in range(2):
        assert list(Archive(archive)) == []
    assert scans.count == 1


def test_flat_and_nested_reading_have_separate_indexes(archive: Path, scans: Scans) -> None:
    for _ in range(2):
        assert len(Archive(archive)) == 3
        assert len(Archive(archive, nested=False)) == 2
    assert scans.count == 2


def test_beside_a_read_only_archive_the_index_goes_to_the_cache(
    archive: Path, scans: Scans, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def read_only(path: Any, flags: int, *arguments: Any, **more: Any) -> int:
        if flags & os.O_CREAT and os.fspath(path).startswith(str(archive.parent)):
            raise OSError(30, "Read-only file system")
        return real(path, flags, *arguments, **more)

    monkeypatch.setattr(os, "open", read_only)
    for _ in range(2):
        assert list(Archive(archive)) == CONTENTS
    assert scans.count == 1
    assert names_in(archive.parent) == ["a.tar"]
    assert len(list(cache.rglob("*.index"))) == 1


def test_if_nothing_can_be_written_the_index_is_in_memory_only(
    archive: Path, scans: Scans, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Any, target: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    for _ in range(2):
        assert list(Archive(archive)) == CONTENTS
    assert scans.count == 2
    assert [path for path in [*archive.parent.iterdir(), *cache.rglob("*")] if path.is_file()] == [archive]


def test_a_replaced_archive_is_indexed_again(archive: Path, scans: Scans) -> None:
    Archive(archive)
    put(archive, tar({"x": b"new", **FILES}))
    assert list(Archive(archive)) == [b"new", *CONTENTS]
    status = archive.stat()
    os.utime(archive, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert list(Archive(archive)) == [b"new", *CONTENTS]
    assert scans.count == 3


def test_a_torn_or_altered_index_is_replaced(archive: Path) -> None:
    Archive(archive)
    index = index_of(archive)
    good = index.read_bytes()
    known = Fingerprint.of(archive.stat())
    assert index_file.read(str(index), known, True, 0) is not None
    rng = random.Random(4)
    damaged = [good[:length] for length in range(len(good))]
    damaged += [good + b"\0", b"", os.urandom(len(good)), bytes(len(good))]
    for offset in range(len(good) - 4, len(good)):
        damaged.append(good[:offset] + bytes([good[offset] ^ 1]) + good[offset + 1 :])
    for _ in range(300):
        offset = rng.randrange(len(good))
        damaged.append(good[:offset] + bytes([good[offset] ^ (1 << rng.randrange(8))]) + good[offset + 1 :])
    unused = index_file._HEAD.size - 4  # the last four bytes of the head are padding
    for bad in damaged:
        if bad[:unused] + bad[unused + 4 :] == good[:unused] + good[unused + 4 :]:
            continue
        index.write_bytes(bad)
        assert index_file.read(str(index), known, True, 0) is None
    assert list(Archive(archive)) == CONTENTS
    assert index.read_bytes() == good


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("offsets", [512, 1 << 40, 0]),
        ("offsets", [512, -1, 0]),
        ("sizes", [1, 1, 1 << 62]),
        ("sizes", [1, -1, 1]),
        ("packed", [-1, -5, -1]),
        ("packed", [-1, 1 << 40, -1]),
        ("folders", [0, 1, 2]),
        ("folders", [0, -1, 1]),
        ("name_ends", [1, 0, 3]),
        ("name_ends", [1, 2, 4]),
        ("folder_ends", [9, 3]),
    ],
)
def test_an_index_with_impossible_numbers_is_not_used_despite_a_valid_checksum(
    part: str, value: list[int], archive: Path, scans: Scans
) -> None:
    table = Archive(archive)._file.table
    known = Fingerprint.of(archive.stat())
    index = str(index_of(archive))
    index_file.write(index, table, known, True)
    assert index_file.read(index, known, True, 0) is not None
    setattr(table, part, array("i" if part == "folders" else "q", value))
    index_file.write(index, table, known, True)
    assert index_file.read(index, known, True, 0) is None
    assert list(Archive(archive)) == CONTENTS
    assert scans.count == 2


def test_an_index_that_another_user_could_have_written_is_not_used(
    archive: Path, scans: Scans, monkeypatch: pytest.MonkeyPatch
) -> None:
    Archive(archive)
    index = index_of(archive)
    index.chmod(0o664)
    Archive(archive)
    assert scans.count == 2
    known = Fingerprint.of(archive.stat())
    assert index_file.read(str(index), known, True, 0) is not None
    link = index.with_name("link")
    link.symlink_to(index)
    assert index_file.read(str(link), known, True, 0) is None
    assert index_file.read(str(archive.parent), known, True, 0) is None
    if os.geteuid() == 0:
        os.chown(index, 12345, 12345)
        assert index_file.read(str(index), known, True, 0) is None
        assert index_file.read(str(index), known, True, 12345) is not None


def test_a_pipe_in_place_of_the_index_does_not_block(archive: Path) -> None:
    os.mkfifo(index_of(archive))
    assert list(Archive(archive)) == CONTENTS
    assert list(Archive(archive)) == CONTENTS


def test_many_threads_can_write_the_index_at_once(archive: Path) -> None:
    start = threading.Barrier(8)
    found: list[list[bytes]] = []

    def make() -> None:
        start.wait(timeout=30)
        found.append(list(Archive(archive)))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert found == [CONTENTS] * 8
    assert names_in(archive.parent) == [".a.tar.index", "a.tar"]


def test_an_index_is_not_written_into_a_read_only_directory_not_even_by_root(
    archive: Path, cache: Path
) -> None:
    archive.parent.chmod(0o555)
    before = archive.parent.stat().st_ctime_ns
    assert list(Archive(archive, nested=True)) == CONTENTS
    assert names_in(archive.parent) == ["a.tar"]
    assert archive.parent.stat().st_ctime_ns == before
    assert len(list((cache / "outlast" / "indexes").iterdir())) == 1
    archive.parent.chmod(0o755)

"""Entries of earlier versions of Outlast are used; those of later versions are left alone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outlast.node.archives.unpacking import UnpackingSink
from outlast.node.staging.cache import entry as entry_file
from outlast.node.staging.cache import given_up
from outlast.node.staging.cache.data_cache import DataCache
from outlast.node.staging.cache.entry import write_entry
from outlast.node.staging.cache.fetch_lock import FetchLock, LockHolder
from outlast.node.staging.errors import FetchFailed
from outlast.node.staging.fetch.part_file import PartFile

KEY = "sha256-6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"
SOURCE = "https://example.org/data"
#: A record of each format, as the version that introduced it wrote it. "*" stands for a number.
SAMPLES = {
    1: {"size": 1, "source": SOURCE, "stamp": ["*", "*"]},
    2: {
        "format": 2,
        "size": 1,
        "source": SOURCE,
        "stamp": ["*", "*"],
        "state": {"names": 1, "digest": "b0a0e6b4bb6d4d1fbdb2a0a3a4e1d7c9", "changed": "*"},
    },
}
NEWEST = max(SAMPLES)


def never(place: str, pulse: Callable[[], None]) -> None:
    pytest.fail("the entry can be used")


def fill(place: str, pulse: Callable[[], None]) -> None:
    Path(place, "content").write_bytes(b"1")
    write_entry(place, 1, SOURCE)


def shape(value: Any) -> Any:
    """Return the keys and the types of a record."""
    if isinstance(value, dict):
        return {key: shape(below) for key, below in value.items()}
    if isinstance(value, list):
        return [shape(below) for below in value]
    return "number" if isinstance(value, int) or value == "*" else "text"


def entry_of_format_1(root: Path, tree: bool) -> Path:
    """Return the content of an entry as Outlast 0.2 made it: writable, and `entry.json` written last."""
    place = Path(DataCache(str(root)).root, "objects", KEY)
    content = place / "content"
    if tree:
        (content / "deep").mkdir(parents=True)
        (content / "deep/a.txt").write_bytes(b"1")
        stamp = []
    else:
        place.mkdir()
        content.write_bytes(b"1")
        stamp = [1, content.stat().st_mtime_ns]
    (place / "entry.json").write_text(json.dumps({**SAMPLES[1], "stamp": stamp}))
    return content


def test_the_record_that_is_written_has_the_newest_known_shape(tmp_path: Path) -> None:
    held = DataCache(str(tmp_path)).obtain(KEY, fill)
    record = json.loads(Path(held.content).with_name("entry.json").read_bytes())
    assert record["format"] == NEWEST == entry_file.FORMAT
    assert shape(record) == shape(SAMPLES[NEWEST])


@pytest.mark.parametrize("tree", [False, True])
def test_an_entry_of_format_1_is_used(tmp_path: Path, tree: bool) -> None:
    content = entry_of_format_1(tmp_path, tree)
    cache = DataCache(str(tmp_path))
    assert cache.obtain(KEY, never).content == str(content)
    assert [(one.size, one.source) for one in cache.entries()] == [(1, SOURCE)]


@pytest.mark.parametrize("tree", [False, True])
def test_an_entry_of_format_1_that_was_altered_since_is_fetched_again(tmp_path: Path, tree: bool) -> None:
    content = entry_of_format_1(tmp_path, tree)
    file = content / "deep/a.txt" if tree else content
    written = (content.parent / "entry.json").stat().st_ctime_ns
    while file.stat().st_ctime_ns <= written:
        file.write_bytes(b"2")
    assert DataCache(str(tmp_path)).find(KEY) is None


def test_earlier_versions_can_use_an_entry_of_format_2(tmp_path: Path) -> None:
    held = DataCache(str(tmp_path)).obtain(KEY, fill)
    record = json.loads(Path(held.content).with_name("entry.json").read_bytes())
    status = Path(held.content).stat()
    assert record["stamp"] == [status.st_size, status.st_mtime_ns]


def of_a_newer_version(root: Path) -> dict[Path, bytes]:
    """Make an entry of a format that is not known, and return its files."""
    place = Path(DataCache(str(root)).root, "objects", KEY)
    place.mkdir()
    (place / "content").write_bytes(b"packed in a new way")
    (place / "entry.json").write_text(json.dumps({"format": NEWEST + 1, "size": 19, "blocks": [[0, 19]]}))
    return {path: path.read_bytes() for path in place.iterdir()}


def test_an_entry_of_a_newer_version_is_left_alone_and_the_data_is_kept_beside_it(tmp_path: Path) -> None:
    before = of_a_newer_version(tmp_path)
    warnings: list[str] = []
    cache = DataCache(str(tmp_path), warn=warnings.append)
    held = cache.obtain(KEY, fill)
    assert Path(held.content).read_bytes() == b"1"
    held.release()
    again = DataCache(str(tmp_path)).obtain(KEY, never)
    assert again.content == held.content
    assert {path: path.read_bytes() for path in before} == before
    (warning,) = warnings
    assert f"format is {NEWEST + 1}" in warning
    assert "newer version of Outlast" in warning


def test_an_entry_of_a_newer_version_is_not_evicted(tmp_path: Path) -> None:
    before = of_a_newer_version(tmp_path)
    cache = DataCache(str(tmp_path), limit=100)
    (entry,) = cache.entries()
    assert (entry.size, entry.newer) == (19, True)
    assert not cache.remove(entry)
    cache.make_room(80)
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("record", [b"[" * 60000, b'{"size": 1e999}', b'{"format": ' + b"9" * 5000 + b"}"])
def test_a_record_that_no_version_writes_is_damage_and_no_crash(tmp_path: Path, record: bytes) -> None:
    content = entry_of_format_1(tmp_path, tree=True)
    (content.parent / "entry.json").write_bytes(record)
    cache = DataCache(str(tmp_path))
    assert len(cache.entries()) == 1
    assert cache.obtain(KEY, fill).content == str(content)


def test_what_is_no_entry_is_not_listed(tmp_path: Path) -> None:
    cache = DataCache(str(tmp_path))
    os.mkfifo(Path(cache.root, "objects", "pipe"))
    Path(cache.root, "objects", "link").symlink_to("/etc")
    assert cache.entries() == []


def test_the_note_of_a_part_that_version_0_2_wrote_is_read(tmp_path: Path) -> None:
    (tmp_path / ".a.bin.part").write_bytes(b"half")
    (tmp_path / ".a.bin.part.json").write_bytes(b'{"identity": "sha256:12"}')
    part = PartFile(str(tmp_path), "a.bin")
    assert part.resume("sha256:12", lambda block: None) == 4
    part.close()


def test_the_lock_that_version_0_2_wrote_is_read(tmp_path: Path) -> None:
    record = b'{"host": "node7", "pid": 12, "mark": "ab", "count": 3}'.ljust(512)
    (tmp_path / "lock").write_bytes(record)
    assert FetchLock(str(tmp_path / "lock")).holder() == LockHolder("node7", 12, "ab", 3)


def test_the_state_of_an_archive_that_version_0_2_had_unpacked_is_read(tmp_path: Path) -> None:
    place = tmp_path / ".tree.a.tar.unpacking"
    (place / "tree").mkdir(parents=True)
    (place / "late" / "1").mkdir(parents=True)
    (place / "late" / "1" / "c.txt").write_bytes(b"c")
    moves = [{"number": 1, "parent": 0, "path": "inner", "kept": ""}]
    (place / "state.json").write_text(json.dumps({"identity": "x", "moving": moves}))
    sink = UnpackingSink(str(tmp_path / "tree"), "a.tar")
    assert sink.recover("x")
    assert (tmp_path / "tree" / "inner" / "c.txt").read_bytes() == b"c"


def test_the_record_of_a_process_that_gave_up_in_version_0_2_is_read(tmp_path: Path) -> None:
    cache = DataCache(str(tmp_path))
    record = '{"mark": "ab", "kind": "missing for now", "detail": "x is not there"}'
    Path(cache.root, "turns", "key.gave-up").write_text(record)
    with pytest.raises(FetchFailed, match="x is not there"):
        given_up.raise_if_recorded(os.path.join(cache.root, "turns"), "key", "ab")

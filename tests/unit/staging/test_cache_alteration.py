"""Content of the cache is read-only, and what was altered all the same is fetched again."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from outlast.node.staging.cache import content_state
from outlast.node.staging.cache.data_cache import DataCache, Fill
from outlast.node.staging.cache.entry import write_entry
from outlast.untrusted_files import open_directory

FILES = {"a.txt": b"a" * 100, "deep/b.txt": b"b" * 100, "deep/run.sh": b"#!/bin/sh\n"}


def fill_tree(place: str, pulse: Callable[[], None]) -> None:
    for name, content in FILES.items():
        path = Path(place, "content", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755 if name.endswith(".sh") else 0o644)
    write_entry(place, 1000, "https://example.org/data")


def fill_file(place: str, pulse: Callable[[], None]) -> None:
    Path(place, "content").write_bytes(b"x" * 100)
    write_entry(place, 100, "https://example.org/data")


def never(place: str, pulse: Callable[[], None]) -> None:
    pytest.fail("the entry is intact")


def store(root: Path, fill: Fill = fill_tree) -> Path:
    """Return the path of the content of an entry `key` that is not in use."""
    held = DataCache(str(root)).obtain("key", fill)
    held.release()
    return Path(held.content)


def after_a_tick(path: Path, change: Callable[[], object]) -> None:
    """Make a change, again until the file system's clock has advanced since `path` was changed."""
    before = path.stat().st_ctime_ns
    while path.stat().st_ctime_ns == before:
        change()


def modes(top: Path) -> dict[str, int]:
    paths = [top, *top.rglob("*")]
    return {str(path.relative_to(top)): stat.S_IMODE(path.lstat().st_mode) for path in paths}


def test_files_and_directories_of_an_entry_are_read_only(tmp_path: Path) -> None:
    content = store(tmp_path)
    assert modes(content) == {
        ".": 0o555,
        "a.txt": 0o444,
        "deep": 0o555,
        "deep/b.txt": 0o444,
        "deep/run.sh": 0o555,
    }
    assert stat.S_IMODE(store(tmp_path / "other", fill_file).stat().st_mode) == 0o444


def test_an_intact_entry_is_used_again_and_again(tmp_path: Path) -> None:
    content = store(tmp_path)
    for _ in range(3):
        assert DataCache(str(tmp_path)).obtain("key", never).content == str(content)


def write_in_place(content: Path) -> None:
    with (content / "deep/b.txt").open("r+b") as file:
        file.write(b"B")


def write_and_restore_the_time(content: Path) -> None:
    before = (content / "deep/b.txt").stat()
    write_in_place(content)
    os.utime(content / "deep/b.txt", ns=(before.st_atime_ns, before.st_mtime_ns))


def replace(content: Path) -> None:
    (content / "deep/new").write_bytes(FILES["deep/b.txt"])
    (content / "deep/new").replace(content / "deep/b.txt")


def remove(content: Path) -> None:
    (content / "deep/b.txt").unlink()


def add(content: Path) -> None:
    (content / "deep/labels.npy").write_bytes(b"derived")


ALTERATIONS = [write_in_place, write_and_restore_the_time, replace, remove, add]


@pytest.mark.parametrize("alter", ALTERATIONS)
def test_a_tree_that_was_altered_in_any_way_is_fetched_again_with_a_warning_that_names_it(
    tmp_path: Path, alter: Callable[[Path], None]
) -> None:
    content = store(tmp_path)
    place = content / "deep"
    after_a_tick(place, lambda: place.chmod(0o755))
    (content / "deep/b.txt").chmod(0o644)
    alter(content)
    warnings: list[str] = []
    cache = DataCache(str(tmp_path), warn=warnings.append)
    assert cache.find("key") is None
    held = cache.obtain("key", fill_tree)
    assert {str(path.relative_to(content)) for path in content.rglob("*.*")} == set(FILES)
    assert (Path(held.content) / "deep/b.txt").read_bytes() == FILES["deep/b.txt"]
    (warning,) = warnings
    assert str(content / "deep") in warning
    assert "writable: yes" in warning


def test_the_warning_names_the_file_that_was_written_to(tmp_path: Path) -> None:
    content = store(tmp_path)
    path = content / "deep/b.txt"
    after_a_tick(path, lambda: path.chmod(0o644))
    write_in_place(content)
    warnings: list[str] = []
    DataCache(str(tmp_path), warn=warnings.append).find("key")
    assert str(path) in warnings[0]


def test_an_alteration_is_noticed_although_the_clock_was_set_back(tmp_path: Path) -> None:
    tree = tmp_path / "content"
    tree.mkdir()
    (tree / "file").write_bytes(b"1234")
    top = open_directory(tmp_path)
    recorded = content_state.seal(top, "content")
    later = content_state.ContentState(recorded.names, recorded.digest, recorded.changed + 10**18)
    assert content_state.compare(top, "content", later) is None
    (tree / "file").chmod(0o644)
    os.utime(tree / "file", ns=(1, 1))
    assert content_state.compare(top, "content", later) == ""
    os.close(top)


def test_a_file_whose_time_was_restored_after_it_was_altered_is_fetched_again(tmp_path: Path) -> None:
    content = store(tmp_path, fill_file)
    before = content.stat()
    after_a_tick(content, lambda: content.chmod(0o644))
    content.write_bytes(b"y" * 100)
    os.utime(content, ns=(before.st_atime_ns, before.st_mtime_ns))
    held = DataCache(str(tmp_path)).obtain("key", fill_file)
    assert Path(held.content).read_bytes() == b"x" * 100


def test_an_altered_tree_is_walked_once_however_often_it_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = store(tmp_path)
    after_a_tick(content / "a.txt", lambda: (content / "a.txt").chmod(0o644))
    cache, walks = DataCache(str(tmp_path)), []
    real = content_state.compare
    monkeypatch.setattr(content_state, "compare", lambda *args: (walks.append(1), real(*args))[1])
    for _ in range(5):
        assert cache.find("key") is None
    assert len(walks) == 1


def test_a_job_that_uses_an_altered_entry_finds_the_new_content_and_keeps_it(tmp_path: Path) -> None:
    store(tmp_path)
    first = DataCache(str(tmp_path))
    used = first.find("key")
    assert used is not None
    path = Path(used.content, "a.txt")
    after_a_tick(path, lambda: path.chmod(0o644))
    path.write_bytes(b"altered")
    later = DataCache(str(tmp_path), limit=2000)
    later.obtain("key", fill_tree).release()
    assert path.read_bytes() == FILES["a.txt"]
    assert [entry.in_use for entry in later.entries()] == [True]
    used.release()
    assert [entry.in_use for entry in later.entries()] == [False]


@pytest.mark.parametrize("fill", [fill_tree, fill_file])
def test_a_read_only_entry_can_be_evicted(tmp_path: Path, fill: Fill) -> None:
    store(tmp_path, fill)
    cache = DataCache(str(tmp_path), limit=1000)
    cache.make_room(1000)
    assert cache.entries() == []
    assert list(Path(cache.root, "doomed").iterdir()) == []


def test_what_a_killed_process_had_made_read_only_is_completed_by_the_next(tmp_path: Path) -> None:
    def killed(place: str, pulse: Callable[[], None]) -> None:
        fill_tree(place, pulse)
        Path(place, "entry.json").unlink()
        raise InterruptedError

    with pytest.raises(InterruptedError):
        DataCache(str(tmp_path)).obtain("key", killed)
    cache = DataCache(str(tmp_path))
    held = cache.obtain("key", lambda place, pulse: write_entry(place, 1000, "", pulse))
    assert Path(held.content, "a.txt").read_bytes() == FILES["a.txt"]


def test_an_unfinished_read_only_tree_can_be_dropped(tmp_path: Path) -> None:
    def killed(place: str, pulse: Callable[[], None]) -> None:
        fill_tree(place, pulse)
        raise InterruptedError

    cache = DataCache(str(tmp_path))
    with pytest.raises(InterruptedError):
        cache.obtain("key", killed)
    assert len(cache.drop_unfinished()) == 1
    assert list(Path(cache.root, "doomed").iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": 2}', b'{"format": "two"}', b"9" * 70000])
def test_an_entry_whose_record_is_damaged_is_fetched_again(tmp_path: Path, content: bytes) -> None:
    stored = store(tmp_path)
    (stored.parent / "entry.json").write_bytes(content)
    warnings: list[str] = []
    cache = DataCache(str(tmp_path), warn=warnings.append)
    assert cache.obtain("key", fill_tree).content == str(stored)
    assert "entry.json" in warnings[0]


def test_the_pulse_is_called_while_a_tree_is_compared(tmp_path: Path) -> None:
    store(tmp_path)

    def stop() -> None:
        raise InterruptedError

    cache = DataCache(str(tmp_path))
    with pytest.raises(InterruptedError):
        cache.find("key", stop)
    assert [entry.in_use for entry in cache.entries()] == [False]

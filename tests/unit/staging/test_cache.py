"""The data cache: one download for all, only complete entries, nothing removed that is in use."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outlast.node.staging.cache import data_cache, in_use
from outlast.node.staging.cache.data_cache import CacheFull, DataCache, LockLost
from outlast.node.staging.cache.entry import write_entry
from outlast.node.staging.cache.fetch_lock import FetchLock
from outlast.node.staging.errors import ErrorKind, FetchFailed, SourceError

#: A forked process starts with the modules that this one has imported.
forked = multiprocessing.get_context("fork")


def fill_with(content: bytes) -> data_cache.Fill:
    def fill(place: str, pulse: Callable[[], None]) -> None:
        pulse()
        Path(place, "content").write_bytes(content)
        write_entry(place, len(content), "https://example.org/data")

    return fill


def put(cache: DataCache, key: str, size: int = 10, used: float = 0.0) -> None:
    cache.obtain(key, fill_with(b"x" * size)).release()
    if used:
        os.utime(os.path.join(cache.root, "objects", key), (used, used))


def keys(cache: DataCache) -> list[str]:
    return [entry.key for entry in cache.entries()]


def test_an_existing_entry_is_not_fetched_again(tmp_path: Path) -> None:
    cache = DataCache(str(tmp_path))
    put(cache, "sha256-a")

    def never(place: str, pulse: Callable[[], None]) -> None:
        pytest.fail("the entry exists")

    held = cache.obtain("sha256-a", never)
    assert Path(held.content).read_bytes() == b"x" * 10


def test_only_one_of_many_processes_fetches_an_entry(tmp_path: Path) -> None:
    count = tmp_path / "count"

    def obtain() -> None:
        def fill(place: str, pulse: Callable[[], None]) -> None:
            with count.open("a") as file:
                file.write("one\n")
            time.sleep(0.3)  # long enough for all others to start waiting
            fill_with(b"data")(place, pulse)

        held = DataCache(str(tmp_path / "cache")).obtain("key", fill)
        assert Path(held.content).read_bytes() == b"data"

    processes = [forked.Process(target=obtain) for _ in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0] * 8
    assert count.read_text() == "one\n"


def test_the_next_process_resumes_what_a_killed_one_has_left(tmp_path: Path) -> None:
    begun = forked.Event()

    def killed_half_way() -> None:
        def fill(place: str, pulse: Callable[[], None]) -> None:
            Path(place, "half").write_bytes(b"half")
            begun.set()
            time.sleep(60)

        DataCache(str(tmp_path)).obtain("key", fill)

    process = forked.Process(target=killed_half_way)
    process.start()
    assert begun.wait(30)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(30)
    found = []

    def resume(place: str, pulse: Callable[[], None]) -> None:
        found.append(Path(place, "half").read_bytes())
        Path(place, "half").rename(Path(place, "content"))
        write_entry(place, 4, "somewhere")

    held = DataCache(str(tmp_path)).obtain("key", resume)
    assert found == [b"half"]
    assert Path(held.content).read_bytes() == b"half"


def test_a_failed_fill_leaves_no_entry_and_releases_the_lock(tmp_path: Path) -> None:
    cache = DataCache(str(tmp_path))

    def fail(place: str, pulse: Callable[[], None]) -> None:
        Path(place, "content").write_bytes(b"not yet verified")
        raise ConnectionError

    with pytest.raises(ConnectionError):
        cache.obtain("key", fail)
    assert cache.find("key") is None
    assert keys(cache) == []
    put(cache, "key")
    assert keys(cache) == ["key"]


def test_a_file_that_was_changed_since_it_came_is_fetched_again(tmp_path: Path) -> None:
    cache = DataCache(str(tmp_path))
    put(cache, "key")
    content = tmp_path / f"of-{os.getuid()}" / "objects" / "key" / "content"
    content.chmod(0o644)
    content.write_bytes(b"y" * 10)
    os.utime(content, (1.0, 1.0))
    assert cache.find("key") is None
    held = cache.obtain("key", fill_with(b"right"))
    assert Path(held.content).read_bytes() == b"right"


def test_the_least_recently_used_entry_is_removed_first_and_no_more_than_necessary(tmp_path: Path) -> None:
    cache = DataCache(str(tmp_path), limit=100)
    for age, key in enumerate(["newest", "middle", "oldest"]):
        put(cache, key, 30, used=time.time() - 1000 * (age + 1))
    cache.make_room(40)
    assert keys(cache) == ["middle", "newest"]


def test_an_entry_in_use_is_never_removed_and_the_error_names_the_reason(tmp_path: Path) -> None:
    cache = DataCache(str(tmp_path), limit=100)
    put(cache, "used", 60)
    put(cache, "idle", 40)
    held = cache.find("used")
    assert held is not None
    with pytest.raises(CacheFull, match="in use"):
        cache.make_room(50)
    assert keys(cache) == ["used"]
    held.release()
    cache.make_room(50)
    assert keys(cache) == []


def test_a_marker_made_during_the_removal_restores_the_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = DataCache(str(tmp_path))
    put(cache, "key")
    (entry,) = cache.entries()
    rename = os.rename

    def mark_just_before(source: str, target: str, **directories: int) -> None:
        if target != "key":
            in_use.UseMarker(os.path.join(entry.path, "uses"))
        rename(source, target, **directories)

    monkeypatch.setattr(os, "rename", mark_just_before)
    assert not cache.remove(entry)
    monkeypatch.undo()
    assert keys(cache) == ["key"]


def test_the_marker_of_a_dead_process_is_ignored(tmp_path: Path) -> None:
    cache = DataCache(str(tmp_path))
    put(cache, "key")

    def use_and_die() -> None:
        assert DataCache(str(tmp_path)).find("key") is not None
        os._exit(0)

    process = forked.Process(target=use_and_die)
    process.start()
    process.join(30)
    (entry,) = cache.entries()
    assert not entry.in_use


def test_a_marker_of_another_host_is_live_while_it_is_touched(tmp_path: Path) -> None:
    cache = DataCache(str(tmp_path))
    put(cache, "key")
    marker = Path(cache.root, "objects", "key", "uses", "elsewhere.12.ab")
    marker.parent.mkdir(exist_ok=True)
    marker.touch()
    assert [entry.in_use for entry in cache.entries()] == [True]
    old = time.time() - 2 * in_use.STALE
    os.utime(marker, (old, old))
    assert [entry.in_use for entry in cache.entries()] == [False]


def test_unfinished_entries_are_removed_before_complete_ones(tmp_path: Path) -> None:
    cache = DataCache(str(tmp_path), limit=100)
    put(cache, "whole", 50)
    Path(cache.root, "arriving", "dead").mkdir()
    Path(cache.root, "arriving", "dead", ".part").write_bytes(b"1234")
    cache.make_room(60)
    assert cache.unfinished() == []


def test_a_directory_that_others_can_write_to_is_not_trusted(tmp_path: Path) -> None:
    own = tmp_path / f"of-{os.getuid()}"
    own.mkdir()
    own.chmod(0o777)
    with pytest.raises(PermissionError):
        DataCache(str(tmp_path))


def test_a_link_in_place_of_the_users_directory_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / f"of-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError):
        DataCache(str(tmp_path / "cache"))


def test_files_of_other_users_are_sources_and_links_are_not(tmp_path: Path) -> None:
    cache = DataCache(str(tmp_path))
    put(cache, "key")
    theirs = tmp_path / "of-99999" / "objects" / "key"
    theirs.mkdir(parents=True)
    assert cache.copies_of_other_users("key") == []
    (tmp_path / "diary").write_text("mine")
    (theirs / "content").symlink_to(tmp_path / "diary")
    assert cache.copies_of_other_users("key") == []
    (theirs / "content").unlink()
    (theirs / "content").write_bytes(b"rubbish")
    assert [source.name for source in cache.copies_of_other_users("key")] == [str(theirs / "content")]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_lock_of_another_host_is_taken_over_only_if_it_was_seen_not_to_be_refreshed(
    tmp_path: Path,
) -> None:
    path, clock = str(tmp_path / "lock"), Clock()
    theirs = FetchLock(path, host="elsewhere", clock=clock)
    assert theirs.acquire()
    # Simulates a file system on which hosts do not see the locks of each other.
    os.close(theirs._descriptor or -1)
    theirs._descriptor = None
    ours = FetchLock(path, host="here", clock=clock)
    assert not ours.acquire()
    clock.now = 50.0
    assert theirs.refresh()
    assert not ours.acquire()
    clock.now = 100.0
    assert not ours.acquire()
    clock.now = 111.0
    assert ours.acquire()
    # A holder that was only suspended learns of the takeover before it writes more.
    assert not theirs.refresh()
    theirs.release()
    assert ours.holder().host == "here"


def test_a_process_that_lost_the_lock_stops_filling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlast.node.staging.cache.fetch_lock.REFRESH_INTERVAL", 0.0)
    cache = DataCache(str(tmp_path))

    def lose_lock(place: str, pulse: Callable[[], None]) -> None:
        pulse()
        FetchLock(os.path.join(cache.root, "turns", "key"))._write_holder()
        pulse()
        pytest.fail("the fill must have stopped")

    with pytest.raises(LockLost):
        cache.obtain("key", lose_lock)


def test_a_waiting_process_reports_the_holder_and_can_be_interrupted(tmp_path: Path) -> None:
    cache = DataCache(str(tmp_path))
    lock = FetchLock(os.path.join(cache.root, "turns", "key"))
    assert lock.acquire()
    holders: list[str] = []

    def interrupt() -> None:
        if holders:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        cache.obtain("key", fill_with(b""), interrupt, holders.append)
    assert str(os.getpid()) in holders[0]
    lock.release()


@pytest.fixture
def beside_frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DataCache]:
    """Yield a cache in which a process that is frozen holds the lock of `key`."""
    monkeypatch.setattr(data_cache, "_FROZEN_AFTER", 0.0)
    cache = DataCache(str(tmp_path))
    frozen = FetchLock(os.path.join(cache.root, "turns", "key"))
    assert frozen.acquire()
    yield cache
    frozen.release()


def test_a_frozen_process_does_not_block_the_others_forever(beside_frozen: DataCache) -> None:
    held = beside_frozen.obtain("key", fill_with(b"own"))
    assert Path(held.content).read_bytes() == b"own"
    assert beside_frozen.unfinished() == []


def test_processes_that_waited_for_one_that_gave_up_give_up_too_and_later_ones_try(tmp_path: Path) -> None:
    waiting, tried = forked.Semaphore(0), tmp_path / "tried"

    def give_up(place: str, pulse: Callable[[], None]) -> None:
        with tried.open("a") as file:
            file.write("one\n")
        assert waiting.acquire(timeout=30)
        assert waiting.acquire(timeout=30)
        raise FetchFailed("the source is gone", SourceError(ErrorKind.MISSING_FOR_NOW, "gone"))

    def obtain() -> None:
        holders: list[str] = []

        def wait(who: str) -> None:
            if not holders:
                waiting.release()
            holders.append(who)

        try:
            DataCache(str(tmp_path / "cache")).obtain("key", give_up, waiting=wait)
        except FetchFailed as failed:
            assert failed.cause.kind is ErrorKind.MISSING_FOR_NOW
            os._exit(7)

    processes = [forked.Process(target=obtain) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [7, 7, 7]
    assert tried.read_text() == "one\n"
    put(DataCache(str(tmp_path / "cache")), "key")


def test_users_who_can_read_the_cache_directory_can_read_its_entries(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o1777)
    (tmp_path / "private").mkdir(mode=0o700)
    for name, mode in (("open", 0o755), ("private", 0o700)):
        cache = DataCache(str(tmp_path / name))
        put(cache, "key")
        for place in (cache.root, *(os.path.join(cache.root, "objects", below) for below in ("", "key"))):
            assert Path(place).stat().st_mode & 0o777 == mode


def test_an_entry_in_use_is_not_moved_even_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = DataCache(str(tmp_path))
    put(cache, "key")
    (entry,) = cache.entries()
    held = cache.find("key")
    assert held is not None
    monkeypatch.setattr(os, "rename", lambda *args, **more: pytest.fail("the entry was moved"))
    assert not cache.remove(entry)


def test_the_pulse_is_called_while_a_tree_is_removed(tmp_path: Path) -> None:
    cache = DataCache(str(tmp_path), limit=1000)

    def fill(place: str, pulse: Callable[[], None]) -> None:
        Path(place, "content").mkdir()
        for number in range(50):
            Path(place, "content", str(number)).touch()
        Path(place, "content", "link").symlink_to("/etc")
        write_entry(place, 900, "")

    cache.obtain("tree", fill).release()
    pulses: list[int] = []
    cache.make_room(500, lambda: pulses.append(1))
    assert keys(cache) == []
    assert len(pulses) > 50
    assert list(Path(cache.root, "doomed").iterdir()) == []


def test_room_is_made_on_a_disk_on_which_no_file_can_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = DataCache(str(tmp_path), limit=100)
    put(cache, "old", 90)
    real = os.open

    def full(path: str, flags: int, *rest: int, **more: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", full)
    cache.make_room(50)
    assert keys(cache) == []


def test_an_entry_fetched_beside_a_frozen_process_is_not_treated_as_abandoned(
    tmp_path: Path, beside_frozen: DataCache
) -> None:
    def fill(place: str, pulse: Callable[[], None]) -> None:
        assert DataCache(str(tmp_path)).drop_unfinished() == []
        fill_with(b"own")(place, pulse)

    assert Path(beside_frozen.obtain("key", fill).content).read_bytes() == b"own"


def test_a_marker_of_another_container_on_this_host_is_live_although_its_process_is_invisible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = DataCache(str(tmp_path))
    put(cache, "key")
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(in_use, "_namespace", lambda: "4026539999")
        elsewhere.setattr(os, "getpid", lambda: 2**22 + 1)
        held = cache.find("key")
    assert held is not None
    assert [entry.in_use for entry in cache.entries()] == [True]


def test_room_is_made_on_a_disk_that_runs_out_of_inodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = DataCache(str(tmp_path))
    for number in range(3):
        put(cache, "key%d" % number, used=1000.0 + number)
    real = os.statvfs

    def few(path: str) -> os.stat_result:
        left = [1, 5_000, 20_000, 20_000][3 - len(list(Path(cache.root, "objects").iterdir()))]
        fields = list(real(path))
        fields[5], fields[7] = 100_000_000, left
        return os.statvfs_result(fields)  # type: ignore[return-value]

    monkeypatch.setattr(os, "statvfs", few)
    cache.make_room(1)
    assert keys(cache) == ["key2"]

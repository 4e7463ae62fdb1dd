"""The cache of data: one download for all, nothing half, nothing removed that is in use."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outlast.node.staging.cache import data_cache as stores
from outlast.node.staging.cache import in_use
from outlast.node.staging.cache.data_cache import CacheFull, DataCache, LockLost
from outlast.node.staging.cache.entry import write_entry
from outlast.node.staging.cache.fetch_lock import FetchLock
from outlast.node.staging.errors import ErrorKind, FetchFailed, SourceError

#: A process that is forked begins with what this one has imported.
forked = multiprocessing.get_context("fork")


def fill_with(content: bytes) -> stores.Fill:
    def fill(place: str, pulse: Callable[[], None]) -> None:
        pulse()
        Path(place, "content").write_bytes(content)
        write_entry(place, len(content), "https://example.org/data")

    return fill


def put(store: DataCache, key: str, size: int = 10, used: float = 0.0) -> None:
    store.obtain(key, fill_with(b"x" * size)).release()
    if used:
        os.utime(os.path.join(store.root, "objects", key), (used, used))


def keys(store: DataCache) -> list[str]:
    return [entry.key for entry in store.entries()]


def test_what_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    store = DataCache(str(tmp_path))
    put(store, "sha256-a")

    def never(place: str, pulse: Callable[[], None]) -> None:
        pytest.fail("it is there")

    held = store.obtain("sha256-a", never)
    assert Path(held.content).read_bytes() == b"x" * 10


def test_of_many_processes_that_want_it_at_once_one_fetches_it(tmp_path: Path) -> None:
    count = tmp_path / "count"

    def want() -> None:
        def fill(place: str, pulse: Callable[[], None]) -> None:
            with count.open("a") as file:
                file.write("one\n")
            time.sleep(0.3)  # long enough for all the others to come and wait
            fill_with(b"data")(place, pulse)

        held = DataCache(str(tmp_path / "cache")).obtain("key", fill)
        assert Path(held.content).read_bytes() == b"data"

    processes = [forked.Process(target=want) for _ in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0] * 8
    assert count.read_text() == "one\n"


def test_the_next_one_goes_on_with_what_a_killed_one_has_left(tmp_path: Path) -> None:
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

    def go_on(place: str, pulse: Callable[[], None]) -> None:
        found.append(Path(place, "half").read_bytes())
        Path(place, "half").rename(Path(place, "content"))
        write_entry(place, 4, "somewhere")

    held = DataCache(str(tmp_path)).obtain("key", go_on)
    assert found == [b"half"]
    assert Path(held.content).read_bytes() == b"half"


def test_a_fill_that_fails_leaves_nothing_that_looks_whole_and_the_turn_to_the_next(tmp_path: Path) -> None:
    store = DataCache(str(tmp_path))

    def fail(place: str, pulse: Callable[[], None]) -> None:
        Path(place, "content").write_bytes(b"not yet checked")
        raise ConnectionError

    with pytest.raises(ConnectionError):
        store.obtain("key", fail)
    assert store.find("key") is None
    assert keys(store) == []
    put(store, "key")
    assert keys(store) == ["key"]


def test_a_file_that_was_changed_since_it_came_is_fetched_again(tmp_path: Path) -> None:
    store = DataCache(str(tmp_path))
    put(store, "key")
    content = tmp_path / f"of-{os.getuid()}" / "objects" / "key" / "content"
    content.write_bytes(b"y" * 10)
    os.utime(content, (1.0, 1.0))
    assert store.find("key") is None
    held = store.obtain("key", fill_with(b"right"))
    assert Path(held.content).read_bytes() == b"right"


def test_the_one_unused_for_longest_goes_first_and_only_as_many_as_need_be(tmp_path: Path) -> None:
    store = DataCache(str(tmp_path), limit=100)
    for age, key in enumerate(["newest", "middle", "oldest"]):
        put(store, key, 30, used=time.time() - 1000 * (age + 1))
    store.make_room(40)
    assert keys(store) == ["middle", "newest"]


def test_nothing_in_use_is_ever_removed_and_the_error_says_so(tmp_path: Path) -> None:
    store = DataCache(str(tmp_path), limit=100)
    put(store, "used", 60)
    put(store, "idle", 40)
    held = store.find("used")
    assert held is not None
    with pytest.raises(CacheFull, match="in use"):
        store.make_room(50)
    assert keys(store) == ["used"]
    held.release()
    store.make_room(50)
    assert keys(store) == []


def test_a_mark_made_while_the_entry_was_being_removed_brings_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DataCache(str(tmp_path))
    put(store, "key")
    (entry,) = store.entries()
    rename = os.rename

    def marked_just_before(source: str, goal: str) -> None:
        if "doomed" in str(goal):
            in_use.UseMarker(os.path.join(source, "uses"))
        rename(source, goal)

    monkeypatch.setattr(os, "rename", marked_just_before)
    assert not store.remove(entry)
    monkeypatch.undo()
    assert keys(store) == ["key"]


def test_the_mark_of_a_dead_process_does_not_count(tmp_path: Path) -> None:
    store = DataCache(str(tmp_path))
    put(store, "key")

    def use_and_die() -> None:
        assert DataCache(str(tmp_path)).find("key") is not None
        os._exit(0)

    process = forked.Process(target=use_and_die)
    process.start()
    process.join(30)
    (entry,) = store.entries()
    assert not entry.in_use


def test_a_mark_of_another_host_counts_while_it_is_touched(tmp_path: Path) -> None:
    store = DataCache(str(tmp_path))
    put(store, "key")
    mark = Path(store.root, "objects", "key", "uses", "elsewhere.12.ab")
    mark.parent.mkdir(exist_ok=True)
    mark.touch()
    assert [entry.in_use for entry in store.entries()] == [True]
    old = time.time() - 2 * in_use.STALE
    os.utime(mark, (old, old))
    assert [entry.in_use for entry in store.entries()] == [False]


def test_what_was_given_up_half_way_goes_before_anything_whole(tmp_path: Path) -> None:
    store = DataCache(str(tmp_path), limit=100)
    put(store, "whole", 50)
    Path(store.root, "arriving", "dead").mkdir()
    Path(store.root, "arriving", "dead", ".part").write_bytes(b"1234")
    store.make_room(60)
    assert store.arriving() == []


def test_a_directory_that_others_can_write_to_is_not_trusted(tmp_path: Path) -> None:
    own = tmp_path / f"of-{os.getuid()}"
    own.mkdir()
    own.chmod(0o777)
    with pytest.raises(PermissionError):
        DataCache(str(tmp_path))


def test_a_link_in_the_place_of_our_directory_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / f"of-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError):
        DataCache(str(tmp_path / "cache"))


def test_what_other_users_have_is_a_source_to_be_checked_and_links_are_none(tmp_path: Path) -> None:
    store = DataCache(str(tmp_path))
    put(store, "key")
    theirs = tmp_path / "of-99999" / "objects" / "key"
    theirs.mkdir(parents=True)
    assert store.of_others("key") == []
    (theirs / "content").symlink_to("/etc/passwd")
    assert store.of_others("key") == []
    (theirs / "content").unlink()
    (theirs / "content").write_bytes(b"rubbish")
    assert store.of_others("key") == [str(theirs / "content")]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_turn_of_another_host_is_taken_over_only_when_its_count_stood_still_while_we_looked(
    tmp_path: Path,
) -> None:
    path, clock = str(tmp_path / "turn"), Clock()
    theirs = FetchLock(path, host="elsewhere", clock=clock)
    assert theirs.take()
    # As where the lock of one host is not seen by another.
    os.close(theirs._descriptor or -1)
    theirs._descriptor = None
    ours = FetchLock(path, host="here", clock=clock)
    assert not ours.take()
    clock.now = 50.0
    assert theirs.beat()
    assert not ours.take()
    clock.now = 100.0
    assert not ours.take()
    clock.now = 111.0
    assert ours.take()
    # Who was only frozen finds out before it writes on.
    assert not theirs.beat()
    theirs.release()
    assert ours.holder().host == "here"


def test_who_has_lost_the_turn_stops_filling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlast.node.staging.cache.fetch_lock.BEAT", 0.0)
    store = DataCache(str(tmp_path))

    def robbed(place: str, pulse: Callable[[], None]) -> None:
        pulse()
        FetchLock(os.path.join(store.root, "turns", "key"))._tell()
        pulse()
        pytest.fail("it must have stopped")

    with pytest.raises(LockLost):
        store.obtain("key", robbed)


def test_whoever_waits_hears_for_whom_and_can_be_interrupted(tmp_path: Path) -> None:
    store = DataCache(str(tmp_path))
    turn = FetchLock(os.path.join(store.root, "turns", "key"))
    assert turn.take()
    heard = []

    def impatient() -> None:
        if heard:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        store.obtain("key", fill_with(b""), impatient, heard.append)
    assert str(os.getpid()) in heard[0]
    turn.release()


@pytest.fixture
def beside_frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DataCache]:
    """A store in which somebody has the turn for `key`, and stands still."""
    monkeypatch.setattr(stores, "_FROZEN", 0.0)
    store = DataCache(str(tmp_path))
    frozen = FetchLock(os.path.join(store.root, "turns", "key"))
    assert frozen.take()
    yield store
    frozen.release()


def test_a_frozen_filler_does_not_keep_the_others_for_ever(beside_frozen: DataCache) -> None:
    held = beside_frozen.obtain("key", fill_with(b"own"))
    assert Path(held.content).read_bytes() == b"own"
    assert beside_frozen.arriving() == []


def test_who_waited_for_one_that_gave_up_gives_up_too_and_who_comes_later_tries(tmp_path: Path) -> None:
    waiting, tried = forked.Semaphore(0), tmp_path / "tried"

    def give_up(place: str, pulse: Callable[[], None]) -> None:
        with tried.open("a") as file:
            file.write("one\n")
        assert waiting.acquire(timeout=30)
        assert waiting.acquire(timeout=30)
        raise FetchFailed("the source is gone", SourceError(ErrorKind.MISSING_FOR_NOW, "gone"))

    def want() -> None:
        heard: list[str] = []

        def wait(who: str) -> None:
            if not heard:
                waiting.release()
            heard.append(who)

        try:
            DataCache(str(tmp_path / "cache")).obtain("key", give_up, waiting=wait)
        except FetchFailed as given_up:
            assert given_up.trouble.kind is ErrorKind.MISSING_FOR_NOW
            os._exit(7)

    processes = [forked.Process(target=want) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [7, 7, 7]
    assert tried.read_text() == "one\n"
    put(DataCache(str(tmp_path / "cache")), "key")


def test_who_may_read_in_the_cache_may_read_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o1777)
    (tmp_path / "private").mkdir(mode=0o700)
    for name, mode in (("open", 0o755), ("private", 0o700)):
        store = DataCache(str(tmp_path / name))
        put(store, "key")
        for place in (store.root, *(os.path.join(store.root, "objects", below) for below in ("", "key"))):
            assert Path(place).stat().st_mode & 0o777 == mode


def test_what_is_in_use_is_where_it_was_at_every_moment_of_making_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DataCache(str(tmp_path))
    put(store, "key")
    (entry,) = store.entries()
    held = store.find("key")
    assert held is not None
    monkeypatch.setattr(os, "rename", lambda *args: pytest.fail("it was away for a moment"))
    assert not store.remove(entry)


def test_the_pulse_is_heard_while_a_tree_is_removed(tmp_path: Path) -> None:
    store = DataCache(str(tmp_path), limit=1000)

    def fill(place: str, pulse: Callable[[], None]) -> None:
        Path(place, "content").mkdir()
        for number in range(50):
            Path(place, "content", str(number)).touch()
        Path(place, "content", "link").symlink_to("/etc")
        write_entry(place, 900, "")

    store.obtain("tree", fill).release()
    beats: list[int] = []
    store.make_room(500, lambda: beats.append(1))
    assert keys(store) == []
    assert len(beats) > 50
    assert list(Path(store.root, "doomed").iterdir()) == []


def test_room_is_made_where_not_even_an_empty_file_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DataCache(str(tmp_path), limit=100)
    put(store, "old", 90)
    real = os.open

    def full(path: str, flags: int, *rest: int, **more: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", full)
    store.make_room(50)
    assert keys(store) == []


def test_what_is_fetched_beside_a_frozen_filler_is_not_taken_for_abandoned(
    tmp_path: Path, beside_frozen: DataCache
) -> None:
    def fill(place: str, pulse: Callable[[], None]) -> None:
        assert DataCache(str(tmp_path)).drop_unfinished() == []
        fill_with(b"own")(place, pulse)

    assert Path(beside_frozen.obtain("key", fill).content).read_bytes() == b"own"


def test_a_process_in_another_container_of_this_host_counts_although_it_cannot_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DataCache(str(tmp_path))
    put(store, "key")
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(in_use, "_namespace", lambda: "4026539999")
        elsewhere.setattr(os, "getpid", lambda: 2**22 + 1)
        held = store.find("key")
    assert held is not None
    assert [entry.in_use for entry in store.entries()] == [True]


def test_room_is_made_where_files_are_what_the_disk_can_have_no_more_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DataCache(str(tmp_path))
    for number in range(3):
        put(store, "key%d" % number, used=1000.0 + number)
    real = os.statvfs

    def few(path: str) -> os.stat_result:
        left = [1, 5_000, 20_000, 20_000][3 - len(list(Path(store.root, "objects").iterdir()))]
        fields = list(real(path))
        fields[5], fields[7] = 100_000_000, left
        return os.statvfs_result(fields)  # type: ignore[return-value]

    monkeypatch.setattr(os, "statvfs", few)
    store.make_room(1)
    assert keys(store) == ["key2"]

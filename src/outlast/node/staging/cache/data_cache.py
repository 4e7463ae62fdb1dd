"""Data that has arrived, kept under its digest for whoever wants it next: on a node, or on shared scratch.

    objects/KEY/content     a file, or a tree of files; whole, since it came there by one rename
    objects/KEY/entry.json  its size and where it came from
    objects/KEY/uses/       marks of the jobs that have it in use
    arriving/KEY/           what is still under way, and stays there for the next process if this one dies
    turns/KEY               who fetches it now; all others wait, and take over when that one is gone
    doomed/                 what is being removed
    notes/                  files elsewhere that were found to be the right ones

Everything of one user lies below a directory of their own: nobody has to trust what another has written.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import time
from dataclasses import dataclass
from typing import Callable

from outlast.node import files
from outlast.node.pulse import silent
from outlast.node.staging.cache import in_use
from outlast.node.staging.cache.entry import free_space, is_whole, read_entry, read_json, size_of
from outlast.node.staging.cache.fetch_lock import FetchLock
from outlast.node.staging.errors import ErrorKind, FetchFailed, SourceError

#: Seconds between two looks at what somebody else is fetching.
_GLANCE = 0.5
#: Somebody who has the turn and has not counted for so long is frozen; we fetch it for ourselves.
_FROZEN = 600.0
#: With fewer left than this, and less than a hundredth of all, room is made.
_INODES = 10_000
_OWN = "of-"
#: Beside a turn: why the one who had it last gave up.
_GAVE_UP = ".gave-up"


class CacheFull(OSError):
    """The disk has too little space, and nothing is left that could go."""


class LockLost(Exception):
    """Somebody else has taken over what this process was fetching."""


@dataclass(frozen=True)
class CacheEntry:
    key: str
    path: str
    size: int
    source: str
    #: When it was last taken into use, by the file system's clock.
    used: float
    in_use: bool


@dataclass(frozen=True)
class UnfinishedEntry:
    key: str
    size: int
    #: Who fetches it, or did last; empty: nobody says so.
    by: str


@dataclass(frozen=True)
class HeldEntry:
    """An entry in use. `content` stays where it is until `release`."""

    content: str
    mark: in_use.UseMarker

    def release(self) -> None:
        self.mark.remove()


#: Makes `content` and, by `write_entry`, `entry.json` in the directory given, and calls the pulse it is given
#: at least every few seconds. What it leaves behind when it raises stays there for the next one.
Fill = Callable[[str, Callable[[], None]], None]


class DataCache:
    """`limit`: the most bytes that its entries may have together; None for what the disk allows."""

    def __init__(self, root: str, limit: int | None = None) -> None:
        self._shared = root
        self.root = os.path.join(root, f"{_OWN}{os.getuid()}")
        self._limit = limit
        os.makedirs(root, exist_ok=True)
        # Who may read in the cache may read what is in it.
        self._mode = stat.S_IMODE(os.stat(root).st_mode) & 0o755 | 0o700
        for place in (
            self.root,
            *(self._at(name) for name in ("objects", "arriving", "turns", "doomed", "notes")),
        ):
            with contextlib.suppress(FileExistsError):
                os.mkdir(place, self._mode)
        status = os.lstat(self.root)
        if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o022:
            raise PermissionError(errno.EACCES, "it is not a directory that only we can write to", self.root)

    def of_others(self, key: str) -> list[str]:
        """Files that other users have under this key: sources as any other, to be checked as any other."""
        found = []
        for name in sorted(os.listdir(self._shared)):
            path = os.path.join(self._shared, name, "objects", key, "content")
            with contextlib.suppress(OSError):  # theirs to show or to hide
                if (
                    name.startswith(_OWN)
                    and stat.S_ISREG(os.lstat(path).st_mode)
                    and os.access(path, os.R_OK)
                ):
                    found.append(path)
        return [path for path in found if not path.startswith(os.path.join(self.root, ""))]

    def find(self, key: str) -> HeldEntry | None:
        """The entry, marked as in use; None where there is none."""
        place = self._at("objects", key)
        for _ in range(10):
            try:
                before = os.lstat(place)
                mark = in_use.UseMarker(os.path.join(place, "uses"))
            except FileNotFoundError:
                return None
            # It may have been on its way out when it was marked.
            with contextlib.suppress(FileNotFoundError):
                if os.lstat(place).st_ino == before.st_ino and is_whole(place):
                    with contextlib.suppress(OSError):  # only the order in which entries go depends on it
                        os.utime(place)
                    return HeldEntry(os.path.join(place, "content"), mark)
            mark.remove()
            time.sleep(0.05)
        return None

    def obtain(
        self,
        key: str,
        fill: Fill,
        pulse: Callable[[], None] = silent,
        waiting: Callable[[str], None] = lambda who: None,
    ) -> HeldEntry:
        """The entry; where it is not there yet, one fills it while all others wait for that one.

        `waiting` is told who that is. Where that one gives up for want of a source, so do all who waited for
        it: their turns would only be as long. If it fails in another way the next one in the line tries.
        """
        turn = FetchLock(self._at("turns", key))
        try:
            place, waited_for = self._at("arriving", key), ""
            while True:
                held = self.find(key)
                if held is not None:
                    return held
                if turn.take():
                    break
                if turn.silence() >= _FROZEN:
                    name = "%s.%s" % (key, os.urandom(4).hex())
                    turn.release()
                    turn, place = FetchLock(self._at("turns", name)), self._at("arriving", name)
                    turn.take()
                    break
                holder = turn.holder()
                waited_for = holder.mark or waited_for
                waiting(str(holder) or "another job")
                pulse()
                time.sleep(_GLANCE)
            held = self.find(key)  # it may have come between the look and the turn
            if held is not None:
                return held
            self._raise_if_given_up(key, waited_for)
            os.makedirs(place, mode=0o700, exist_ok=True)
            try:
                fill(place, lambda: _keep(turn, pulse))
            except FetchFailed as given_up:
                self._tell_given_up(key, turn.mark, given_up)
                raise
            self._publish(place, key)
        finally:
            turn.release()
        held = self.find(key)
        if held is None:
            raise FileNotFoundError(f"{self._at('objects', key)} was removed as soon as it was there")
        return held

    def note_of(self, path: str) -> str:
        """Where to remember what was found out about a file that is not in the store."""
        return self._at("notes", hashlib.sha256(os.fsencode(path)).hexdigest())

    def make_room(self, need: int, pulse: Callable[[], None] = silent) -> None:
        """What was used longest ago goes until `need` bytes fit; never what is in use. Raises NoRoom."""
        self._sweep(pulse)
        entries = self.entries()
        held = sum(entry.size for entry in entries)
        if not self._fits(need, held):
            self.drop_unfinished(pulse)
        for entry in entries:
            pulse()
            if self._fits(need, held):
                return
            if not entry.in_use and self.remove(entry, pulse):
                held -= entry.size
        if not self._fits(need, held):
            raise CacheFull(
                errno.ENOSPC,
                "%s more are needed, %s are free, and all that is kept there is in use"
                % (_bytes(need), _bytes(free_space(self.root))),
                self.root,
            )

    def remove(self, entry: CacheEntry, pulse: Callable[[], None] = silent) -> bool:
        """False: somebody has it in use."""
        if self._is_in_use(entry.path):
            return False
        doomed = self._doom(entry.path)
        # Whoever marked it just before must not lose it; whoever comes after does not find it.
        if doomed and self._is_in_use(doomed):
            with contextlib.suppress(OSError):
                os.rename(doomed, entry.path)
            return False
        self._sweep(pulse)
        return bool(doomed)

    def entries(self) -> list[CacheEntry]:
        """The one that was used longest ago first."""
        now = in_use.clock_of(self.root)
        found = []
        for key in os.listdir(self._at("objects")):
            place = self._at("objects", key)
            with contextlib.suppress(FileNotFoundError):
                used = os.lstat(place).st_mtime
                size, source = read_entry(place)
                is_used = in_use.in_use(os.path.join(place, "uses"), now)
                found.append(CacheEntry(key, place, size, source, used, is_used))
        return sorted(found, key=lambda entry: (entry.used, entry.key))

    def arriving(self) -> list[UnfinishedEntry]:
        found = []
        for key in sorted(os.listdir(self._at("arriving"))):
            holder = FetchLock(self._at("turns", key)).holder()
            found.append(UnfinishedEntry(key, size_of(self._at("arriving", key)), str(holder)))
        return found

    def _tell_given_up(self, key: str, mark: str, given_up: FetchFailed) -> None:
        told = {"mark": mark, "kind": given_up.trouble.kind.value, "detail": str(given_up)}
        path = self._at("turns", key + _GAVE_UP)
        # If it cannot be written, each finds out for itself.
        with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as file:
            json.dump(told, file)

    def _raise_if_given_up(self, key: str, waited_for: str) -> None:
        told = read_json(self._at("turns", key + _GAVE_UP))
        if waited_for and told.get("mark") == waited_for:
            detail = "%s (as another job that wanted it found out)" % told.get("detail")
            raise FetchFailed(detail, SourceError(ErrorKind(told.get("kind")), detail))

    def _at(self, *names: str) -> str:
        return os.path.join(self.root, *names)

    def _publish(self, place: str, key: str) -> None:
        os.chmod(place, self._mode)
        files.sync_directory(place)
        goal = self._at("objects", key)
        if os.path.isdir(goal):
            # Another's, as good as ours; or one that was changed since it came.
            self._doom(place if is_whole(goal) else goal)
        if os.path.isdir(place):
            os.rename(place, goal)
        files.sync_directory(self._at("objects"))

    def drop_unfinished(self, pulse: Callable[[], None] = silent) -> list[UnfinishedEntry]:
        """What was begun by somebody who is gone, while nobody else can begin to go on with it."""
        dropped = []
        for key in sorted(os.listdir(self._at("arriving"))):
            turn, place = FetchLock(self._at("turns", key)), self._at("arriving", key)
            begun_by = str(turn.holder())
            try:
                if turn.take():
                    dropped.append(UnfinishedEntry(key, size_of(place, pulse), begun_by))
                    self._doom(place)
            finally:
                turn.release()
        self._sweep(pulse)
        return dropped

    def _fits(self, need: int, held: int) -> bool:
        if self._limit is not None and held + need > self._limit:
            return False
        return free_space(self.root) >= need and _has_inodes(self.root)

    def _is_in_use(self, place: str) -> bool:
        return in_use.in_use(os.path.join(place, "uses"), in_use.clock_of(self.root))

    def _doom(self, place: str) -> str:
        goal = self._at("doomed", "%s.%s" % (os.path.basename(place), os.urandom(6).hex()))
        try:
            os.rename(place, goal)
        except FileNotFoundError:
            return ""
        return goal

    def _sweep(self, pulse: Callable[[], None]) -> None:
        """Remove what is doomed, which may be a million files: the pulse is heard for each."""
        for place, folders, names in os.walk(self._at("doomed"), topdown=False):
            # Links to folders count as folders here; those that are some are gone already.
            for name in (*names, *folders):
                pulse()
                # Another process may be sweeping as well; what cannot be removed is tried again next time.
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(place, name))
            if place != self._at("doomed"):
                with contextlib.suppress(OSError):
                    os.rmdir(place)


def _keep(turn: FetchLock, pulse: Callable[[], None]) -> None:
    if not turn.beat():
        raise LockLost("this process stood still for so long that another one fetches the data now")
    pulse()


def _has_inodes(path: str) -> bool:
    """How many files an archive has shows only when they are unpacked: some must be possible."""
    status = os.statvfs(path)
    # A file system that makes inodes as it needs them says 0.
    return not status.f_files or status.f_favail >= min(_INODES, status.f_files // 100)


def _bytes(number: int) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000:
            return "%.3g %s" % (number, unit)
        number //= 1000
    return "%d TB" % number

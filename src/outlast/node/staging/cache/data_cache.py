"""Staged data, kept under its digest for later attempts: on the disk of a node, or on shared scratch.

    objects/KEY/content     a file or a tree of files; always complete, since it was moved there by one rename
    objects/KEY/entry.json  its size and its source
    objects/KEY/uses/       markers of the jobs that use it
    arriving/KEY/           an unfinished entry; if its process dies, the next one resumes it
    turns/KEY               the lock of the process that fetches it; all others wait and take over if it dies
    doomed/                 entries that are being removed
    notes/                  records of files outside the cache that have been verified

Each user has a directory of their own, so that nobody has to trust what another user has written.
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
from outlast.node.pulse import no_pulse
from outlast.node.quantities import show_size
from outlast.node.staging.cache import in_use
from outlast.node.staging.cache.entry import free_space, is_intact, read_entry, read_json, total_size
from outlast.node.staging.cache.fetch_lock import FetchLock
from outlast.node.staging.errors import ErrorKind, FetchFailed, SourceError

#: Seconds between two polls of an entry that another process is fetching.
_POLL_INTERVAL = 0.5
#: Seconds without a refresh after which the lock's holder counts as frozen, and this process fetches a copy.
_FROZEN_AFTER = 600.0
#: With fewer free inodes than this, and fewer than a hundredth of all, entries are removed.
_MIN_FREE_INODES = 10_000
_USER_PREFIX = "of-"
#: Suffix of the file beside a lock that records why its last holder gave up.
_GAVE_UP = ".gave-up"


class CacheFull(OSError):
    """The disk has too little space, and no entry is left that could be removed."""


class LockLost(Exception):
    """Another process has taken over the fetch of this process."""


@dataclass(frozen=True)
class CacheEntry:
    """A complete entry."""

    key: str
    path: str
    size: int
    source: str
    #: When it was last taken into use, by the file system's clock.
    used: float
    in_use: bool


@dataclass(frozen=True)
class UnfinishedEntry:
    """An entry whose fetch is running or was interrupted."""

    key: str
    size: int
    #: The process that fetches it, or did last; empty if unknown.
    by: str


@dataclass(frozen=True)
class HeldEntry:
    """An entry in use. `content` is not removed before `release`."""

    content: str
    marker: in_use.UseMarker

    def release(self) -> None:
        self.marker.remove()


#: Creates `content` and, with `write_entry`, `entry.json` in the given directory, calling the given pulse at
#: least every few seconds. Files that it leaves behind when it raises are kept for the next attempt.
Fill = Callable[[str, Callable[[], None]], None]


class DataCache:
    """The cache of this user in the directory `root`, which users may share.

    `limit` is the maximum size of all entries in bytes; None leaves it to the disk.
    """

    def __init__(self, root: str, limit: int | None = None) -> None:
        """Raises PermissionError if this user's directory in `root` could be written by others."""
        self._shared_root = root
        self.root = os.path.join(root, f"{_USER_PREFIX}{os.getuid()}")
        self._limit = limit
        os.makedirs(root, exist_ok=True)
        # Users who can read the cache directory can read its entries.
        self._mode = stat.S_IMODE(os.stat(root).st_mode) & 0o755 | 0o700
        for place in (
            self.root,
            *(self._at(name) for name in ("objects", "arriving", "turns", "doomed", "notes")),
        ):
            with contextlib.suppress(FileExistsError):
                os.mkdir(place, self._mode)
        status = os.lstat(self.root)
        if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o022:
            raise PermissionError(errno.EACCES, "not a directory that only its owner can write to", self.root)

    def copies_of_other_users(self, key: str) -> list[str]:
        """Return the files that other users have under this key. They are unverified sources."""
        found = []
        for name in sorted(os.listdir(self._shared_root)):
            path = os.path.join(self._shared_root, name, "objects", key, "content")
            with contextlib.suppress(OSError):  # other users decide what can be read
                if (
                    name.startswith(_USER_PREFIX)
                    and stat.S_ISREG(os.lstat(path).st_mode)
                    and os.access(path, os.R_OK)
                ):
                    found.append(path)
        return [path for path in found if not path.startswith(os.path.join(self.root, ""))]

    def find(self, key: str) -> HeldEntry | None:
        """Return the entry, marked as in use, or None if there is none or its file was modified."""
        place = self._at("objects", key)
        for _ in range(10):
            try:
                before = os.lstat(place)
                marker = in_use.UseMarker(os.path.join(place, "uses"))
            except FileNotFoundError:
                return None
            # Another process may have been removing the entry while it was marked.
            with contextlib.suppress(FileNotFoundError):
                if os.lstat(place).st_ino == before.st_ino and is_intact(place):
                    with contextlib.suppress(OSError):  # the time only decides the order of eviction
                        os.utime(place)
                    return HeldEntry(os.path.join(place, "content"), marker)
            marker.remove()
            time.sleep(0.05)
        return None

    def obtain(
        self,
        key: str,
        fill: Fill,
        pulse: Callable[[], None] = no_pulse,
        waiting: Callable[[str], None] = lambda who: None,
    ) -> HeldEntry:
        """Return the entry, marked as in use; if it is missing, one process fills it while the others wait.

        `waiting` is called with the name of that process. If it gives up with `FetchFailed`, so do all that
        waited for it, since each would need as long to fail. After any other error the next process tries.
        """
        lock = FetchLock(self._at("turns", key))
        try:
            place, waited_for = self._at("arriving", key), ""
            while True:
                held = self.find(key)
                if held is not None:
                    return held
                if lock.acquire():
                    break
                if lock.is_stale(_FROZEN_AFTER):
                    name = "%s.%s" % (key, os.urandom(4).hex())
                    lock.release()
                    lock, place = FetchLock(self._at("turns", name)), self._at("arriving", name)
                    lock.acquire()
                    break
                holder = lock.holder()
                waited_for = holder.owner_id or waited_for
                waiting(str(holder) or "another job")
                pulse()
                time.sleep(_POLL_INTERVAL)
            held = self.find(key)  # it may have been completed just before the lock was acquired
            if held is not None:
                return held
            self._raise_if_given_up(key, waited_for)
            os.makedirs(place, mode=0o700, exist_ok=True)
            try:
                fill(place, lambda: _refresh(lock, pulse))
            except FetchFailed as failed:
                self._record_given_up(key, lock.owner_id, failed)
                raise
            self._add(place, key)
        finally:
            lock.release()
        held = self.find(key)
        if held is None:
            raise FileNotFoundError(f"{self._at('objects', key)} was removed as soon as it was complete")
        return held

    def verification_record(self, path: str) -> str:
        """Return the path of the record about a file outside the cache."""
        return self._at("notes", hashlib.sha256(os.fsencode(path)).hexdigest())

    def make_room(self, need: int, pulse: Callable[[], None] = no_pulse) -> None:
        """Remove unfinished and then the least recently used entries until `need` bytes fit.

        Entries in use are never removed. Raises CacheFull.
        """
        self._sweep(pulse)
        entries = self.entries()
        total = sum(entry.size for entry in entries)
        if not self._fits(need, total):
            self.drop_unfinished(pulse)
        for entry in entries:
            pulse()
            if self._fits(need, total):
                return
            if not entry.in_use and self.remove(entry, pulse):
                total -= entry.size
        if not self._fits(need, total):
            raise CacheFull(
                errno.ENOSPC,
                "%s more are needed, %s are free, and every entry of the cache is in use"
                % (show_size(need), show_size(free_space(self.root))),
                self.root,
            )

    def remove(self, entry: CacheEntry, pulse: Callable[[], None] = no_pulse) -> bool:
        """Remove an entry. Return False if it is in use or already gone."""
        if self._is_in_use(entry.path):
            return False
        doomed = self._move_to_doomed(entry.path)
        # A process that marked it just before the rename must not lose it; later ones do not find it.
        if doomed and self._is_in_use(doomed):
            with contextlib.suppress(OSError):
                os.rename(doomed, entry.path)
            return False
        self._sweep(pulse)
        return bool(doomed)

    def entries(self) -> list[CacheEntry]:
        """Return all complete entries, the least recently used one first."""
        now = in_use.file_system_time(self.root)
        found = []
        for key in os.listdir(self._at("objects")):
            place = self._at("objects", key)
            with contextlib.suppress(FileNotFoundError):
                used = os.lstat(place).st_mtime
                size, source = read_entry(place)
                is_used = in_use.is_in_use(os.path.join(place, "uses"), now)
                found.append(CacheEntry(key, place, size, source, used, is_used))
        return sorted(found, key=lambda entry: (entry.used, entry.key))

    def unfinished(self) -> list[UnfinishedEntry]:
        """Return the entries that are being fetched or were interrupted, by key."""
        found = []
        for key in sorted(os.listdir(self._at("arriving"))):
            holder = FetchLock(self._at("turns", key)).holder()
            found.append(UnfinishedEntry(key, total_size(self._at("arriving", key)), str(holder)))
        return found

    def drop_unfinished(self, pulse: Callable[[], None] = no_pulse) -> list[UnfinishedEntry]:
        """Remove the unfinished entries that no process is fetching, and return them."""
        dropped = []
        for key in sorted(os.listdir(self._at("arriving"))):
            lock, place = FetchLock(self._at("turns", key)), self._at("arriving", key)
            begun_by = str(lock.holder())
            try:
                if lock.acquire():  # so that no other process can resume it meanwhile
                    dropped.append(UnfinishedEntry(key, total_size(place, pulse), begun_by))
                    self._move_to_doomed(place)
            finally:
                lock.release()
        self._sweep(pulse)
        return dropped

    def _record_given_up(self, key: str, owner_id: str, failed: FetchFailed) -> None:
        record = {"mark": owner_id, "kind": failed.cause.kind.value, "detail": str(failed)}
        path = self._at("turns", key + _GAVE_UP)
        # If it cannot be written, each waiting process tries for itself.
        with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as file:
            json.dump(record, file)

    def _raise_if_given_up(self, key: str, waited_for: str) -> None:
        record = read_json(self._at("turns", key + _GAVE_UP))
        if waited_for and record.get("mark") == waited_for:
            detail = "%s (reported by another job that was fetching the same data)" % record.get("detail")
            raise FetchFailed(detail, SourceError(ErrorKind(record.get("kind")), detail))

    def _at(self, *names: str) -> str:
        return os.path.join(self.root, *names)

    def _add(self, place: str, key: str) -> None:
        """Move a filled directory to `objects/`, durably."""
        os.chmod(place, self._mode)
        files.sync_directory(place)
        target = self._at("objects", key)
        if os.path.isdir(target):
            # Either another process was faster, or that entry was modified and is replaced.
            self._move_to_doomed(place if is_intact(target) else target)
        if os.path.isdir(place):
            os.rename(place, target)
        files.sync_directory(self._at("objects"))

    def _fits(self, need: int, total: int) -> bool:
        if self._limit is not None and total + need > self._limit:
            return False
        return free_space(self.root) >= need and _has_inodes(self.root)

    def _is_in_use(self, place: str) -> bool:
        return in_use.is_in_use(os.path.join(place, "uses"), in_use.file_system_time(self.root))

    def _move_to_doomed(self, place: str) -> str:
        """Move a directory to `doomed/` under a new name. Return its path there, or "" if it is gone."""
        target = self._at("doomed", "%s.%s" % (os.path.basename(place), os.urandom(6).hex()))
        try:
            os.rename(place, target)
        except FileNotFoundError:
            return ""
        return target

    def _sweep(self, pulse: Callable[[], None]) -> None:
        """Delete everything in `doomed/`. The pulse is called for each file: there may be a million."""
        for place, folders, names in os.walk(self._at("doomed"), topdown=False):
            # `folders` includes links to directories; the real directories have been removed already.
            for name in (*names, *folders):
                pulse()
                # Another process may be sweeping too; what cannot be removed is tried again next time.
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(place, name))
            if place != self._at("doomed"):
                with contextlib.suppress(OSError):
                    os.rmdir(place)


def _refresh(lock: FetchLock, pulse: Callable[[], None]) -> None:
    if not lock.refresh():
        raise LockLost("this process was suspended for so long that another one has taken over the fetch")
    pulse()


def _has_inodes(path: str) -> bool:
    """Return True if many more files can be created. How many an archive holds is not known beforehand."""
    status = os.statvfs(path)
    # A file system that creates inodes on demand reports 0.
    return not status.f_files or status.f_favail >= min(_MIN_FREE_INODES, status.f_files // 100)

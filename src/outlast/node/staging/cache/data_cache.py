"""Staged data, kept under its digest for later attempts: on the disk of a node, or on shared scratch.

    objects/KEY/content     a file or a tree of files; always complete, since it was moved there by one rename
    objects/KEY/entry.json  its size, its source, and the state in which it was stored
    objects/KEY/uses/       markers of the jobs that use it
    arriving/KEY/           an unfinished entry; if its process dies, the next one resumes it
    turns/KEY               the lock of the process that fetches it; all others wait and take over if it dies
    doomed/                 entries that are being removed
    notes/                  records of files outside the cache that have been verified

Each user has a directory of their own, so that nobody has to trust what another user has written. Content is
read-only, and compared with its recorded state before each use: a training script that alters its data costs
a new fetch, not the results of others.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import time
from dataclasses import dataclass
from typing import Callable

from outlast.node import files
from outlast.node.pulse import no_pulse
from outlast.node.quantities import show_size
from outlast.node.staging.cache import given_up, in_use
from outlast.node.staging.cache.entry import (
    CONTENT,
    FORMAT,
    find_alteration,
    free_space,
    read_entry,
    total_size,
)
from outlast.node.staging.cache.fetch_lock import FetchLock
from outlast.node.staging.cache.held_entry import HeldEntry, identity_of
from outlast.node.staging.cache.user_directory import UnsafeCache, UserDirectory, names_of_users
from outlast.node.staging.errors import FetchFailed, SourceError
from outlast.node.staging.sources.file_source import FileSource
from outlast.untrusted_files import remove_tree

#: Seconds between two polls of an entry that another process is fetching.
_POLL_INTERVAL = 0.5
#: Seconds without a refresh after which the lock's holder counts as frozen, and this process fetches a copy.
_FROZEN_AFTER = 600.0
#: With fewer free inodes than this, and fewer than a hundredth of all, entries are removed.
_MIN_FREE_INODES = 10_000
#: How often an entry may vanish while it is being opened.
_TRIES = 10


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
    #: True if a newer version of Outlast made it; it is left alone.
    newer: bool = False


@dataclass(frozen=True)
class UnfinishedEntry:
    """An entry whose fetch is running or was interrupted."""

    key: str
    size: int
    #: The process that fetches it, or did last; empty if unknown.
    by: str


#: Creates `content` and, with `write_entry`, `entry.json` in the given directory, calling the given pulse at
#: least every few seconds. Files that it leaves behind when it raises are kept for the next attempt.
Fill = Callable[[str, Callable[[], None]], None]


class DataCache:
    """The cache of this user in the directory `root`, which users may share.

    `limit` is the maximum size of all entries in bytes; None leaves it to the disk.
    """

    def __init__(
        self, root: str, limit: int | None = None, warn: Callable[[str], None] = lambda text: None
    ) -> None:
        """`warn` is called with texts for the user: what is unsafe, what was altered.

        Raises UnsafeCache if other users could write to this user's directory in `root`, or exchange it.
        """
        self._shared_root = root
        self._limit = limit
        self._warn = warn
        self._directory = UserDirectory(root, ("objects", "arriving", "turns", "doomed", "notes"))
        self.root = self._directory.path
        #: The entries that were found altered, by key, and that are reported only once.
        self._altered: dict[str, tuple[int, int]] = {}
        self._reported: set[str] = set()
        for text in self._directory.warnings:
            self._warn_once(text)

    def copies_of_other_users(self, key: str) -> list[FileSource]:
        """Return the files that other users have under this key, as sources. They are not verified."""
        found = []
        for name in names_of_users(self._shared_root):
            source = FileSource(
                os.path.join(self._shared_root, name, "objects", key, CONTENT), self._shared_root
            )
            # Other users decide what can be read.
            with contextlib.suppress(SourceError):
                if name != os.path.basename(self.root):
                    source.version()
                    found.append(source)
        return found

    def find(self, key: str, pulse: Callable[[], None] = no_pulse) -> HeldEntry | None:
        """Return the entry, marked as in use, or None if there is none or its content was altered.

        Raises UnsafeCache, OSError, and what the pulse raises.
        """
        self._directory.verify()
        name = self._object_name(key)
        for _ in range(_TRIES):
            try:
                with self._directory.open("objects", name) as entry:
                    held = self._hold(name, entry, pulse)
            except FileNotFoundError:
                return None
            if held is not None or name in self._altered:
                return held
            time.sleep(0.05)
        return None

    def _hold(self, name: str, entry: int, pulse: Callable[[], None]) -> HeldEntry | None:
        """Mark an open entry as in use, and compare its content.

        Return None if it was altered, which is remembered, or if it is being removed.
        """
        found, place = identity_of(os.fstat(entry)), self._at("objects", name)
        if self._altered.get(name) == found:
            return None
        self._altered.pop(name, None)
        marker = in_use.UseMarker(os.path.join(place, "uses"))
        try:
            # Another process may have been removing the entry while it was marked.
            if identity_of(os.stat(place, follow_symlinks=False)) != found:
                marker.remove()
                return None
            altered = find_alteration(entry, pulse)
            if altered is None:
                content = identity_of(os.stat(CONTENT, dir_fd=entry, follow_symlinks=False))
                with contextlib.suppress(OSError):  # the time only decides the order of eviction
                    os.utime(entry)
                return HeldEntry(os.path.join(place, CONTENT), marker, content, self._directory)
        except BaseException:
            marker.remove()
            raise
        marker.remove()
        self._altered[name] = found
        self._warn_once(
            "%s in the data cache was altered after it was stored: the data is fetched again. Write derived "
            "files elsewhere, or give the entry of `data:` the key `writable: yes`"
            % os.path.join(place, altered)
        )
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
                held = self.find(key, pulse)
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
            # It may have been completed just before the lock was acquired.
            held = self.find(key, pulse)
            if held is not None:
                return held
            given_up.raise_if_recorded(self._at("turns"), key, waited_for)
            self._make_unfinished(os.path.basename(place))
            try:
                fill(place, lambda: _refresh(lock, pulse))
            except FetchFailed as failed:
                given_up.record(self._at("turns"), key, lock.owner_id, failed)
                raise
            self._add(os.path.basename(place), key, pulse)
        finally:
            lock.release()
        held = self.find(key, pulse)
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
        self._directory.verify()
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
        """Remove an entry. Return False if it is in use, of a newer version, or already gone."""
        if entry.newer or self._is_in_use(entry.path):
            return False
        doomed = self._move_to_doomed("objects", entry.key)
        # A process that marked it just before the rename must not lose it; later ones do not find it.
        if doomed and self._is_in_use(self._at("doomed", doomed)):
            with contextlib.suppress(OSError):
                self._directory.rename(("doomed", doomed), ("objects", entry.key))
            return False
        self._sweep(pulse)
        return bool(doomed)

    def entries(self) -> list[CacheEntry]:
        """Return all complete entries, the least recently used one first."""
        now = in_use.file_system_time(self.root)
        found = []
        for key in os.listdir(self._at("objects")):
            place = self._at("objects", key)
            # Something else than a directory, or one that is gone, is no entry.
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                with self._directory.open("objects", key) as entry:
                    used, record = os.fstat(entry).st_mtime, read_entry(entry)
                is_used = in_use.is_in_use(os.path.join(place, "uses"), now)
                found.append(
                    CacheEntry(key, place, record.size, record.source, used, is_used, record.is_newer)
                )
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
                    self._move_to_doomed("arriving", key)
            finally:
                lock.release()
        self._sweep(pulse)
        return dropped

    def _at(self, *names: str) -> str:
        return os.path.join(self.root, *names)

    def _object_name(self, key: str) -> str:
        """Return the name of the entry: the key, or another name if a newer version uses that."""
        try:
            with self._directory.open("objects", key) as entry:
                record = read_entry(entry)
        except OSError:
            return key
        if not record.is_newer:
            return key
        self._warn_once(
            "%s was made by a newer version of Outlast (its format is %d, this version reads formats up to "
            "%d): it is left alone, and the data is kept a second time"
            % (self._at("objects", key), record.format, FORMAT)
        )
        return "%s.format-%d" % (key, FORMAT)

    def _make_unfinished(self, name: str) -> None:
        """Create a directory in `arriving/`, unless an earlier process has left it. Raises OSError."""
        self._directory.verify()
        with self._directory.open("arriving") as arriving, contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=arriving)
        with self._directory.open("arriving", name):
            pass  # it is a directory, not a link

    def _add(self, name: str, key: str, pulse: Callable[[], None]) -> None:
        """Move a filled directory from `arriving/` to `objects/`, durably.

        An altered entry is replaced. Jobs that still use it find the new content in its place.
        """
        self._directory.verify()
        with self._directory.open("arriving", name) as filled:
            if read_entry(filled).state is None:
                raise UnsafeCache("what was fetched is not there", self._at("arriving", name))
            os.fchmod(filled, self._directory.mode)
            files.sync_directory(os.curdir, filled)
        target = self._object_name(key)
        try:
            with self._directory.open("objects", target) as present:
                is_intact = self._altered.get(target) != identity_of(os.fstat(present)) and (
                    find_alteration(present, pulse) is None
                )
        except FileNotFoundError:
            is_intact = None
        if is_intact:
            self._move_to_doomed("arriving", name)  # another process was faster
        else:
            if is_intact is not None:
                self._keep_markers(target, name)
                self._move_to_doomed("objects", target)
            self._directory.rename(("arriving", name), ("objects", target))
        with self._directory.open("objects") as objects:
            files.sync_directory(os.curdir, objects)
        self._sweep(pulse)

    def _keep_markers(self, old: str, new: str) -> None:
        """Move the markers of the jobs that use an entry to the one that replaces it."""
        place = self._directory
        # Without markers there is no such directory.
        with contextlib.suppress(OSError), place.open("objects", old) as source, place.open(
            "arriving", new
        ) as target:
            os.rename("uses", "uses", src_dir_fd=source, dst_dir_fd=target)

    def _warn_once(self, text: str) -> None:
        if text not in self._reported:
            self._reported.add(text)
            self._warn(text)

    def _fits(self, need: int, total: int) -> bool:
        if self._limit is not None and total + need > self._limit:
            return False
        return free_space(self.root) >= need and _has_inodes(self.root)

    def _is_in_use(self, place: str) -> bool:
        return in_use.is_in_use(os.path.join(place, "uses"), in_use.file_system_time(self.root))

    def _move_to_doomed(self, folder: str, name: str) -> str:
        """Move a directory to `doomed/` under a new name, and return that, or "" if it is gone."""
        target = "%s.%s" % (name, os.urandom(6).hex())
        try:
            self._directory.rename((folder, name), ("doomed", target))
        except FileNotFoundError:
            return ""
        return target

    def _sweep(self, pulse: Callable[[], None]) -> None:
        """Delete everything in `doomed/`."""
        for name in os.listdir(self._at("doomed")):
            # Another process may be sweeping too; what cannot be removed is tried again next time.
            with contextlib.suppress(OSError):
                remove_tree(self._at("doomed", name), pulse, ignore_errors=True)


def _refresh(lock: FetchLock, pulse: Callable[[], None]) -> None:
    if not lock.refresh():
        raise LockLost("this process was suspended for so long that another one has taken over the fetch")
    pulse()


def _has_inodes(path: str) -> bool:
    """Return True if many more files can be created. How many an archive holds is not known beforehand."""
    status = os.statvfs(path)
    # A file system that creates inodes on demand reports 0.
    return not status.f_files or status.f_favail >= min(_MIN_FREE_INODES, status.f_files // 100)

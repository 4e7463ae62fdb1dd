"""The hidden directory in which an archive is unpacked, until all of it is there and has been checked.

    .NAME.unpacking/
        lock        held by the process that unpacks
        state.json  which bytes these are, and whether only the moving is left
        skeleton    of a tar: what is in none of its files
        whole       of anything else: the archive as it came
        tree/       what will be visible
        kept/       archives inside of a tar that cannot be rebuilt from their members, as they came
        late/       what was in those, until it is moved to its place in tree/

It is beside the target, so that one rename makes everything visible; inside of it where the target is a file
system of its own.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from dataclasses import asdict, dataclass
from typing import Any, Callable

from outlast.node.files import sync_directory
from outlast.node.locks import lock
from outlast.node.pulse import silent


@dataclass(frozen=True)
class Late:
    """What is put in its place at the end: the directory `late/NUMBER`, or the file that was kept."""

    number: int
    #: The number of the archive that it was in; 0 for the outermost one.
    parent: int
    path: str
    #: Of the file, or empty for the directory.
    kept: str = ""


class Workspace:
    def __init__(self, target: str, name: str) -> None:
        self.target = os.path.realpath(target)
        folder, base = os.path.split(self.target)
        # The archive's name is in it: several may be unpacked into one directory. No name is longer than 255.
        hidden = ".%s" % ".".join(filter(None, (base[:100], name[-100:], "unpacking")))
        self.path = os.path.join(self.target if _is_apart(self.target, folder) else folder, hidden)
        self.tree = os.path.join(self.path, "tree")
        self.kept = os.path.join(self.path, "kept")
        self.late = os.path.join(self.path, "late")
        self.skeleton = os.path.join(self.path, "skeleton")
        self.whole = os.path.join(self.path, "whole")
        self._state = os.path.join(self.path, "state.json")
        self._lock = -1

    @property
    def is_open(self) -> bool:
        return self._lock >= 0

    def open(self) -> None:
        """Make it ours. Raises BlockingIOError if another process unpacks here, and OSError."""
        for _ in range(10):
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            with contextlib.suppress(FileExistsError):  # the next line looks at what it is
                os.mkdir(self.path, 0o700)
            try:
                _check_ours(self.path)
                self._lock = _locked(os.path.join(self.path, "lock"))
                return
            except FileNotFoundError:
                continue  # the process that had it has just finished and removed it
        raise BlockingIOError(errno.EWOULDBLOCK, "others keep unpacking here", self.path)

    def read_state(self) -> dict[str, Any]:
        """Empty if there is none that can be read."""
        try:
            with open(self._state, encoding="utf-8") as file:
                state = json.load(file)
        except (FileNotFoundError, ValueError):
            return {}
        return state if isinstance(state, dict) else {}

    def write_state(self, identity: str, moving: list[Late] | None = None) -> None:
        """`moving`: all is there and checked, and what is left is to move these and the tree.

        Only that is made durable: without it a power cut costs what was unpacked, and nothing else.
        """
        state: dict[str, Any] = {"identity": identity}
        if moving is not None:
            state["moving"] = [asdict(late) for late in moving]
        temporary = self._state + ".tmp"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(state, file)
            file.flush()
            if moving is not None:
                os.fsync(file.fileno())
        os.replace(temporary, self._state)
        if moving is not None:
            sync_directory(self.path)

    def late_folder(self, number: int) -> str:
        """Where the members of an archive go at first; those of the outermost one, 0, are in their place."""
        return os.path.join(self.late, str(number)) if number else self.tree

    def kept_file(self, number: int) -> str:
        """The `number`th archive inside of a tar that is kept as it came."""
        return os.path.join(self.kept, str(number))

    def clear(self, pulse: Callable[[], None] = silent, but: tuple[str, ...] = ()) -> None:
        """Remove all but the lock, and what is named.

        The state goes first: a tree that is half removed must not be taken for one that is to be shown.
        """
        state = os.path.basename(self._state)
        for name in sorted(os.listdir(self.path), key=lambda name: name != state):
            if name not in ("lock", *but):
                remove(os.path.join(self.path, name), pulse)

    def remove(self, pulse: Callable[[], None] = silent) -> None:
        """Leave nothing, and let others. The state goes last: until then the next process can know."""
        if self.is_open:
            self.clear(pulse, but=(os.path.basename(self._state),))
            for path in (self._state, os.path.join(self.path, "lock")):
                with contextlib.suppress(FileNotFoundError):  # none, or somebody has tidied up by hand
                    os.unlink(path)
            # Not empty: another process has made its own lock in it this moment, and it is theirs now.
            with contextlib.suppress(OSError):
                os.rmdir(self.path)
            self.close()

    def close(self) -> None:
        if self.is_open:
            os.close(self._lock)
            self._lock = -1


def remove(path: str, pulse: Callable[[], None] = silent) -> None:
    """A file or a tree, never through a link."""
    pulse()
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
        return
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                remove(entry.path, pulse)
            else:
                os.unlink(entry.path)
    os.rmdir(path)


def count_files(path: str) -> int:
    """How many entries that are no directories are below `path`."""
    count = 0
    with os.scandir(path) as entries:
        for entry in entries:
            count += count_files(entry.path) if entry.is_dir(follow_symlinks=False) else 1
    return count


def _is_apart(target: str, folder: str) -> bool:
    """Whether nothing beside `target` could be renamed to what is in it."""
    try:
        return os.stat(target).st_dev != os.stat(folder).st_dev or not os.access(folder, os.W_OK)
    except FileNotFoundError:
        return False


def _check_ours(path: str) -> None:
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise OSError(
            errno.EPERM, "it is in the way, and not a directory of ours; remove it, then try again", path
        )


def _locked(path: str) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            # Where there are no locks, the scheduler's one job per attempt, and O_EXCL for every file, are
            # what is left.
            lock(descriptor)
        except BlockingIOError as error:
            raise BlockingIOError(
                errno.EWOULDBLOCK, "another process is unpacking here; wait for it, or end it", path
            ) from error
        if os.stat(path).st_ino != os.fstat(descriptor).st_ino:
            raise FileNotFoundError(errno.ENOENT, "it was replaced meanwhile", path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor

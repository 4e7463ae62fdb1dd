"""The hidden directory in which an archive is unpacked until it is complete and verified.

    .NAME.unpacking/
        lock        held by the process that unpacks
        state.json  the identity of the bytes, and whether only the final moves are left
        skeleton    of a tar: the bytes that are in none of its files
        whole       of any other archive: the archive as it came
        tree/       what will become visible
        kept/       archives inside a tar whose bytes cannot be rebuilt from their members, as they came
        late/       the members of those, until they are moved to their place in tree/

It is beside the target, so that one rename makes everything visible; or inside the target, if that is a mount
point or its parent is not writable.
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
from outlast.node.locks import try_lock
from outlast.node.pulse import no_pulse
from outlast.untrusted_files import (
    create_file,
    is_plain_name,
    parse_json,
    read_file,
    remove_tree,
)

#: A line for each of a hundred thousand nested archives.
_MAX_STATE = 64 << 20


@dataclass(frozen=True)
class PendingMove:
    """A move to be made at the end: the directory `late/NUMBER`, or a kept file, to its place.

    Stored in state.json.
    """

    number: int
    #: The number of the archive around it; 0 for the outermost one.
    parent: int
    #: The destination, relative to the directory of the parent's members.
    path: str
    #: The path of the kept file, or empty for the directory.
    kept: str = ""


class Workspace:
    def __init__(self, target: str, name: str) -> None:
        """Choose the path for unpacking the archive `name` into `target`; nothing is created yet."""
        self.target = os.path.realpath(target)
        folder, base = os.path.split(self.target)
        # It has the archive's name because several may be unpacked into one directory, and is shorter than
        # 255 bytes.
        hidden = ".%s" % ".".join(filter(None, (base[:100], name[-100:], "unpacking")))
        self.path = os.path.join(self.target if _must_be_inside(self.target, folder) else folder, hidden)
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
        """Create the directory if needed, and lock it.

        Raises BlockingIOError if another process unpacks here, and OSError.
        """
        for _ in range(10):
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            with contextlib.suppress(FileExistsError):  # checked next
                os.mkdir(self.path, 0o700)
            try:
                _check_owner(self.path)
                self._lock = _acquire_lock(os.path.join(self.path, "lock"))
                return
            except FileNotFoundError:
                continue  # the process that held the lock has just finished and removed the directory
        raise BlockingIOError(errno.EWOULDBLOCK, "other processes keep unpacking here", self.path)

    def read_state(self) -> dict[str, Any]:
        """Return the content of state.json; empty if it is missing or cannot be read."""
        try:
            state = parse_json(read_file(self._state, _MAX_STATE))
        except (OSError, ValueError):
            return {}
        return state if isinstance(state, dict) else {}

    def pending_moves(self, state: dict[str, Any]) -> list[PendingMove] | None:
        """Return the moves that are left according to a state; None if there are none, or it is damaged."""
        try:
            moves = [PendingMove(**move) for move in state["moving"]]
        except (KeyError, TypeError):
            return None
        return moves if all(self._stays_inside(move) for move in moves) else None

    def _stays_inside(self, move: PendingMove) -> bool:
        kept_in = os.path.dirname(move.kept) if isinstance(move.kept, str) else None
        return (
            isinstance(move.number, int)
            and isinstance(move.parent, int)
            and isinstance(move.path, str)
            and is_plain_name(move.path)
            and kept_in in ("", self.kept, self.late)
        )

    def write_state(self, identity: str, moving: list[PendingMove] | None = None) -> None:
        """Write state.json. With `moving`, the tree is complete and verified, and only these moves are left.

        Only that is made durable: without it a power cut costs the unpacked files and nothing else.
        """
        state: dict[str, Any] = {"identity": identity}
        if moving is not None:
            state["moving"] = [asdict(move) for move in moving]
        temporary = self._state + ".tmp"
        with create_file(temporary) as file:
            file.write(json.dumps(state).encode("ascii"))
            file.flush()
            if moving is not None:
                os.fsync(file.fileno())
        os.replace(temporary, self._state)
        if moving is not None:
            sync_directory(self.path)

    def members_directory(self, number: int) -> str:
        """Return where the members of archive `number` are written: tree/ for 0, the outermost one."""
        return os.path.join(self.late, str(number)) if number else self.tree

    def kept_file(self, number: int) -> str:
        """Return the path of the `number`th archive inside a tar that is kept as it came."""
        return os.path.join(self.kept, str(number))

    def clear(self, pulse: Callable[[], None] = no_pulse, keep: tuple[str, ...] = ()) -> None:
        """Remove everything but the lock and the names in `keep`.

        The state is removed first, so that a partly removed tree is never moved into place.
        """
        state = os.path.basename(self._state)
        for name in sorted(os.listdir(self.path), key=lambda name: name != state):
            if name not in ("lock", *keep):
                remove(os.path.join(self.path, name), pulse)

    def remove(self, pulse: Callable[[], None] = no_pulse) -> None:
        """Remove the directory and release the lock.

        The state is removed last: until then the next process can see that the tree is in place.
        """
        if self.is_open:
            self.clear(pulse, keep=(os.path.basename(self._state),))
            for path in (self._state, os.path.join(self.path, "lock")):
                with contextlib.suppress(FileNotFoundError):  # never written, or removed by hand
                    os.unlink(path)
            # Not empty: another process has just created its own lock, and owns the directory now.
            with contextlib.suppress(OSError):
                os.rmdir(self.path)
            self.close()

    def close(self) -> None:
        if self.is_open:
            os.close(self._lock)
            self._lock = -1


def remove(path: str, pulse: Callable[[], None] = no_pulse) -> None:
    """Remove a file or a tree, without following links."""
    pulse()
    if stat.S_ISDIR(os.lstat(path).st_mode):
        remove_tree(path, pulse)
    else:
        os.unlink(path)


def count_files(path: str) -> int:
    """Return the number of entries below `path` that are not directories."""
    count = 0
    with os.scandir(path) as entries:
        for entry in entries:
            count += count_files(entry.path) if entry.is_dir(follow_symlinks=False) else 1
    return count


def _must_be_inside(target: str, folder: str) -> bool:
    """Return True if nothing in `folder` can be renamed into `target`: other file system, or read-only."""
    try:
        return os.stat(target).st_dev != os.stat(folder).st_dev or not os.access(folder, os.W_OK)
    except FileNotFoundError:
        return False


def _check_owner(path: str) -> None:
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise OSError(
            errno.EPERM, "it is in the way and is not a directory of yours; remove it, then try again", path
        )


def _acquire_lock(path: str) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            # Without locks on this file system, one job per attempt and O_EXCL for every file must suffice.
            try_lock(descriptor)
        except BlockingIOError as error:
            raise BlockingIOError(
                errno.EWOULDBLOCK, "another process is unpacking here; wait for it, or end it", path
            ) from error
        if os.stat(path).st_ino != os.fstat(descriptor).st_ino:
            raise FileNotFoundError(errno.ENOENT, "the lock file was replaced", path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor

"""The attempt's scratch directory: working directory, data, unfinished outputs."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import stat
import time
from dataclasses import dataclass
from typing import Callable, Iterable

from outlast.node.files import copy_file, copy_tree, lift_deep, link_or_copy
from outlast.node.locks import try_lock
from outlast.node.outputs import made_archive
from outlast.node.outputs.collection import LeftFile
from outlast.node.outputs.made_files import NO_CODE, CodeListing, bring_back, read_listing
from outlast.node.outputs.output_tree import BadOutputDirectory, find_content
from outlast.node.pulse import no_pulse
from outlast.untrusted_files import (
    create_file,
    created_below,
    directory_below,
    is_plain_name,
    make_accessible,
    open_directory,
    read_file,
    remove_tree,
)

#: The directory of files that were too large for the results.
LEFT = "left"
#: A limit for the number of attempts in a row that were killed before they had copied earlier outputs.
_MAX_HOPS = 100
#: The attempt that works in a directory on the node locks this file in it.
_ALIVE = ".alive"
_LONGEST_PATH = 4096
_LOCK_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
#: Seconds after which a directory on the node that has no such lock counts as abandoned.
_ABANDONED_AFTER = 86400.0


class _OutOfTime(Exception):
    """The time to remove files is over."""


@dataclass(frozen=True)
class Scratch:
    """The paths below an attempt's scratch directory, part of which may be on the node (`on_node`).

    Unfinished outputs are always in `top`: the next attempt may run on another node.
    """

    top: str
    on_node: str | None = None
    #: The scheduler transfers `top` to other machines; links and hidden files are not transferred.
    is_transferred: bool = False

    @property
    def working(self) -> str:
        return os.path.join(self.on_node or self.top, "job")

    @property
    def data(self) -> str:
        return os.path.join(self.on_node or self.top, "data")

    @property
    def output(self) -> str:
        return os.path.join(self.top, "output")

    @property
    def code_listing(self) -> str:
        """A file with the listing of the code. Once it is there, the working directory is complete."""
        return os.path.join(self.top, "code.json")

    @property
    def made(self) -> str:
        """The archive of what the training made, if the next attempt will not see the working directory."""
        return os.path.join(self.top, made_archive.NAME)

    @property
    def ended(self) -> str:
        """A file that exists once all processes of the attempt have ended."""
        return os.path.join(self.top, "ended")

    @property
    def left(self) -> str:
        """The files of a finished run that were too large for its results; nothing removes them."""
        return os.path.join(self.top, LEFT)

    @property
    def carried_from(self) -> str:
        """A file with the path of the scratch whose outputs are still to be copied; removed afterwards."""
        return os.path.join(self.top, "carried-from")

    def prepare(self, previous: str | None) -> None:
        """Create the directories, and record the earlier scratch `previous`. Raises OSError."""
        if os.path.islink(self.top):
            os.unlink(self.top)  # an earlier start of the job has left it: what it leads to is not ours
        os.makedirs(self.top, exist_ok=True)
        if self.on_node is not None:
            _make_private(self.on_node)
        if previous is not None:
            with create_file(self.carried_from) as file:
                file.write(os.fsencode(previous))
        os.makedirs(self.working, exist_ok=True)
        os.makedirs(self.data, exist_ok=True)

    def find_link(self) -> str | None:
        """Return the path of a directory of the attempt that was replaced by a link; None if there is none.

        What such a link leads to is not ours, and neither moved nor changed.
        """
        return next((path for path in (self.top, self.on_node) if path and os.path.islink(path)), None)

    def mark_in_use(self) -> int | None:
        """Protect the directory on the node from other attempts until the returned descriptor is closed."""
        if self.on_node is None:
            return None
        descriptor = os.open(os.path.join(self.on_node, _ALIVE), _LOCK_FILE, 0o600)
        with contextlib.suppress(OSError):  # no locks here: its age protects it for a day
            try_lock(descriptor)
        return descriptor

    def remove_abandoned(self, until: float, pulse: Callable[[], None] = no_pulse) -> None:
        """Remove directories of killed attempts on this node; stop at the monotonic time `until`."""
        if self.on_node is None:
            return
        place, prefix = os.path.split(self.on_node)[0], node_directory_name("")
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                if entry.name.startswith(prefix) and entry.path != self.on_node and _is_abandoned(entry):
                    _remove(entry.path, until, pulse)

    def carry_over(
        self,
        previous: str | None,
        code: CodeListing = NO_CODE,
        pulse: Callable[[], None] = no_pulse,
    ) -> list[str]:
        """Bring the files of an earlier attempt to their places, then remove its scratch; return warnings.

        These are its unfinished outputs, and what the training made in its working directory. `code` lists
        the code in this one, which is complete afterwards. Files are copied where a process of that attempt
        may still be alive and write.
        """
        earlier = self._find_earlier(previous)
        self._carry_outputs(earlier, pulse)
        warnings = self._carry_made(earlier, code, pulse)
        code.write(self.code_listing)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.carried_from)
        for done in earlier:
            with contextlib.suppress(OSError):  # what cannot be removed only takes space
                done.clear(keep_output=False, until=math.inf, pulse=pulse)
        return warnings

    def _find_earlier(self, previous: str | None) -> list[Scratch]:
        """Return the scratch of the earlier attempt, and those it had not taken over yet; newest first."""
        found: list[Scratch] = []
        for _ in range(_MAX_HOPS):
            if previous is None or os.path.realpath(previous) == os.path.realpath(self.top):
                break
            found.append(Scratch(previous))
            previous = found[-1]._read_carried_from()
        return found

    def _carry_outputs(self, earlier: list[Scratch], pulse: Callable[[], None]) -> None:
        for one in earlier:
            content = one._find_output()
            if content is None:
                continue
            if content == one.output and one.find_link() is None:  # else it is behind a link, and not ours
                lift_deep(content, pulse)
            temporary = os.path.join(self.top, ".output.tmp")
            with contextlib.suppress(FileNotFoundError):
                _remove(temporary, math.inf, pulse)
            copy_tree(content, temporary, pulse)
            os.rename(temporary, self.output)
            break
        os.makedirs(self.output, exist_ok=True)

    def _carry_made(self, earlier: list[Scratch], code: CodeListing, pulse: Callable[[], None]) -> list[str]:
        for one in earlier:
            before = read_listing(one.code_listing)
            if before is not None and _is_directory(one.working):
                is_ours = one.find_link() is None
                warnings = lift_deep(one.working, pulse) if is_ours else []
                if self.on_node is None or not is_ours:
                    may_share = is_ours and os.path.lexists(one.ended)
                    return warnings + bring_back(
                        one.working, before, self.working, code, may_share=may_share, pulse=pulse
                    )
                made_archive.pack(one.working, before, self.made, None, pulse=pulse)
            elif os.path.isfile(one.made) and self.on_node is not None:
                # This attempt may be killed, and its directory on the node be lost.
                link_or_copy(one.made, self.made, pulse=pulse)
            elif os.path.isfile(one.made):
                return made_archive.unpack(one.made, self.working, code, pulse)
            else:
                continue
            break
        # In a job without a shared file system, it may have come with the job.
        if os.path.isfile(self.made):
            return made_archive.unpack(self.made, self.working, code, pulse)
        return []

    def stash(
        self,
        code: CodeListing,
        limit: int | None,
        named: Iterable[str],
        pulse: Callable[[], None] = no_pulse,
    ) -> list[LeftFile]:
        """Archive what the training made, if need be; return the files that are not saved."""
        is_seen = self.on_node is None and not self.is_transferred
        if is_seen or not _is_directory(self.working):
            return []
        return made_archive.pack(self.working, code, self.made, limit, named, pulse)

    def keep_left(self, files: Iterable[LeftFile], pulse: Callable[[], None] = no_pulse) -> None:
        """Move files of the working directory to where nothing removes them. Raises OSError."""
        for file in files:
            folder, name = os.path.split(file.path)
            below = os.path.join(LEFT, folder) if folder else LEFT
            with directory_below(self.working, folder) as source, created_below(self.top, below) as target:
                if self.on_node is None:
                    os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
                else:
                    copy_file(name, name, pulse, source, target)

    def note_ended(self) -> None:
        """Record that all processes of the attempt have ended. Raises OSError."""
        create_file(self.ended).close()

    def _find_output(self) -> str | None:
        """Return the directory with the unfinished outputs; None if there are none that could be copied."""
        try:
            return find_content(self.output)
        except BadOutputDirectory:
            return None

    def _read_carried_from(self) -> str | None:
        """Return the earlier scratch that the file names: one beside this one, whatever it contains."""
        try:
            name = os.path.basename(os.fsdecode(read_file(self.carried_from, _LONGEST_PATH)))
        except OSError:
            return None
        return os.path.join(os.path.dirname(self.top), name) if is_plain_name(name) else None

    def clear(self, keep_output: bool, until: float, pulse: Callable[[], None] = no_pulse) -> bool:
        """Remove everything, or all that the next attempt does not need. Return False if not done at `until`.

        Files in `left` stay in any case.
        """
        needed = [self.output, self.made, self.code_listing, self.ended, self.carried_from]
        is_archived = self.is_transferred and os.path.isfile(self.made)
        # Without the listing, the working directory is not complete.
        if os.path.lexists(self.code_listing) and not is_archived:
            needed.append(self.working)
        keep = {LEFT, *(os.path.basename(path) for path in needed if keep_output)}
        if os.path.islink(self.top):  # what it leads to is not ours
            os.unlink(self.top)
            return True
        try:
            make_accessible(self.top, stat.S_IRWXU)
            top = open_directory(self.top)
        except FileNotFoundError:
            return True
        try:
            removed = [_remove(name, until, pulse, top) for name in os.listdir(top) if name not in keep]
        finally:
            os.close(top)
        if self.on_node is not None and os.path.lexists(self.on_node):
            removed.append(_remove(self.on_node, until, pulse))
        if not keep_output and all(removed) and not os.path.lexists(self.left):
            os.rmdir(self.top)
        return all(removed)


def _make_private(path: str) -> None:
    """Create a directory for this user alone, on a node whose scratch others can write to. Raises OSError.

    Its name is in the name of the job, so another user could have made it before.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.islink(path):
        os.unlink(path)
    try:
        os.mkdir(path, stat.S_IRWXU)
        return
    except FileExistsError:
        directory = open_directory(path)
    try:
        if os.fstat(directory).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it belongs to another user", path)
        os.fchmod(directory, stat.S_IRWXU)
    finally:
        os.close(directory)


def _is_directory(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def node_directory_name(token: str) -> str:
    """Return the name of an attempt's directory in the scratch of a node."""
    return f"outlast-{token}"


def _is_abandoned(entry: os.DirEntry[str]) -> bool:
    """Return True if this user owns the directory and no running attempt uses it."""
    status = entry.stat(follow_symlinks=False)
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
        return False
    is_old = time.time() - status.st_mtime > _ABANDONED_AFTER
    try:
        descriptor = os.open(os.path.join(entry.path, _ALIVE), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return is_old
    except OSError:
        return False
    try:
        return try_lock(descriptor) or is_old
    except BlockingIOError:
        return False
    except OSError:
        return is_old
    finally:
        os.close(descriptor)


def _remove(path: str, until: float, pulse: Callable[[], None], dir_fd: int | None = None) -> bool:
    """Remove a file or a directory tree. Return False if something is left at the monotonic time `until`.

    `path` is relative to `dir_fd`, if given.
    """
    if not stat.S_ISDIR(os.stat(path, dir_fd=dir_fd, follow_symlinks=False).st_mode):
        os.unlink(path, dir_fd=dir_fd)
        return True

    def check() -> None:
        pulse()
        if time.monotonic() >= until:
            raise _OutOfTime

    try:
        remove_tree(path, check, ignore_errors=True, dir_fd=dir_fd)
        os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return True
    except (OSError, _OutOfTime):
        return False
    return False

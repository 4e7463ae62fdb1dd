"""Moves the files that came back from a job without a shared file system to their places.

They come from another machine, and the transfer may have been cut anywhere: only regular files that a
manifest lists with their size count; without a manifest, only checkpoints whose own checksums are right. The
job may also have planted links: everything is opened relative to the attempt's directory, and no link is
followed. All steps can be repeated after a crash.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from outlast.domain.model import Attempt
from outlast.exchange import sandbox_snapshots
from outlast.exchange.experiment import Experiment
from outlast.exchange.file_trees import copy_entry, names, sync_tree
from outlast.filesystem import sync_directory
from outlast.node import legs
from outlast.node.files import link_or_copy
from outlast.node.sandbox import layout, manifest
from outlast.node.sandbox.manifest import DirectoryManifest
from outlast.training.checkpoints import checkpoint
from outlast.training.errors import CheckpointError, Damaged
from outlast.untrusted_files import (
    directory_below,
    make_accessible,
    open_below,
    open_directory,
    open_to_append,
    remove,
)

#: The most levels of directories, and bytes of a path: everything within them can be walked and copied.
_DEEPEST = 200
_LONGEST_PATH = 3000
#: The longest name of a checkpoint: a temporary name is made from it.
_LONGEST_NAME = 200
_BLOCK_BYTES = 1 << 20
#: stdout and stderr of the job itself, in its exchange directory.
JOB_LOG = "job.log"
#: The directory of files that came back and could not be used.
UNUSABLE = "unusable"


@dataclass(frozen=True)
class _ReturnedState:
    """A whole state of the run that came back; `unfinished` is its part with unfinished outputs."""

    #: The attempt's directory, and the path of the state below it.
    place: Path
    relative: str
    holds: DirectoryManifest
    unfinished: str

    def bring(self, part: str, target: Path) -> None:
        """Link or copy the files below one part to the directory `target`. Raise OSError."""
        inside = part + "/"
        for name, size in self.holds.files.items():
            if name.startswith(inside):
                self._bring_file(name, target / name[len(inside) :], size)

    def bring_one(self, name: str, target: Path) -> bool:
        """Link or copy one file; return False if the state has none of this name. Raise OSError."""
        size = self.holds.files.get(name)
        if size is not None:
            self._bring_file(name, target, size)
        return size is not None

    def _bring_file(self, name: str, target: Path, size: int) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        folder, _, base = ("%s/%s" % (self.relative, name)).rpartition("/")
        with directory_below(self.place, folder) as directory:
            link_or_copy(base, str(target), directory)
        status = target.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size != size:
            target.unlink()
            raise OSError(errno.EINVAL, "it changed while it was moved to its place", name)


def settle(experiment: Experiment, attempt: Attempt) -> None:
    """Move checkpoints, unfinished outputs and log of an attempt to their places. Raise OSError."""
    place = experiment.exchange_of(attempt)
    for part in (layout.TRAVEL, layout.COMMITTED):
        remove_links(place, part)
    _bring_log(place, experiment.log(attempt.run, attempt.number))
    state = _newest(place)
    target = experiment.checkpoints(attempt.run)
    # First: the checkpoints may be torn, and the next attempt then needs a snapshot.
    origin = state.relative if state is not None else layout.TRAVEL
    returned = "%s/%s" % (origin, layout.SNAPSHOTS)
    sandbox_snapshots.bring(place, returned, experiment.snapshots(attempt.run), origin != layout.TRAVEL)
    if state is not None:
        _replace_checkpoints(state, target)
        scratch = experiment.scratch(attempt.run, attempt.number, attempt.token)
        _bring_unfinished(state, scratch / layout.OUTPUT)
        _bring_made(state, scratch / layout.MADE)
    else:
        _add_whole_ones(place, target)
    _clear(place)


def set_aside(experiment: Experiment, attempt: Attempt, error: Exception) -> None:
    """Move the files that `settle` could not use out of its way; log the reason. Raise OSError."""
    place = experiment.exchange_of(attempt)
    with directory_below(place) as top:
        if not _keep_directory(UNUSABLE, top):
            os.mkdir(UNUSABLE, dir_fd=top)
    with directory_below(place, UNUSABLE) as aside:
        for folder, name in _returned_names(place):
            with suppress(FileNotFoundError), directory_below(place, folder) as source:
                remove(name, aside)
                os.rename(name, name, src_dir_fd=source, dst_dir_fd=aside)
    why = "%s: %s" % (type(error).__name__, error)
    note = "outlast: the files that the job brought back cannot be used (%s); they are in %s\n"
    with suppress(OSError):  # the log is a link or a pipe: the files are aside all the same
        _append(experiment.log(attempt.run, attempt.number), note % (why, place / UNUSABLE))


def _append(log: Path, text: str) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(open_to_append(log), "a", encoding="utf-8", errors="replace") as file:
        file.write(text)


def _newest(place: Path) -> _ReturnedState | None:
    """Return the state that came back with the job, or a newer commit; None if the job made no progress."""
    found: list[_ReturnedState] = []
    commit = layout.newest_commit(str(place))
    if commit is not None and commit[1].serial > 0:  # commit 0 is the input of the job
        relative = os.path.relpath(commit[0], place)
        found.append(_ReturnedState(place, relative, commit[1], layout.UNFINISHED))
    with suppress(FileNotFoundError), directory_below(place, layout.TRAVEL) as descriptor:
        back = "/proc/self/fd/%d" % descriptor
        packed = manifest.read(back)
        if packed is not None and manifest.is_whole(back, packed):
            last = len(legs.claimed(back))
            # First, because of two states with the same serial this one includes work after the commit.
            found.insert(0, _ReturnedState(place, layout.TRAVEL, packed, layout.scratch_name(last)))
    return max(found, key=lambda state: state.holds.serial, default=None)


def _replace_checkpoints(state: _ReturnedState, target: Path) -> None:
    """Replace the directory of checkpoints by one with the returned files, atomically."""
    coming, going = target.with_name("checkpoints.coming"), target.with_name("checkpoints.going")
    remove(coming)
    coming.mkdir(parents=True)
    state.bring(layout.CHECKPOINTS, coming)
    for name, goal in state.holds.links.items():
        if name.startswith(layout.CHECKPOINTS + "/"):
            link = coming / name[len(layout.CHECKPOINTS) + 1 :]
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(goal)
    if not any(_is_whole(path) for path in coming.iterdir()):
        # There is no whole checkpoint to resume from: keep the earlier ones.
        for before in (target, going):
            _link_whole_ones(before, "", coming)
    sync_tree(coming)
    if target.exists():
        remove(going)
        target.rename(going)
    coming.rename(target)
    sync_directory(target.parent)
    remove(going)


def _add_whole_ones(place: Path, target: Path) -> None:
    """Add the whole checkpoints that came back to `target`, durably."""
    source = "%s/%s" % (layout.TRAVEL, layout.CHECKPOINTS)
    if not _names_in(place, source):
        return
    target.mkdir(parents=True, exist_ok=True)
    _link_whole_ones(place, source, target)
    sync_tree(target)


def _link_whole_ones(top: Path, relative: str, target: Path) -> None:
    """Link or copy the whole checkpoints in the directory `relative` below `top` that `target` lacks."""
    with suppress(FileNotFoundError), directory_below(top, relative) as source:
        for name in sorted(names(source)):
            if _is_whole(Path("/proc/self/fd/%d" % source, name)) and not (target / name).exists():
                temporary = target / (".%s.tmp" % name)
                remove(temporary)
                copy_entry(name, source, temporary)
                temporary.rename(target / name)


def _is_whole(path: Path) -> bool:
    if not layout.is_checkpoint(path.name) or len(path.name) > _LONGEST_NAME or path.is_symlink():
        return False
    try:
        checkpoint.verify(str(path))
    except (OSError, Damaged, CheckpointError):
        return False
    return True


def _bring_unfinished(state: _ReturnedState, target: Path) -> None:
    if target.exists():
        return
    temporary = target.with_name(".%s.tmp" % target.name)
    remove(temporary)
    state.bring(state.unfinished + "/" + layout.OUTPUT, temporary)
    with suppress(FileNotFoundError):  # there is no such file
        temporary.rename(target)


def _bring_made(state: _ReturnedState, target: Path) -> None:
    """Bring the archive of the working directory, which only a job of the same run unpacks."""
    temporary = target.with_name(".%s.tmp" % target.name)
    remove(temporary)
    if target.exists() or not state.bring_one("%s/%s" % (state.unfinished, layout.MADE), temporary):
        return
    temporary.rename(target)


def _bring_log(place: Path, target: Path) -> None:
    """Write the log of the training, followed by the output of the job itself, to `target`."""
    with ExitStack() as stack:

        def open_log(relative: str) -> list[BinaryIO]:
            try:
                return [stack.enter_context(open_below(place, relative))]
            except OSError:
                return []  # it is missing, or it is no log

        logs = open_log(layout.TRAVEL + "/" + layout.LOG)
        logs += open_log("%s/%s/%s" % (layout.COMMITTED, layout.NEWS, layout.LOG))
        parts = [*sorted(logs, key=_size)[-1:], *open_log(JOB_LOG)]
        if not parts:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(".%s.tmp" % target.name)
        remove(temporary)
        with temporary.open("xb") as log:
            for part in parts:
                _copy_content(part, log, _size(part))
        temporary.replace(target)


def _copy_content(source: BinaryIO, target: BinaryIO, size: int) -> None:
    """Copy the first `size` bytes: the file may grow meanwhile."""
    while size > 0 and (block := source.read(min(size, _BLOCK_BYTES))):
        target.write(block)
        size -= len(block)


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _clear(place: Path) -> None:
    """Remove the files that have been moved: links to them would keep old checkpoints on disk."""
    for folder, name in _returned_names(place):
        with suppress(FileNotFoundError), directory_below(place, folder) as directory:
            remove(name, directory)


def _returned_names(place: Path) -> list[tuple[str, str]]:
    """Return directory and name of everything that `settle` moves to its place, the manifest first."""
    commits = [name for name in _names_in(place, layout.COMMITTED) if name.startswith("commit-")]
    parts = [name for name in _names_in(place, layout.TRAVEL) if name.partition(".")[0] in layout.PARTS]
    return [
        (layout.TRAVEL, manifest.NAME),
        *((layout.COMMITTED, name) for name in commits),
        *((layout.TRAVEL, name) for name in parts),
    ]


def _names_in(top: Path, relative: str) -> list[str]:
    """Return the names in a directory; none if it is missing, or no directory."""
    with suppress(FileNotFoundError, NotADirectoryError), directory_below(top, relative) as directory:
        return names(directory)
    return []


def remove_links(top: Path, relative: str) -> None:
    """Remove everything but regular files and directories, and directories nested too deep to be walked.

    Links from another machine are not trusted. This applies to all names in the path `relative` below `top`,
    and to everything inside. The files that stay are made readable. Raise OSError.
    """
    with ExitStack() as stack:
        stack.enter_context(
            suppress(FileNotFoundError)
        )  # a name that is removed meanwhile, or never was there
        directory = stack.enter_context(directory_below(top))
        for name in relative.split("/"):
            if not _keep_directory(name, directory):
                return
            directory = open_directory(name, directory)
            stack.callback(os.close, directory)
        _remove_links(directory, 0, len(os.fsencode(top / relative)))


def _remove_links(directory: int, depth: int, length: int) -> None:
    """Clean an open directory; its path has `length` bytes."""
    for name in names(directory):
        longer = length + 1 + len(os.fsencode(name))
        with suppress(FileNotFoundError):  # a running job renames what it sends
            mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
            if stat.S_ISREG(mode):
                _permit(name, stat.S_IRUSR, directory)
            elif not stat.S_ISDIR(mode) or depth >= _DEEPEST or longer > _LONGEST_PATH:
                remove(name, directory)
            else:
                _permit(name, stat.S_IRWXU, directory)
                inner = open_directory(name, directory)
                try:
                    _remove_links(inner, depth + 1, longer)
                finally:
                    os.close(inner)


def _keep_directory(name: str, dir_fd: int) -> bool:
    """Return True if `name` is a directory, which is made accessible; remove anything else."""
    try:
        if stat.S_ISDIR(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode):
            _permit(name, stat.S_IRWXU, dir_fd)
            return True
        os.unlink(name, dir_fd=dir_fd)
    except FileNotFoundError:
        pass
    return False


def _permit(name: str, required: int, dir_fd: int) -> None:
    """Add the permissions `required`, if some are missing."""
    with suppress(PermissionError):  # it belongs to another user: a later read fails
        make_accessible(name, required, dir_fd)

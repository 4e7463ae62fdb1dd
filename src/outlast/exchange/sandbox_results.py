"""Moves the files that came back from a job without a shared file system to their places.

They come from another machine, and the transfer may have been cut anywhere: only regular files that a
manifest lists with their size count; without a manifest, only checkpoints whose own checksums are right. All
steps can be repeated after a crash.
"""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from outlast.domain.model import Attempt
from outlast.exchange.experiment import Experiment
from outlast.filesystem import sync_directory
from outlast.node import legs
from outlast.node.files import link_or_copy
from outlast.node.sandbox import layout, manifest
from outlast.node.sandbox.manifest import DirectoryManifest
from outlast.training.checkpoints import checkpoint
from outlast.training.errors import CheckpointError, Damaged

#: The most levels of directories, and bytes of a path: everything within them can be walked and copied.
_DEEPEST = 200
_LONGEST_PATH = 3000
#: The longest name of a checkpoint: a temporary name is made from it.
_LONGEST_NAME = 200
#: stdout and stderr of the job itself, in its exchange directory.
JOB_LOG = "job.log"
#: The directory of files that came back and could not be used.
UNUSABLE = "unusable"


@dataclass(frozen=True)
class _ReturnedState:
    """A whole state of the run that came back; `unfinished` is its part with unfinished outputs."""

    directory: Path
    holds: DirectoryManifest
    unfinished: str

    def files(self, part: str) -> dict[str, str]:
        """Return the paths of the files below one part, by their names in it."""
        inside = part + "/"
        return {
            name[len(inside) :]: str(self.directory / name)
            for name in self.holds.files
            if name.startswith(inside)
        }


def settle(experiment: Experiment, attempt: Attempt) -> None:
    """Move checkpoints, unfinished outputs and log of an attempt to their places. Raise OSError."""
    place = experiment.exchange_of(attempt)
    for part in (layout.TRAVEL, layout.COMMITTED):
        remove_links(place / part)
    _bring_log(place, experiment.log(attempt.run, attempt.number))
    state = _newest(place)
    target = experiment.checkpoints(attempt.run)
    if state is not None:
        _replace_checkpoints(state, target)
        scratch = experiment.scratch(attempt.run, attempt.number, attempt.token)
        _bring_unfinished(state, scratch / layout.OUTPUT)
    else:
        _add_whole_ones(place / layout.TRAVEL / layout.CHECKPOINTS, target)
    _clear(place)


def set_aside(experiment: Experiment, attempt: Attempt, error: Exception) -> None:
    """Move the files that `settle` could not use out of its way; log the reason. Raise OSError."""
    place = experiment.exchange_of(attempt)
    aside = place / UNUSABLE
    aside.mkdir(exist_ok=True)
    for path in _returned_paths(place):
        with suppress(FileNotFoundError):
            layout.remove(str(aside / path.name))
            path.rename(aside / path.name)
    log = experiment.log(attempt.run, attempt.number)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8", errors="replace") as file:
        why = "%s: %s" % (type(error).__name__, error)
        file.write("outlast: the files that the job brought back cannot be used (%s)" % why)
        file.write("; they are in %s\n" % aside)


def _newest(place: Path) -> _ReturnedState | None:
    """Return the state that came back with the job, or a newer commit; None if the job made no progress."""
    found: list[_ReturnedState] = []
    commit = layout.newest_commit(str(place))
    if commit is not None and commit[1].serial > 0:  # commit 0 is the input of the job
        found.append(_ReturnedState(Path(commit[0]), commit[1], layout.UNFINISHED))
    back = place / layout.TRAVEL
    packed = manifest.read(str(back))
    if packed is not None and manifest.is_whole(str(back), packed):
        last = len(legs.claimed(str(back)))
        # First, because of two states with the same serial this one includes work after the commit.
        found.insert(0, _ReturnedState(back, packed, layout.scratch_name(last)))
    return max(found, key=lambda state: state.holds.serial, default=None)


def _replace_checkpoints(state: _ReturnedState, target: Path) -> None:
    """Replace the directory of checkpoints by one with the returned files, atomically."""
    coming, going = target.with_name("checkpoints.coming"), target.with_name("checkpoints.going")
    layout.remove(str(coming))
    coming.mkdir(parents=True)
    for name, path in state.files(layout.CHECKPOINTS).items():
        copy(Path(path), coming / name)
    for name, goal in state.holds.links.items():
        if name.startswith(layout.CHECKPOINTS + "/"):
            link = coming / name[len(layout.CHECKPOINTS) + 1 :]
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(goal)
    if not any(_is_whole(path) for path in coming.iterdir()):
        # There is no whole checkpoint to resume from: keep the earlier ones.
        for before in (target, going):
            _link_whole_ones(before, coming)
    _sync(coming)
    if target.exists():
        layout.remove(str(going))
        target.rename(going)
    coming.rename(target)
    sync_directory(target.parent)
    layout.remove(str(going))


def _add_whole_ones(source: Path, target: Path) -> None:
    """Add the whole checkpoints in `source` to `target`, durably."""
    if not source.is_dir():
        return
    target.mkdir(parents=True, exist_ok=True)
    _link_whole_ones(source, target)
    _sync(target)


def _link_whole_ones(source: Path, target: Path) -> None:
    """Link or copy the whole checkpoints in `source` that `target` lacks."""
    with suppress(FileNotFoundError):
        for path in sorted(source.iterdir()):
            if _is_whole(path) and not (target / path.name).exists():
                temporary = target / (".%s.tmp" % path.name)
                layout.remove(str(temporary))
                copy(path, temporary)
                temporary.rename(target / path.name)


def _is_whole(path: Path) -> bool:
    if not layout.is_checkpoint(path.name) or len(path.name) > _LONGEST_NAME or path.is_symlink():
        return False
    try:
        checkpoint.verify(str(path))
    except (OSError, Damaged, CheckpointError):
        return False
    return True


def _bring_unfinished(state: _ReturnedState, target: Path) -> None:
    files = state.files(state.unfinished + "/" + layout.OUTPUT)
    if not files or target.exists():
        return
    temporary = target.with_name(".%s.tmp" % target.name)
    layout.remove(str(temporary))
    for name, path in files.items():
        copy(Path(path), temporary / name)
    temporary.rename(target)


def _bring_log(place: Path, target: Path) -> None:
    """Write the log of the training, followed by the output of the job itself, to `target`."""
    back, news = place / layout.TRAVEL / layout.LOG, Path(layout.news_path(str(place))) / layout.LOG
    longest = max(
        (path for path in (back, news) if _is_file(path)), key=lambda path: path.stat().st_size, default=None
    )
    parts = [path for path in (longest, place / JOB_LOG) if path is not None and _is_file(path)]
    if not parts:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(".%s.tmp" % target.name)
    with temporary.open("wb") as log:
        for path in parts:
            with path.open("rb") as part:
                shutil.copyfileobj(part, log)
    temporary.replace(target)


def _clear(place: Path) -> None:
    """Remove the files that have been moved: links to them would keep old checkpoints on disk."""
    for path in _returned_paths(place):
        layout.remove(str(path))


def _returned_paths(place: Path) -> list[Path]:
    """Return the paths that `settle` moves to their places, the manifest first."""
    back = place / layout.TRAVEL
    commits = (place / layout.COMMITTED).glob("commit-*")
    parts = [path for part in layout.PARTS for path in (*back.glob(part), *back.glob(part + ".*"))]
    return [back / manifest.NAME, *commits, *parts]


def remove_links(directory: Path) -> None:
    """Remove everything but regular files and directories, and directories nested too deep to be walked.

    Links from another machine are not trusted; `directory` itself is removed if it is not a directory. The
    files that stay are made readable. Raise OSError.
    """
    pending = [(directory, 0)]
    while pending:
        path, depth = pending.pop()
        with suppress(FileNotFoundError):  # a running job renames what it sends
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode) and depth:
                _permit(path, mode, stat.S_IRUSR)
            elif not stat.S_ISDIR(mode) or depth > _DEEPEST or len(os.fsencode(path)) > _LONGEST_PATH:
                layout.remove(str(path))
            else:
                _permit(path, mode, stat.S_IRWXU)
                pending += [(inner, depth + 1) for inner in path.iterdir()]


def _permit(path: Path, mode: int, required: int) -> None:
    """Add the permissions `required` to those in `mode`, if some are missing."""
    if mode & required != required:
        with suppress(PermissionError):  # it belongs to another user: a later read fails
            path.chmod(stat.S_IMODE(mode) | required)


def copy(source: Path, target: Path) -> None:
    """Copy a file, link or directory without hidden entries; files are hard-linked where possible."""
    if source.is_symlink():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source.readlink())
    elif source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        for entry in source.iterdir():
            if not entry.name.startswith("."):
                copy(entry, target / entry.name)
    elif _is_file(source):
        target.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(str(source), str(target))


def _sync(directory: Path) -> None:
    """Sync all files and directories: the job's own copies are about to be removed."""
    for place, _, files in os.walk(directory):
        for name in files:
            path = Path(place) / name
            if path.is_symlink():
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_directory(place)


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False

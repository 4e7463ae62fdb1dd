"""One commit: a state of the checkpoints, whole, from the sandbox of a running job to the access point."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import dataclass
from typing import Callable, Tuple

from outlast.node.files import copy_file
from outlast.node.legs import Leg, possible_legs
from outlast.node.sandbox import layout, manifest
from outlast.node.sandbox.chirp import Chirp, ChirpError
from outlast.node.sandbox.manifest import DirectoryManifest

#: A directory that changes faster than it can be listed is tried again this often before it is given up.
_LOOKS = 5
#: A training's log beyond this size is not sent while the training runs.
_LARGEST_LOG = 16 * 2**20
_MANIFEST = manifest.NAME

#: What tells an unchanged file on this machine: inode, size, time of change.
Mark = Tuple[int, int, int]


class FilesChanged(OSError):
    """Files changed while they were looked at or sent."""


@dataclass(frozen=True)
class SentCommit:
    """A commit that is whole: what is unchanged in the next one is linked to it, not sent again."""

    name: str
    marks: dict[str, Mark]


@dataclass(frozen=True)
class Sandbox:
    """Where things are in the job's own directory."""

    home: str
    #: The directory of this leg's outputs in the making.
    output: str

    @property
    def travel(self) -> str:
        return os.path.join(self.home, layout.TRAVEL)

    @property
    def snapshot(self) -> str:
        return os.path.join(self.home, ".snapshot")


def received_commit(sandbox: Sandbox, commit: layout.Commit | None) -> SentCommit | None:
    """What came along from a commit and has not been touched yet."""
    if commit is None:
        return None
    directory, holds = commit
    marks = {}
    for name in holds.files:
        try:
            marks[name] = _mark(os.path.join(sandbox.travel, name))
        except FileNotFoundError:
            continue  # unfinished outputs are elsewhere now
    return SentCommit(os.path.basename(directory), marks)


def send_state(
    chirp: Chirp, sandbox: Sandbox, before: SentCommit | None, serial: int, pulse: Callable[[], None]
) -> tuple[SentCommit, int]:
    """Everything under a new name, which counts once its manifest is there; what was sent, and its bytes."""
    try:
        holds = _take_snapshot(sandbox, serial)
        marks = {name: _mark(os.path.join(sandbox.snapshot, name)) for name in holds.files}
        place = f"{layout.COMMITTED}/{layout.commit_name(serial)}"
        chirp.remove(place)
        made = {""}
        sent = 0
        for name in holds.files:
            _make_directories(chirp, place, os.path.dirname(name), made)
            if (
                before is None
                or before.marks.get(name) != marks[name]
                or not _linked(chirp, before, name, place)
            ):
                sent += chirp.send(os.path.join(sandbox.snapshot, name), f"{place}/{name}", pulse)
        for name, mark in marks.items():
            if _mark(os.path.join(sandbox.snapshot, name)) != mark:
                raise FilesChanged(f"{name} changed while it was sent")
        _make_directories(chirp, place, "", made)
        # From here on, what the job has with it is no older than this commit.
        layout.begin(sandbox.home, serial)
        _send_by_rename(chirp, holds.to_json(), place, _MANIFEST)
        return SentCommit(layout.commit_name(serial), marks), sent
    finally:
        shutil.rmtree(sandbox.snapshot, ignore_errors=True)


def remove_older(chirp: Chirp, newest: SentCommit) -> None:
    for name in chirp.names(layout.COMMITTED):
        if layout.is_commit(name) and name != newest.name:
            chirp.remove(f"{layout.COMMITTED}/{name}")


def send_news(chirp: Chirp, sandbox: Sandbox, leg: Leg, *, earlier: bool) -> None:
    """Claim, event log and progress of this leg, or of all so far, and the training's log."""
    place = f"{layout.COMMITTED}/news"
    chirp.make_directory(layout.COMMITTED)
    chirp.make_directory(place)
    for one in possible_legs(sandbox.travel):
        if one.number > leg.number:
            break
        if one.number < leg.number and not earlier:
            continue
        target = place if one.number == 1 else f"{place}/leg-{one.number}"
        chirp.make_directory(target)
        # The claim last: a leg counts from then on.
        for path in (one.events_path, one.progress_path, one.progress_path[:-1], one.claim_path):
            _send_small(chirp, path, target)
    _send_small(chirp, os.path.join(sandbox.travel, layout.LOG), place)


def _send_small(chirp: Chirp, path: str, place: str) -> None:
    try:
        with open(path, "rb") as file:
            content = file.read(_LARGEST_LOG + 1)
    except FileNotFoundError:
        return
    if len(content) <= _LARGEST_LOG:
        _send_by_rename(chirp, content, place, os.path.basename(path))


def _send_by_rename(chirp: Chirp, content: bytes, place: str, name: str) -> None:
    chirp.send_bytes(content, f"{place}/.{name}.tmp")
    chirp.rename(f"{place}/.{name}.tmp", f"{place}/{name}")


def _make_directories(chirp: Chirp, place: str, inside: str, made: set[str]) -> None:
    if made == {""}:
        chirp.make_directory(layout.COMMITTED)
        chirp.make_directory(place)
        made.add(".")
    parts = inside.split("/") if inside else []
    for count in range(1, len(parts) + 1):
        directory = "/".join(parts[:count])
        if directory not in made:
            chirp.make_directory(f"{place}/{directory}")
            made.add(directory)


def _linked(chirp: Chirp, before: SentCommit, name: str, place: str) -> bool:
    """False where the access point's file system has no links, or has lost the earlier commit."""
    try:
        chirp.link(f"{layout.COMMITTED}/{before.name}/{name}", f"{place}/{name}")
    except ChirpError as error:
        if error.code == 0:
            raise  # not an answer: nobody is there
        return False
    return True


def _take_snapshot(sandbox: Sandbox, serial: int) -> DirectoryManifest:
    """A second name for every file, so that it stays when the training removes or replaces it."""
    for _ in range(_LOOKS):
        shutil.rmtree(sandbox.snapshot, ignore_errors=True)
        try:
            _mirror(
                os.path.join(sandbox.travel, layout.CHECKPOINTS),
                os.path.join(sandbox.snapshot, layout.CHECKPOINTS),
            )
            if os.path.isdir(sandbox.output):
                _mirror(sandbox.output, os.path.join(sandbox.snapshot, layout.UNFINISHED, layout.OUTPUT))
        except FileNotFoundError:
            continue  # half of a checkpoint must not be taken for all of it
        return manifest.list_files(sandbox.snapshot, layout.PARTS, serial)
    raise FilesChanged("files vanish faster than they can be looked at")


def _mirror(source: str, target: str) -> None:
    os.makedirs(target)
    with os.scandir(source) as listing:
        for entry in listing:
            if entry.name.startswith("."):
                continue
            goal = os.path.join(target, entry.name)
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), goal)
            elif entry.is_dir(follow_symlinks=False):
                _mirror(entry.path, goal)
            elif entry.is_file(follow_symlinks=False):
                _link_or_copy(entry.path, goal)


def _link_or_copy(path: str, goal: str) -> None:
    try:
        os.link(path, goal)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.EXDEV, errno.ENOSYS):
            raise
        copy_file(path, goal)


def _mark(path: str) -> Mark:
    status = os.lstat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns

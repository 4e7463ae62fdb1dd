"""One commit: sends a complete state of the checkpoints from a running job to the access point."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Callable, Tuple

from outlast.node.files import link_or_copy
from outlast.node.legs import Leg, possible_legs
from outlast.node.progress_file import newest_progress_path
from outlast.node.sandbox import layout, manifest
from outlast.node.sandbox.chirp import Chirp, ChirpError
from outlast.node.sandbox.manifest import DirectoryManifest
from outlast.untrusted_files import read_file, remove_tree

#: How often to try a snapshot of a directory that changes meanwhile.
_SNAPSHOT_TRIES = 5
#: A log larger than this is not sent while the training runs.
_MAX_LOG_BYTES = 16 * 2**20
_MANIFEST = manifest.NAME
#: Errors of a file that is missing, too large, a link or no file at all.
_NOT_SENT = (errno.ENOENT, errno.EFBIG, errno.ELOOP, errno.EINVAL, errno.ENXIO)

#: Inode, size and modification time: equal for a file that has not changed on this machine.
FileStamp = Tuple[int, int, int]


class FilesChanged(OSError):
    """Files changed while they were listed or sent."""


@dataclass(frozen=True)
class SentCommit:
    """A complete commit; files that are unchanged in the next one are linked to it, not sent again."""

    name: str
    stamps: dict[str, FileStamp]


@dataclass(frozen=True)
class Sandbox:
    """The paths in the job's directory."""

    home: str
    #: The directory of this leg's unfinished outputs.
    output: str
    #: Writes the archive of what the training made so far; returns its path, or None if there is none.
    pack_made: Callable[[], str | None] = lambda: None

    @property
    def travel(self) -> str:
        return os.path.join(self.home, layout.TRAVEL)

    @property
    def snapshot(self) -> str:
        return os.path.join(self.home, ".snapshot")


def received_commit(sandbox: Sandbox, commit: layout.Commit | None) -> SentCommit | None:
    """Return the commit that was restored in this job, with the stamps of its unchanged files."""
    if commit is None:
        return None
    directory, listed = commit
    stamps = {}
    for name in listed.files:
        try:
            stamps[name] = _stamp(os.path.join(sandbox.travel, name))
        except FileNotFoundError:
            continue  # unfinished outputs have been moved
    return SentCommit(os.path.basename(directory), stamps)


def send_state(
    chirp: Chirp, sandbox: Sandbox, before: SentCommit | None, serial: int, pulse: Callable[[], None]
) -> tuple[SentCommit, int]:
    """Send a new commit, which counts once its manifest is there. Return it and the bytes that were sent.

    Raises FilesChanged, ChirpError or another OSError, and whatever `pulse` raises.
    """
    try:
        listed = mirror_state(sandbox, serial)
        stamps = {name: _stamp(os.path.join(sandbox.snapshot, name)) for name in listed.files}
        place = f"{layout.COMMITTED}/{layout.commit_name(serial)}"
        chirp.remove(place)
        made = {""}
        sent = 0
        for name in listed.files:
            _make_directories(chirp, place, os.path.dirname(name), made)
            if (
                before is None
                or before.stamps.get(name) != stamps[name]
                or not _link(chirp, before, name, place)
            ):
                sent += chirp.send(os.path.join(sandbox.snapshot, name), f"{place}/{name}", pulse)
        for name, stamp in stamps.items():
            if _stamp(os.path.join(sandbox.snapshot, name)) != stamp:
                raise FilesChanged(f"{name} changed while it was sent")
        _make_directories(chirp, place, "", made)
        # From here on `travel` is not older than this commit.
        layout.write_serial(sandbox.home, serial)
        _send_by_rename(chirp, listed.to_json(), place, _MANIFEST)
        return SentCommit(layout.commit_name(serial), stamps), sent
    finally:
        _remove_snapshot(sandbox)


def remove_older(chirp: Chirp, newest: SentCommit) -> None:
    """Remove all commits but the newest from the access point. Raises ChirpError."""
    for name in chirp.list_names(layout.COMMITTED):
        if layout.is_commit(name) and name != newest.name:
            chirp.remove(f"{layout.COMMITTED}/{name}")


def send_news(chirp: Chirp, sandbox: Sandbox, leg: Leg, *, earlier: bool) -> None:
    """Send claim, event log and progress of this leg, and the training log; with `earlier`, of all legs."""
    place = f"{layout.COMMITTED}/{layout.NEWS}"
    chirp.make_directory(layout.COMMITTED)
    chirp.make_directory(place)
    for one in possible_legs(sandbox.travel):
        if one.number > leg.number:
            break
        if one.number < leg.number and not earlier:
            continue
        target = place if one.number == 1 else f"{place}/leg-{one.number}"
        chirp.make_directory(target)
        progress = one.progress_path
        # The claim last: a leg counts once its claim is there.
        for path in (one.events_path, progress, newest_progress_path(progress), one.claim_path):
            _send_small(chirp, path, target)
    _send_small(chirp, os.path.join(sandbox.travel, layout.LOG), place)


def _send_small(chirp: Chirp, path: str, place: str) -> None:
    """Send a file to the directory `place`, unless it is missing or too large."""
    try:
        content = read_file(path, _MAX_LOG_BYTES)
    except OSError as error:
        if error.errno in _NOT_SENT:
            return
        raise
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


def _link(chirp: Chirp, before: SentCommit, name: str, place: str) -> bool:
    """Link a file to the earlier commit. Return False if the access point cannot do that, or has lost it."""
    try:
        chirp.link(f"{layout.COMMITTED}/{before.name}/{name}", f"{place}/{name}")
    except ChirpError as error:
        if error.code == 0:
            raise  # the starter did not respond
        return False
    return True


def mirror_state(sandbox: Sandbox, serial: int) -> DirectoryManifest:
    """Link all files of the state to `sandbox.snapshot` and return their manifest. Raises OSError.

    They stay there if the training removes or replaces them. Raises FilesChanged if it does so all the time.
    """
    for _ in range(_SNAPSHOT_TRIES):
        _remove_snapshot(sandbox)
        try:
            _mirror(
                os.path.join(sandbox.travel, layout.CHECKPOINTS),
                os.path.join(sandbox.snapshot, layout.CHECKPOINTS),
            )
            kept = layout.newest_snapshot(sandbox.travel)
            if kept is not None:
                _mirror(os.path.join(sandbox.travel, kept), os.path.join(sandbox.snapshot, kept))
            if os.path.isdir(sandbox.output):
                _mirror(sandbox.output, os.path.join(sandbox.snapshot, layout.UNFINISHED, layout.OUTPUT))
            made = sandbox.pack_made()
            if made is not None:
                os.makedirs(os.path.join(sandbox.snapshot, layout.UNFINISHED), exist_ok=True)
                link_or_copy(made, os.path.join(sandbox.snapshot, layout.UNFINISHED, layout.MADE))
        except FileNotFoundError:
            continue  # part of a checkpoint must not count as the whole
        return manifest.list_files(sandbox.snapshot, layout.PARTS, serial)
    raise FilesChanged("files are removed faster than they can be listed")


def _remove_snapshot(sandbox: Sandbox) -> None:
    with suppress(OSError):  # there is none, or it stays; the next one has the same name and would fail
        remove_tree(sandbox.snapshot)


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
                link_or_copy(entry.path, goal)


def _stamp(path: str) -> FileStamp:
    status = os.lstat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns

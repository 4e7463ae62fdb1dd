"""The directory of a job without a shared file system, and the choice of the newest of its two states.

    order.json  outlast-….pyz  code-….tar   transferred to the job
    committed/commit-000007/                one complete state: checkpoints, snapshots of them, unfinished
                                            outputs, manifest.json
    committed/news/                         from earlier legs: claims, event logs, progress, training log
    travel/                                 the files that this job changes; HTCondor transfers it back

`committed` is stored with the controller, is transferred to the job at every start on another machine, and
gets new commits from the running job (see `commit`). `travel` is kept if the scheduler ends the job properly.
After a hard kill the newest commit is newer, otherwise `travel`; a serial number shows which.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Iterable, Tuple

from outlast.node import legs
from outlast.node.files import copy_file, copy_link_target, make_tree_accessible
from outlast.node.legs import Leg
from outlast.node.sandbox import manifest
from outlast.node.sandbox.manifest import DirectoryManifest
from outlast.untrusted_files import (
    create_file,
    directory_below,
    open_directory,
    parse_json,
    read_below,
    remove,
    walk,
)

#: The directory that HTCondor transfers back at the end of a job, at an eviction and for a restart in place.
TRAVEL = "travel"
COMMITTED = "committed"
NEWS = "news"
CHECKPOINTS = "checkpoints"
UNFINISHED = "unfinished"
SNAPSHOTS = "snapshots"
OUTPUT = "output"
#: The archive of what the training made in its working directory.
MADE = "made.tar"
LOG = "training.log"
#: The directories in a commit.
PARTS = [CHECKPOINTS, UNFINISHED, SNAPSHOTS]
_SERIAL = "serial.json"
#: A whole snapshot of checkpoints (see `snapshot_store`); other names in its directory are not transferred.
_SNAPSHOT = re.compile(r"\d{6,12}")
#: The mark of a snapshot that is being put back.
_RESTORING = "restoring.json"
_COMMIT = re.compile(r"commit-(\d{6,})")
#: A complete checkpoint of `outlast.training`, which does not change any more.
_CHECKPOINT = re.compile(r"step-\d{12,}-g\d{6,}-s\d{6,}")

Commit = Tuple[str, DirectoryManifest]


def commit_name(serial: int) -> str:
    return "commit-%06d" % serial


def is_commit(name: str) -> bool:
    return _COMMIT.fullmatch(name) is not None


def is_checkpoint(name: str) -> bool:
    """Return True for the name of a complete checkpoint of `outlast.training`."""
    return _CHECKPOINT.fullmatch(name) is not None


def is_snapshot(name: str) -> bool:
    return _SNAPSHOT.fullmatch(name) is not None


def newest_snapshot(travel: str) -> str | None:
    """Return the relative path of the newest snapshot below `travel`; None if there is none."""
    try:
        with directory_below(travel, SNAPSHOTS) as descriptor:
            names = [name for name in os.listdir(descriptor) if is_snapshot(name)]
    except (FileNotFoundError, NotADirectoryError):
        return None
    return f"{SNAPSHOTS}/{max(names, key=int)}" if names else None


def news_path(home: str) -> str:
    """Return the directory with the logs that legs have sent while they were running."""
    return os.path.join(home, COMMITTED, NEWS)


def newest_commit(home: str) -> Commit | None:
    """Return the directory and the manifest of the newest complete commit, or None."""
    for serial in sorted(_serials(home), reverse=True):
        name = f"{COMMITTED}/{commit_name(serial)}"
        with suppress(OSError), directory_below(home, name) as descriptor:
            opened = f"/proc/self/fd/{descriptor}"
            found = manifest.read(opened)
            if found is not None and found.serial == serial and manifest.is_whole(opened, found):
                return os.path.join(home, name), found
    return None


def _serials(home: str) -> list[int]:
    try:
        with directory_below(home, COMMITTED) as descriptor:
            names = os.listdir(descriptor)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [int(match.group(1)) for match in map(_COMMIT.fullmatch, names) if match]


def read_serial(home: str) -> int:
    """Return the serial of `travel`, or -1 if no job has used it."""
    try:
        serial = parse_json(read_below(home, f"{TRAVEL}/{_SERIAL}", 100))
    except (OSError, ValueError):
        return -1
    return serial if isinstance(serial, int) else -1


def restore_newest(home: str) -> Commit | None:
    """Bring the newest state into `travel`, at the start of a job and before its claim. Raises OSError.

    Return the commit if the newest state is one: files that stay unchanged need not be sent again.
    """
    travel = os.path.join(home, TRAVEL)
    os.makedirs(os.path.join(travel, CHECKPOINTS), exist_ok=True)
    merge_news(home)
    commit, own_serial = newest_commit(home), read_serial(home)
    if commit is not None and commit[1].serial > own_serial:
        _restore_commit(home, commit)
    else:
        packed = manifest.read(travel)
        if packed is not None:
            _restore_links(travel, packed.links.items())
        commit = None
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(travel, manifest.NAME))  # from now on the directory changes
    write_serial(home, max([own_serial, *_serials(home)]) + 1)
    return commit


def write_serial(home: str, serial: int) -> None:
    """Set the serial of `travel`: it is newer than every state with a lower serial."""
    path = os.path.join(home, TRAVEL, _SERIAL)
    with create_file(path + ".tmp") as file:
        file.write(b"%d" % serial)
    os.replace(path + ".tmp", path)


def pack(home: str) -> None:
    """Write the manifest of `travel`, at the end of a leg, for its transfer. Raises OSError."""
    travel = os.path.join(home, TRAVEL)
    unfinished = [name for name in os.listdir(travel) if name.partition(".")[0] == UNFINISHED]
    _remove_states_aside(travel)
    for part in (CHECKPOINTS, *(os.path.join(name, OUTPUT) for name in unfinished)):
        with suppress(FileNotFoundError):
            copy_link_target(os.path.join(travel, part))
    # HTCondor would hold the job for files that it cannot read, and for links, and transfer nothing.
    make_tree_accessible(travel, sandboxed=True)
    holds = manifest.list_files(travel, [CHECKPOINTS, *unfinished], read_serial(home))
    _remove_links(travel)
    manifest.write(travel, holds)


def _remove_states_aside(travel: str) -> None:
    """Remove states that were put aside, and what killed jobs left, from the directory of snapshots."""
    with suppress(FileNotFoundError, NotADirectoryError), directory_below(travel, SNAPSHOTS) as place:
        for name in os.listdir(place):
            if not is_snapshot(name) and name != _RESTORING:
                remove(name, place)


def _remove_links(directory: str) -> None:
    """Remove everything but files and directories."""
    top = open_directory(directory)
    try:
        for entry in walk(top):
            if not entry.is_directory and not entry.is_file:
                os.unlink(entry.name, dir_fd=entry.dir_fd)
    finally:
        os.close(top)


def merge_news(home: str) -> None:
    """Copy newer logs of earlier legs to `travel`. Logs only grow, so the longer one is newer."""
    travel, news = os.path.join(home, TRAVEL), news_path(home)
    for leg in legs.possible_legs(news):
        if not os.path.exists(leg.claim_path):
            break
        target = Leg(leg.number, travel if leg.number == 1 else os.path.join(travel, f"leg-{leg.number}"))
        os.makedirs(target.directory, exist_ok=True)
        if _size(leg.events_path) > _size(target.events_path) or not os.path.exists(target.claim_path):
            for name in os.listdir(leg.directory):
                if os.path.isfile(os.path.join(leg.directory, name)):
                    copy_file(os.path.join(leg.directory, name), os.path.join(target.directory, name))
    if _size(os.path.join(news, LOG)) > _size(os.path.join(travel, LOG)):
        copy_file(os.path.join(news, LOG), os.path.join(travel, LOG))


def scratch_name(number: int) -> str:
    """Return the name of a leg's scratch in `travel`; 0 (none has begun) is treated as 1."""
    return UNFINISHED if number <= 1 else f"{UNFINISHED}.{number}"


def _restore_commit(home: str, commit: Commit) -> None:
    directory, holds = commit
    travel = os.path.join(home, TRAVEL)
    _replace_checkpoints(os.path.join(directory, CHECKPOINTS), os.path.join(travel, CHECKPOINTS))
    snapshots = os.path.join(directory, SNAPSHOTS)
    if os.path.isdir(snapshots):
        remove(os.path.join(travel, SNAPSHOTS))
        os.rename(snapshots, os.path.join(travel, SNAPSHOTS))
    # The next leg expects the files of the last one there.
    unfinished = os.path.join(travel, scratch_name(len(legs.claimed(travel))))
    for name in (OUTPUT, MADE):
        source, target = os.path.join(directory, UNFINISHED, name), os.path.join(unfinished, name)
        if os.path.isdir(source) or os.path.isfile(source):
            remove(target)
            os.makedirs(unfinished, exist_ok=True)
            os.rename(source, target)
    _restore_links(travel, [item for item in holds.links.items() if item[0].startswith(CHECKPOINTS + "/")])


def _replace_checkpoints(source: str, target: str) -> None:
    """Replace the older files in `target`, but keep its complete checkpoints as a fallback."""
    for name in os.listdir(target):
        path = os.path.join(target, name)
        if name.startswith(".") or (is_checkpoint(name) and os.path.isdir(path)):
            continue
        remove(path)
    with suppress(FileNotFoundError):
        for name in os.listdir(source):
            if not os.path.lexists(os.path.join(target, name)):
                os.rename(os.path.join(source, name), os.path.join(target, name))


def _restore_links(travel: str, links: Iterable[tuple[str, str]]) -> None:
    """Create symbolic links again, which a transfer does not keep; leave out those that lead outside."""
    made = []
    for name, goal in links:
        folder, base = os.path.split(name)
        with suppress(FileNotFoundError, NotADirectoryError), directory_below(travel, folder) as place:
            path = os.path.join(travel, name)
            if not os.path.islink(path):
                remove(path)
                os.symlink(goal, base, dir_fd=place)
            made.append(name)
    top = os.path.realpath(travel)
    # Only now: one link may lead through another.
    for name in made:
        part = os.path.join(top, name.split("/")[0], "")
        if not os.path.realpath(os.path.join(travel, name)).startswith(part):
            remove(os.path.join(travel, name))


def _size(path: str) -> int:
    """Return the size of a file, or -1 if it does not exist."""
    try:
        return os.stat(path).st_size
    except OSError:
        return -1

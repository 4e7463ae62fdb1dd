"""A job that shares no file system: what came along, what goes back, and which of two states is newer.

    order.json  outlast-….pyz  code-….tar      come along, as they are
    committed/commit-000007/                   one whole state: checkpoints, unfinished outputs, manifest.json
    committed/news/                            what earlier legs said: claims, event logs, progress, their log
    travel/                                    where this job works; the scheduler keeps it

`committed` lies with the controller, comes along at every start on another machine, and is added to by the
running job (see `commits`). `travel` is kept when the scheduler ends the job in good order. After a hard kill
what was committed is newer, after a soft one `travel` is: a serial number tells which.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from contextlib import suppress
from typing import Iterable, Tuple

from outlast.node import legs
from outlast.node.files import copy_file
from outlast.node.legs import Leg
from outlast.node.sandbox import manifest
from outlast.node.sandbox.manifest import DirectoryManifest

TRAVEL = "travel"
COMMITTED = "committed"
CHECKPOINTS = "checkpoints"
UNFINISHED = "unfinished"
OUTPUT = "output"
LOG = "training.log"
#: What a commit holds.
PARTS = [CHECKPOINTS, UNFINISHED]
_SERIAL = "serial.json"
_COMMIT = re.compile(r"commit-(\d{6,})")
#: A whole checkpoint of `outlast.training`, which never changes once it has its name.
_FOR_EVER = re.compile(r"step-\d{12,}-g\d{6,}-s\d{6,}")

Commit = Tuple[str, DirectoryManifest]


def commit_name(serial: int) -> str:
    return "commit-%06d" % serial


def is_commit(name: str) -> bool:
    return _COMMIT.fullmatch(name) is not None


def is_checkpoint(name: str) -> bool:
    return _FOR_EVER.fullmatch(name) is not None


def news(home: str) -> str:
    return os.path.join(home, COMMITTED, "news")


def newest_commit(home: str) -> Commit | None:
    """The newest whole one: its directory and what it holds."""
    place = os.path.join(home, COMMITTED)
    for serial in sorted(_serials(home), reverse=True):
        directory = os.path.join(place, commit_name(serial))
        found = manifest.read(directory)
        if found is not None and found.serial == serial and manifest.is_whole(directory, found):
            return directory, found
    return None


def _serials(home: str) -> list[int]:
    try:
        names = os.listdir(os.path.join(home, COMMITTED))
    except FileNotFoundError:
        return []
    return [int(match.group(1)) for match in map(_COMMIT.fullmatch, names) if match]


def read_serial(home: str) -> int:
    """That of `travel`; -1 where it has not been worked in."""
    try:
        with open(os.path.join(home, TRAVEL, _SERIAL), encoding="ascii") as file:
            return int(json.loads(file.read(100)))
    except (OSError, ValueError, TypeError):
        return -1


def restore_newest(home: str) -> Commit | None:
    """At the start of a job, before its claim: the newest state into `travel`.

    The commit that this state is, if it is one: then what has not changed need not be sent again.
    """
    travel = os.path.join(home, TRAVEL)
    os.makedirs(os.path.join(travel, CHECKPOINTS), exist_ok=True)
    merge_news(home)
    commit, have = newest_commit(home), read_serial(home)
    if commit is not None and commit[1].serial > have:
        _take(home, commit)
    else:
        packed = manifest.read(travel)
        if packed is not None:
            _tie(travel, packed.links.items())
        commit = None
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(travel, manifest.NAME))  # from now on the directory changes
    begin(home, max([have, *_serials(home)]) + 1)
    return commit


def begin(home: str, serial: int) -> None:
    """From here on `travel` is newer than every state with a lower number."""
    path = os.path.join(home, TRAVEL, _SERIAL)
    with open(path + ".tmp", "w", encoding="ascii") as file:
        file.write(str(serial))
    os.replace(path + ".tmp", path)


def pack(home: str) -> None:
    """At the end of a leg: say what `travel` holds, for whoever unpacks it on another machine."""
    travel = os.path.join(home, TRAVEL)
    unfinished = [name for name in os.listdir(travel) if name.partition(".")[0] == UNFINISHED]
    holds = manifest.list_files(travel, [CHECKPOINTS, *unfinished], read_serial(home))
    _make_fit(travel)
    manifest.write(travel, holds)


def _make_fit(directory: str) -> None:
    """A link to a directory, or a file that cannot be read: HTCondor holds the job and takes nothing."""
    for place, names, files in os.walk(directory):
        for name in [*names, *files]:
            path = os.path.join(place, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISDIR(mode):
                os.chmod(path, mode | stat.S_IRWXU)
            elif stat.S_ISREG(mode):
                os.chmod(path, mode | stat.S_IRUSR | stat.S_IWUSR)
            else:
                os.unlink(path)


def merge_news(home: str) -> None:
    """What earlier legs said and `travel` does not know: logs only grow, so the longer one is the newer."""
    travel, told = os.path.join(home, TRAVEL), news(home)
    for leg in legs.possible_legs(told):
        if not os.path.exists(leg.claim_path):
            break
        target = Leg(leg.number, travel if leg.number == 1 else os.path.join(travel, f"leg-{leg.number}"))
        os.makedirs(target.directory, exist_ok=True)
        if _size(leg.events_path) > _size(target.events_path) or not os.path.exists(target.claim_path):
            for name in os.listdir(leg.directory):
                if os.path.isfile(os.path.join(leg.directory, name)):
                    copy_file(os.path.join(leg.directory, name), os.path.join(target.directory, name))
    if _size(os.path.join(told, LOG)) > _size(os.path.join(travel, LOG)):
        copy_file(os.path.join(told, LOG), os.path.join(travel, LOG))


def scratch_name(number: int) -> str:
    """The directory of a leg's unfinished outputs, in `travel`; 0: none has begun, the first finds it."""
    return UNFINISHED if number <= 1 else f"{UNFINISHED}.{number}"


def _take(home: str, commit: Commit) -> None:
    directory, holds = commit
    travel = os.path.join(home, TRAVEL)
    _replace_checkpoints(os.path.join(directory, CHECKPOINTS), os.path.join(travel, CHECKPOINTS))
    source = os.path.join(directory, UNFINISHED, OUTPUT)
    if os.path.isdir(source):
        # Where the next leg looks for what the last one has left.
        target = os.path.join(travel, scratch_name(len(legs.claimed(travel))), OUTPUT)
        shutil.rmtree(target, ignore_errors=True)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.rename(source, target)
    _tie(travel, [item for item in holds.links.items() if item[0].startswith(CHECKPOINTS + "/")])


def _replace_checkpoints(source: str, target: str) -> None:
    """All that is in `target` is older; its whole checkpoints stay nevertheless, to fall back on."""
    for name in os.listdir(target):
        path = os.path.join(target, name)
        if name.startswith(".") or (is_checkpoint(name) and os.path.isdir(path)):
            continue
        remove(path)
    with suppress(FileNotFoundError):
        for name in os.listdir(source):
            if not os.path.lexists(os.path.join(target, name)):
                os.rename(os.path.join(source, name), os.path.join(target, name))


def _tie(travel: str, links: Iterable[tuple[str, str]]) -> None:
    """Make the links again, which do not travel."""
    for name, goal in links:
        path = os.path.join(travel, name)
        if not os.path.islink(path) and os.path.isdir(os.path.dirname(path)):
            remove(path)
            os.symlink(goal, path)


def remove(path: str) -> None:
    """A file, a link or a directory; it may be gone already."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        with suppress(FileNotFoundError):
            os.unlink(path)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return -1

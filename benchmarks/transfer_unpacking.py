"""50,000 files in class tars in one tar, from a server that gives 100 MiB/s, until they can be read."""

from __future__ import annotations

import functools
import os
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from disks import Disk, private_disk
from transfer_peers import LIMIT, curl, with_program, with_python
from transfer_scene import MB, MIB, Scene, sha256
from verdicts import Goal, Row, in_turns, ratio

from servers.nginx import Nginx
from support.archives import nested_tar

FILES, CLASSES = 50_000, 100
NAME = "train.tar"
RATE = 100 * MIB
ROOM = 3 << 30
#: Seconds between two looks at the disk.
LOOK = 0.01
SMOKE = {"FILES": 20, "CLASSES": 2, "ROOM": 128 << 20}

UNPACKED, FETCHED = "outlast, unpacked on the way", "outlast, the file only"
CURL, CURL_SYNCED, WRAPPER = "curl", "curl, and sync of the file", "curl, tar, and tar for each class"


@dataclass(frozen=True)
class Taken:
    wall: float
    #: Bytes of disk: the most at any time, and in the end.
    peak: int
    result: int


def unpacking(scene: Scene) -> list[Row]:
    """Wall time of fetch and unpack as ratios to a download, and to one that is unpacked afterwards.

    What Outlast brings has been compared with its sha256, and is on disk: only `sync` gives that to curl's.
    """
    with Nginx(scene.authority, cap=RATE) as server, private_disk(ROOM) as disk:
        archive = server.files / NAME
        with archive.open("wb") as file:
            nested_tar(file, FILES, CLASSES)
        cases = _cases(server.url("/capped/" + NAME, tls=False), sha256(archive), disk.path, scene.ca)
        timed = {name: functools.partial(_measured, disk, case) for name, case in cases.items()}
        return _rows(in_turns(timed, scene.rounds), disk)


def _cases(url: str, digest: str, folder: Path, ca: Path) -> dict[str, Callable[[], object]]:
    file, tree = folder / NAME, folder / "data"
    pinned = ("--sha256", digest)

    def synced() -> None:
        curl(url, file, ca)
        with_program("sync", str(file))

    def wrapper() -> None:
        curl(url, file, ca)
        untar_twice(file, tree)

    return {
        UNPACKED: lambda: with_python("outlast", url, "--unpack", str(tree), *pinned),
        FETCHED: lambda: with_python("outlast", url, "--to", str(file), *pinned),
        CURL: lambda: curl(url, file, ca),
        CURL_SYNCED: synced,
        WRAPPER: wrapper,
    }


def untar_twice(file: Path, tree: Path) -> None:
    """The archive, then the tar of each class, which goes when its files are there."""
    tree.mkdir()
    _tar(file, tree)
    file.unlink()
    for inner in sorted(tree.glob("*.tar")):
        folder = inner.with_suffix("")
        folder.mkdir()
        _tar(inner, folder)
        inner.unlink()


def _tar(file: Path, folder: Path) -> None:
    subprocess.run(["tar", "-xf", str(file), "-C", str(folder)], check=True, timeout=LIMIT)


def _measured(disk: Disk, case: Callable[[], object]) -> Taken:
    for path in disk.path.iterdir():
        if path.name != "lost+found":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    os.sync()
    before = _used(disk.path)
    with _Watch(disk.path) as watch:
        began = time.monotonic()
        case()
        wall = time.monotonic() - began
    os.sync()
    return Taken(wall, watch.peak - before, _used(disk.path) - before)


class _Watch:
    """Looks at how full a disk is until it is left."""

    def __init__(self, path: Path) -> None:
        self.peak = 0
        self._path = path
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watch", daemon=True)

    def _look(self) -> None:
        while not self._over.wait(LOOK):
            self.peak = max(self.peak, _used(self._path))

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()


def _used(path: Path) -> int:
    status = os.statvfs(path)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def _rows(found: dict[str, list[Taken]], disk: Disk) -> list[Row]:
    ours = [one.wall for one in found[UNPACKED]]
    goals = {FETCHED: Goal(most=1.1), WRAPPER: Goal(most=0.6)}
    rows = []
    for name in (FETCHED, CURL_SYNCED, CURL, WRAPPER):
        theirs = [one.wall for one in found[name]]
        seconds = (statistics.median(ours), statistics.median(theirs))
        beside = "%.2f s against %.2f" % seconds
        rows.append(
            Row("unpacked on the way, to: " + name, ratio(ours, theirs), "×", goals.get(name), beside)
        )
    for name, goal in ((UNPACKED, Goal(most=1.05)), (WRAPPER, None)):
        rows.append(_disk_row(name, found[name], goal, disk))
    return rows


def _disk_row(name: str, taken: list[Taken], goal: Goal | None, disk: Disk) -> Row:
    title = "peak of the disk, %s" % name
    if not disk.is_private:
        return Row(title, None, beside="a file system of its own cannot be mounted")
    worst = max(taken, key=lambda one: one.peak / one.result)
    beside = "%.0f MB, of which %.0f MB stay" % (worst.peak / MB, worst.result / MB)
    return Row(title, worst.peak / worst.result, "× the result", goal, beside)

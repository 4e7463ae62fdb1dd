"""Shuffled reads of items in an archive, compared with the same items as files and with tarfile.

Run `python benchmarks/reading.py`. Warm: everything was read just before. Cold: nothing is cached.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import os
import random
import statistics
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from disks import Disk, private_disk
from measuring import SMOKE_HELP, shrink, table

from outlast.data import Archive

CLASSES, EACH, SIZE = 100, 500, 10_000
COUNT = CLASSES * EACH
BATCH = 64
ROUNDS = 3
SMOKE = {"CLASSES": 2, "EACH": 10, "COUNT": 20, "ROUNDS": 1}

Read = Callable[[Sequence[int]], int]


def make(folder: Path) -> tuple[Path, list[Path]]:
    """Write a tar of class tars, and the same items as files; return their paths."""
    rng = random.Random(1)
    archive, files = folder / "train.tar", []
    with tarfile.open(archive, "w", format=tarfile.USTAR_FORMAT) as outer:
        for number in range(CLASSES):
            name = "n%05d" % number
            (folder / name).mkdir()
            inner = io.BytesIO()
            with tarfile.open(fileobj=inner, mode="w", format=tarfile.USTAR_FORMAT) as packed:
                for item in range(EACH):
                    content = rng.randbytes(rng.randint(SIZE // 2, SIZE * 3 // 2))
                    files.append(folder / name / ("%s_%05d.JPEG" % (name, item)))
                    files[-1].write_bytes(content)
                    info = tarfile.TarInfo(files[-1].name)
                    info.size = len(content)
                    packed.addfile(info, io.BytesIO(content))
            info = tarfile.TarInfo("%s.tar" % name)
            info.size = inner.tell()
            inner.seek(0)
            outer.addfile(info, inner)
    os.sync()
    return archive, files


@contextlib.contextmanager
def one_by_one(archive: Path, files: list[Path]) -> Iterator[Read]:
    with Archive(archive) as items:
        yield lambda order: sum(len(items[item]) for item in order)


@contextlib.contextmanager
def in_batches(archive: Path, files: list[Path]) -> Iterator[Read]:
    with Archive(archive) as items:

        def read(order: Sequence[int]) -> int:
            batches = (order[start : start + BATCH] for start in range(0, len(order), BATCH))
            return sum(len(content) for batch in batches for content in items.__getitems__(batch))

        yield read


@contextlib.contextmanager
def extracted(archive: Path, files: list[Path]) -> Iterator[Read]:
    names = [str(file) for file in files]

    def read(order: Sequence[int]) -> int:
        total = 0
        for item in order:
            with open(names[item], "rb") as file:
                total += len(file.read())
        return total

    yield read


@contextlib.contextmanager
def through_tarfile(archive: Path, files: list[Path]) -> Iterator[Read]:
    """Read with the standard library; the lists of members are made before the measurement."""
    with tarfile.open(archive) as outer, contextlib.ExitStack() as opened:
        members = []
        for info in outer:
            inner = opened.enter_context(tarfile.open(fileobj=outer.extractfile(info)))
            members += [(inner, member) for member in inner]

        def read(order: Sequence[int]) -> int:
            total = 0
            for item in order:
                inner, member = members[item]
                file = inner.extractfile(member)
                assert file is not None
                total += len(file.read())
            return total

        yield read


METHODS = {
    "extracted files": extracted,
    "outlast.data, one by one": one_by_one,
    "outlast.data, batches of %d" % BATCH: in_batches,
    "tarfile": through_tarfile,
}


def measure(disk: Disk, archive: Path, files: list[Path], cold: bool, count: int) -> dict[str, float]:
    """Return microseconds per item for each method. The order is new in each call, and the same for all."""
    order = random.sample(range(COUNT), count)
    found = {}
    totals = set()
    for name, method in METHODS.items():
        with method(archive, files) as read:
            if not cold:
                read(order)
                found[name] = _time_read(read, order, totals)
        if cold:
            gc.collect()
            disk.forget()
            with method(archive, files) as read:
                # Opening with tarfile has read the archive.
                disk.forget_content(archive)
                found[name] = _time_read(read, order, totals)
    assert len(totals) == 1, "not all methods have read the same bytes"
    return found


def _time_read(read: Read, order: Sequence[int], totals: set[int]) -> float:
    start = time.perf_counter()
    totals.add(read(order))
    return (time.perf_counter() - start) / len(order) * 1e6


def reads(disk: Disk, archive: Path, files: list[Path]) -> None:
    cases = {"warm": (False, COUNT), "cold": (True, COUNT), "cold, a tenth of it": (True, COUNT // 10)}
    rounds = {
        case: [measure(disk, archive, files, *options) for _ in range(ROUNDS)]
        for case, options in cases.items()
    }
    rows = []
    for name in METHODS:
        row = [name]
        for measured in rounds.values():
            micro = statistics.median(one[name] for one in measured)
            ratio = statistics.median(one["extracted files"] / one[name] for one in measured)
            row.append("%.1f µs, %.1f×" % (micro, ratio))
        rows.append(row)
    title = "shuffled reads of %d items of %d kB: time per item (and speed relative to extracted files)"
    table(title % (COUNT, SIZE // 1000), ("", *cases), rows)


def index(archive: Path) -> None:
    def ours() -> None:
        archive.with_name(".%s.index" % archive.name).unlink(missing_ok=True)
        Archive(archive).close()

    def again() -> None:
        Archive(archive).close()

    def theirs() -> None:
        with through_tarfile(archive, []):
            pass

    rows = []
    for name, call in {
        "outlast.data": ours,
        "outlast.data, with its stored index": again,
        "tarfile": theirs,
    }.items():
        seconds, cpu = [], []
        for _ in range(ROUNDS):
            began, began_cpu = time.perf_counter(), time.process_time()
            call()
            seconds.append(time.perf_counter() - began)
            cpu.append(time.process_time() - began_cpu)
        rows.append((name, "%.3f" % statistics.median(seconds), "%.3f" % statistics.median(cpu)))
    table("opening a tar of %d tars with %d members in total" % (CLASSES, COUNT), ("", "s", "CPU s"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help=SMOKE_HELP)
    if parser.parse_args().smoke:
        shrink(sys.modules[__name__])
    with private_disk(3 << 30) as disk:
        print("on %s\n" % disk.description)
        archive, files = make(disk.path)
        index(archive)
        print()
        reads(disk, archive, files)


if __name__ == "__main__":
    main()

"""`kill -9` while an archive is unpacked, again and again: it goes on where it was, and comes out whole.

The process that unpacks is fed through a pipe, piece by piece, and says after each how many bytes it has
taken; it is killed at a random byte of the feed, or while it finishes. `OUTLAST_UNPACK_SEED=17` repeats one
that failed.
"""

from __future__ import annotations

import gzip
import io
import lzma
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from support.archives import nested_tar, snapshot, tar_of, zip_of

KILLS = 20
KILLS_AT_THE_END = 8
#: Longer than anything may take on a busy machine (seconds).
PATIENCE = 60.0
PIECE = 20_000

#: Answers with how far it has come, then takes pieces from its input until that ends, and finishes.
WORKER = """
import sys, zlib
from outlast.node.archives.unpacking import Unpacking
def say(word):
    print(word, flush=True)
sink = Unpacking(sys.argv[1], "it", nested=True)
if sink.recover("it"):
    say("recovered 0")
    sys.exit()
crc = [0]
def replay(block):
    crc[0] = zlib.crc32(block, crc[0])
say("resumed %d" % sink.resume("it", replay))
say("crc %d" % crc[0])
while True:
    piece = sys.stdin.buffer.read1(int(sys.argv[2]))
    if not piece:
        break
    sink.write(piece)
    say("took %d" % len(piece))
say("finishing 0")
sink.finish()
say("finished 0")
"""


class Worker:
    def __init__(self, target: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(target), str(PIECE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def heard(self, *words: str) -> tuple[str, int]:
        """The next word, which must be one of these, and the number after it."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        assert ready, "the worker says nothing"
        line = self.process.stdout.readline().decode().split()
        assert line and line[0] in words, line
        return line[0], int(line[1])

    def feed(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def plain() -> bytes:
    buffer = io.BytesIO()
    nested_tar(buffer, files=400, classes=8, size=4000)
    return buffer.getvalue()


def mixed() -> bytes:
    rng = random.Random(3)
    inner = tar_of({"%d.bin" % number: rng.randbytes(3000) for number in range(60)})
    files = {"big.bin": rng.randbytes(400_000), "n01.tar": inner, "n02.tgz": gzip.compress(inner, 1)}
    return tar_of({**files, "n03.zip": zip_of({"z": rng.randbytes(90_000)}), "end": b""})


@pytest.mark.parametrize(
    "make", [plain, mixed, lambda: lzma.compress(mixed(), preset=0)], ids=["nested", "mixed", "compressed"]
)
def test_an_unpacking_that_is_killed_again_and_again_goes_on_where_it_was(
    make: Callable[[], bytes], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    archive = make()
    seed = int(os.environ.get("OUTLAST_UNPACK_SEED") or random.SystemRandom().randrange(10**6))
    record_property("seeds", "OUTLAST_UNPACK_SEED=%d" % seed)
    print("OUTLAST_UNPACK_SEED=%d" % seed)
    rng = random.Random(seed)
    place = tmp_path / "place"
    place.mkdir()
    taken = 0
    for kill in range(KILLS):
        stop = int(len(archive) * (kill + rng.random()) / KILLS)
        taken = _life_until(stop, place, archive, taken, rng)
    for _ in range(KILLS_AT_THE_END):
        if _last_life(place, archive, taken, rng.random() * 0.03):
            break
        taken = 0 if (place / "target").exists() else len(archive)
    else:
        assert _last_life(place, archive, taken, PATIENCE)
    assert [path.name for path in place.iterdir()] == ["target"]
    assert snapshot(place / "target") == _extracted(archive, tmp_path / "oracle")


def _life_until(stop: int, place: Path, archive: bytes, taken: int, rng: random.Random) -> int:
    """Feed up to `stop`, and kill while the last piece is written; how many bytes were taken by then."""
    worker = Worker(place / "target")
    try:
        reached = _resumed(worker, archive, taken)
        while reached < stop:
            piece = archive[reached : min(reached + rng.randrange(1, PIECE), stop)]
            worker.feed(piece)
            if reached + len(piece) == stop:
                break
            reached += _answered(worker, len(piece))
        return reached
    finally:
        worker.kill()


def _last_life(place: Path, archive: bytes, taken: int, patience: float) -> bool:
    """Feed all there is, and kill if it has not finished after so many seconds; whether it has."""
    worker = Worker(place / "target")
    try:
        reached = _resumed(worker, archive, taken)
        if reached < 0:
            return True
        for at in range(reached, len(archive), PIECE):
            worker.feed(archive[at : at + PIECE])
            _answered(worker, len(archive[at : at + PIECE]))
        worker.process.stdin.close()  # type: ignore[union-attr]
        worker.heard("finishing")
        ready, _, _ = select.select([worker.process.stdout], [], [], patience)
        return bool(ready) and worker.heard("finished") == ("finished", 0)
    finally:
        worker.kill()


def _resumed(worker: Worker, archive: bytes, taken: int) -> int:
    """Where it goes on, or -1 if nothing was left to do; what had been taken is not asked for again."""
    word, reached = worker.heard("resumed", "recovered")
    if word == "recovered":
        return -1
    # A header that was cut is not on disk.
    assert taken - 1024 <= reached <= len(archive)
    assert worker.heard("crc") == ("crc", zlib.crc32(archive[:reached]))
    return reached


def _answered(worker: Worker, count: int) -> int:
    """Wait until it has taken so many bytes."""
    taken = 0
    while taken < count:
        taken += worker.heard("took")[1]
    return taken


def _extracted(archive: bytes, place: Path) -> dict[str, bytes | None]:
    """What the standard library makes of it."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(place, filter="data")
    for path in list(place.rglob("*")):
        if path.suffix in (".tar", ".tgz", ".zip"):
            shutil.unpack_archive(path, path.with_suffix(""), {".zip": "zip"}.get(path.suffix, "gztar"))
            path.unlink()
    return snapshot(place)

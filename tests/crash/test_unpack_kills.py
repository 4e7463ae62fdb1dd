"""Unpacking that is killed with SIGKILL many times resumes each time, and the tree is complete in the end.

The process that unpacks is fed through a pipe, piece by piece, and reports after each how many bytes it has
consumed; it is killed at a random byte, or while it finishes. `OUTLAST_UNPACK_SEED=17` repeats a failed test.
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
TIMEOUT = 60.0
PIECE = 20_000

#: Reports how many bytes it resumed after, then consumes its input until that ends, and finishes.
WORKER = """
import sys, zlib
from outlast.node.archives.unpacking import UnpackingSink
def report(line):
    print(line, flush=True)
sink = UnpackingSink(sys.argv[1], "it", nested=True)
if sink.recover("it"):
    report("recovered 0")
    sys.exit()
crc = [0]
def replay(block):
    crc[0] = zlib.crc32(block, crc[0])
report("resumed %d" % sink.resume("it", replay))
report("crc %d" % crc[0])
while True:
    piece = sys.stdin.buffer.read1(int(sys.argv[2]))
    if not piece:
        break
    sink.write(piece)
    report("consumed %d" % len(piece))
report("finishing 0")
sink.finish()
report("finished 0")
"""


class Worker:
    def __init__(self, target: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(target), str(PIECE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def read_report(self, *words: str) -> tuple[str, int]:
        """Return the next reported word, which must be one of these, and its number."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], TIMEOUT)
        assert ready, "the worker reports nothing"
        line = self.process.stdout.readline().decode().split()
        assert line and line[0] in words, line
        return line[0], int(line[1])

    def feed(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(TIMEOUT)
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
def test_unpacking_that_is_killed_many_times_resumes_and_completes(
    make: Callable[[], bytes], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    archive = make()
    seed = int(os.environ.get("OUTLAST_UNPACK_SEED") or random.SystemRandom().randrange(10**6))
    record_property("seeds", "OUTLAST_UNPACK_SEED=%d" % seed)
    print("OUTLAST_UNPACK_SEED=%d" % seed)
    rng = random.Random(seed)
    place = tmp_path / "place"
    place.mkdir()
    consumed = 0
    for kill in range(KILLS):
        stop = int(len(archive) * (kill + rng.random()) / KILLS)
        consumed = _run_until(stop, place, archive, consumed, rng)
    for _ in range(KILLS_AT_THE_END):
        if _run_to_the_end(place, archive, consumed, rng.random() * 0.03):
            break
        consumed = 0 if (place / "target").exists() else len(archive)
    else:
        assert _run_to_the_end(place, archive, consumed, TIMEOUT)
    assert [path.name for path in place.iterdir()] == ["target"]
    assert snapshot(place / "target") == _extracted(archive, tmp_path / "oracle")


def _run_until(stop: int, place: Path, archive: bytes, consumed: int, rng: random.Random) -> int:
    """Feed up to `stop`, and kill while the last piece is written; return the bytes consumed before it."""
    worker = Worker(place / "target")
    try:
        reached = _resume_offset(worker, archive, consumed)
        while reached < stop:
            piece = archive[reached : min(reached + rng.randrange(1, PIECE), stop)]
            worker.feed(piece)
            if reached + len(piece) == stop:
                break
            reached += _wait_consumed(worker, len(piece))
        return reached
    finally:
        worker.kill()


def _run_to_the_end(place: Path, archive: bytes, consumed: int, timeout: float) -> bool:
    """Feed the whole rest, and kill after `timeout` seconds; return True if it finished before."""
    worker = Worker(place / "target")
    try:
        reached = _resume_offset(worker, archive, consumed)
        if reached < 0:
            return True
        for at in range(reached, len(archive), PIECE):
            worker.feed(archive[at : at + PIECE])
            _wait_consumed(worker, len(archive[at : at + PIECE]))
        worker.process.stdin.close()  # type: ignore[union-attr]
        worker.read_report("finishing")
        ready, _, _ = select.select([worker.process.stdout], [], [], timeout)
        return bool(ready) and worker.read_report("finished") == ("finished", 0)
    finally:
        worker.kill()


def _resume_offset(worker: Worker, archive: bytes, consumed: int) -> int:
    """Return the offset at which it resumes, or -1 if nothing was left to do.

    What was consumed before must not be requested again.
    """
    word, reached = worker.read_report("resumed", "recovered")
    if word == "recovered":
        return -1
    # An incomplete header is not on disk.
    assert consumed - 1024 <= reached <= len(archive)
    assert worker.read_report("crc") == ("crc", zlib.crc32(archive[:reached]))
    return reached


def _wait_consumed(worker: Worker, count: int) -> int:
    """Wait until it has consumed `count` bytes."""
    consumed = 0
    while consumed < count:
        consumed += worker.read_report("consumed")[1]
    return consumed


def _extracted(archive: bytes, place: Path) -> dict[str, bytes | None]:
    """Return the files as the standard library extracts them."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(place, filter="data")
    for path in list(place.rglob("*")):
        if path.suffix in (".tar", ".tgz", ".zip"):
            shutil.unpack_archive(path, path.with_suffix(""), {".zip": "zip"}.get(path.suffix, "gztar"))
            path.unlink()
    return snapshot(place)

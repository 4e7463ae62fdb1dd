"""No archive writes outside its target, and nothing of a bad one is left."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from outlast.node.archives.limits import ArchiveLimits
from outlast.node.archives.sink import BadArchive
from outlast.node.archives.unpacking import UnpackingSink, unpack_file
from support import hostile_archives
from support.archives import (
    no_sync,  # noqa: F401
    snapshot,
    tar_of,
)
from support.hostile_archives import Hostile

pytestmark = pytest.mark.usefixtures("no_sync")

#: Small, so that a decompression bomb is refused quickly.
LIMITS = ArchiveLimits(free_bytes=1 << 20)
CASES = list(hostile_archives.every())


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a canary file beside the target and above it."""
    place = tmp_path / "place"
    place.mkdir()
    (place / "evil").write_text("canary")
    (tmp_path / "evil").write_text("canary")
    return place


def refusal_message(
    place: Path, archive: bytes, limits: ArchiveLimits = LIMITS, rng: random.Random | None = None
) -> str:
    """Feed the archive in pieces of random size; return the error's message. No file may have changed."""
    before = snapshot(place.parent)
    sink = UnpackingSink(str(place / "target"), "hostile", nested=True, limits=limits)
    rng = rng or random.Random(1)
    with pytest.raises(BadArchive) as caught:
        try:
            assert sink.resume("it", lambda block: None) == 0
            at = 0
            while at < len(archive):
                size = rng.choice((1, 100, 512, 513, 10_000, 1 << 20))
                sink.write(archive[at : at + size])
                at += size
            sink.finish()
        finally:
            assert not (place / "target").exists()
            sink.restart()
            sink.close()
    assert snapshot(place.parent) == before
    return str(caught.value)


def test_there_are_at_least_two_hundred_hostile_archives() -> None:
    assert len({case.what for case in CASES}) == len(CASES) >= 200


@pytest.mark.parametrize("case", CASES, ids=[case.what for case in CASES])
def test_a_hostile_archive_is_refused_and_leaves_nothing(case: Hostile, place: Path) -> None:
    message = refusal_message(place, case.archive)
    assert case.message in message
    assert message.isprintable() and len(message) < 600


def test_an_archive_that_is_truncated_anywhere_is_refused(place: Path) -> None:
    whole = tar_of({"a.txt": b"a" * 700, "in.tar": tar_of({"b.txt": b"b"}), "c/": b"", "é" * 80: b"d"})
    end = len(whole.rstrip(b"\0"))
    cuts = {*range(0, end, 97), *range(0, end, 512), *range(511, end, 512), *range(513, end, 512)}
    for cut in sorted(cuts):
        assert refusal_message(place, whole[:cut])


def test_a_flipped_bit_changes_content_or_is_refused_and_never_writes_outside(place: Path) -> None:
    whole = tar_of({"a.txt": b"a" * 700, "in.tar": tar_of({"b.txt": b"b"}), "é" * 80: b"d"})
    rng = random.Random(5)
    before = snapshot(place.parent)
    for _ in range(150):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        (place / "it.tar").write_bytes(damaged)
        try:
            unpack_file(str(place / "it.tar"), str(place / "target"), nested=True)
        except BadArchive as error:
            assert str(error).isprintable()
            assert not (place / "target").exists()
        else:
            _remove(place / "target")
        (place / "it.tar").unlink()
        assert snapshot(place.parent) == before


def test_random_bytes_are_refused(place: Path) -> None:
    rng = random.Random(7)
    for size in (0, 1, 511, 512, 10_000):
        for magic in (b"", b"\x1f\x8b", b"BZh9", b"\xfd7zXZ\0", b"PK\3\4", b"PK\5\6"):
            assert refusal_message(place, magic + rng.randbytes(size))


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (ArchiveLimits(members=9), "more than 9 members"),
        (ArchiveLimits(bytes=99), "more than 99 bytes"),
        (ArchiveLimits(depth=1), "limit"),
        (ArchiveLimits(path_bytes=9), "limits"),
        (ArchiveLimits(path_parts=1), "limits"),
    ],
)
def test_each_limit_is_enforced(limits: ArchiveLimits, message: str, place: Path) -> None:
    inner = tar_of({"inner/%d" % number: b"x" * 10 for number in range(10)})
    assert message in refusal_message(place, tar_of({"in.tar": inner}), limits)


def _remove(path: Path) -> None:
    for entry in path.iterdir():
        if entry.is_dir():
            _remove(entry)
        else:
            entry.unlink()
    path.rmdir()

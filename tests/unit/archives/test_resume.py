"""Unpacking goes on where an earlier process was ended, with the right bytes for the digests."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import lzma
import os
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outlast.node.archives.limits import ArchiveLimits, LimitAccount
from outlast.node.archives.sink import BadArchive
from outlast.node.archives.tar_parser import TarParser
from outlast.node.archives.unpacking import UnpackingSink
from support.archives import (
    nested_tar,
    no_sync,  # noqa: F401
    snapshot,
    tar_of,
    zip_of,
)

pytestmark = pytest.mark.usefixtures("no_sync")

FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

NAMES = st.lists(
    st.text(st.sampled_from("abcß🙂. -"), min_size=1, max_size=12).filter(lambda part: part.strip(".") != ""),
    min_size=1,
    max_size=3,
).map("/".join)
SIZES = st.sampled_from((0, 1, 511, 512, 513, 1500, 5000))


def _is_consistent(names: list[str]) -> bool:
    """No name is a directory of another."""
    return not any(other.startswith(name + "/") for name in names for other in names)


TREES = st.dictionaries(NAMES, SIZES.map(lambda size: bytes(range(251)) * (size // 251 + 1))).filter(
    lambda files: _is_consistent(list(files))
)
CUTS = st.lists(st.integers(1, 3000), min_size=1, max_size=30)


class Killed(BaseException):
    """As sudden as a kill to the code that it goes through."""


def pieces(archive: bytes, cuts: list[int]) -> Iterator[bytes]:
    """The archive, cut into these lengths, again and again."""
    at, number = 0, 0
    while at < len(archive):
        yield archive[at : at + cuts[number % len(cuts)]]
        at += cuts[number % len(cuts)]
        number += 1


def sink_at(place: Path) -> UnpackingSink:
    return UnpackingSink(str(place / "target"), "it", nested=True)


def files_in(place: Path, part: str) -> list[Path]:
    """The files in this part of the staging directory."""
    return [path for path in place.glob(".*.unpacking/%s/**/*" % part) if path.is_file()]


def resumed(place: Path, archive: bytes) -> tuple[UnpackingSink, int]:
    """A later process, and how far the earlier one had come: exactly those bytes must be replayed."""
    sink = sink_at(place)
    replayed = bytearray()
    reached = sink.resume("it", replayed.extend)
    assert bytes(replayed) == archive[:reached]
    return sink, reached


def finished(place: Path, archive: bytes) -> dict[str, bytes | None]:
    sink, reached = resumed(place, archive)
    sink.write(archive[reached:])
    sink.finish()
    sink.close()
    assert [path.name for path in place.iterdir()] == ["target"]
    return snapshot(place / "target")


@pytest.fixture(scope="module")
def mixed() -> bytes:
    """A tar with everything that is unpacked in a way of its own."""
    inner = tar_of({"x.txt": b"x" * 1000, "deep.tar": tar_of({"y": b"y" * 600}), "empty": b""})
    return tar_of(
        {
            "first.txt": os.urandom(3000),
            "folder/": b"",
            "folder/n01.tar": inner,
            "words.tar": b"no tar at all " * 200,
            "n02.tgz": gzip.compress(inner),
            "long/" + "name" * 50: b"l" * 513,
            "n03.zip": zip_of({"z": b"z" * 4000, "w.tar.xz": lzma.compress(inner)}),
            "n04.tar.xz": lzma.compress(tar_of({"v.tgz": gzip.compress(inner)})),
            "last": b"",
        }
    )


@pytest.fixture(scope="module")
def wanted(mixed: bytes) -> dict[str, bytes | None]:
    with tempfile.TemporaryDirectory() as folder:
        return finished(Path(folder), mixed)


@QUICK
@given(files=TREES, format=st.sampled_from(FORMATS), cuts=CUTS)
def test_any_tree_in_any_format_and_any_pieces_is_itself_again(
    files: dict[str, bytes], format: int, cuts: list[int]
) -> None:
    try:
        archive = tar_of(files, format)
    except ValueError:
        return  # ustar has no place for such a name
    with tempfile.TemporaryDirectory() as folder:
        sink = sink_at(Path(folder))
        assert sink.resume("it", lambda block: None) == 0
        for piece in pieces(archive, cuts):
            sink.write(piece)
        sink.finish()
        found = snapshot(Path(folder) / "target")
        with tarfile.open(fileobj=io.BytesIO(archive)) as oracle:
            oracle.extractall(Path(folder) / "oracle", filter="data")
        assert found == snapshot(Path(folder) / "oracle")


@QUICK
@given(files=TREES, cuts=CUTS)
def test_what_is_in_files_and_what_is_not_are_the_archive_again(
    files: dict[str, bytes], cuts: list[int]
) -> None:
    archive = tar_of({**files, "n01.tar": tar_of(files)})
    parser = TarParser(LimitAccount(ArchiveLimits()), nested=True)
    rebuilt = bytearray()
    for piece in pieces(archive, cuts):
        parsed = parser.feed(piece)
        literals = io.BytesIO(b"".join(parsed.literals))
        contents = io.BytesIO(b"".join(step.content for step in parsed.steps))
        for index, length in enumerate([*parsed.runs, parsed.literal_rest]):
            rebuilt += (contents if index % 2 else literals).read(length)
        assert not literals.read() and not contents.read()
        assert len(rebuilt) == parser.position
    parser.finish()
    assert rebuilt == archive


@QUICK
@given(data=st.data())
def test_a_cut_anywhere_and_a_resume_equal_the_whole(
    data: st.DataObject, mixed: bytes, wanted: dict[str, bytes | None]
) -> None:
    archive = mixed if data.draw(st.booleans(), "plain") else gzip.compress(mixed, 1, mtime=0)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        reached = 0
        for _ in range(data.draw(st.integers(1, 5), "processes")):
            sink, reached = resumed(place, archive)
            end = data.draw(st.integers(reached, len(archive)), "cut")
            for piece in pieces(archive[reached:end], data.draw(CUTS, "pieces")):
                sink.write(piece)
            sink.close()
            fed = end
            sink, reached = resumed(place, archive)
            sink.close()
            # Only what ends in the middle of a header is lost.
            assert fed - 1024 <= reached <= fed
        assert finished(place, archive) == wanted


def test_a_resume_can_begin_anywhere_in_a_record_of_the_skeleton(
    tmp_path: Path, mixed: bytes, wanted: dict[str, bytes | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is ended at the nth call that makes or fills a file; the skeleton is ahead of the files."""
    calls, count = [0], 0
    real_open, real_write = os.open, os.write

    def counted() -> None:
        calls[0] -= 1
        if not calls[0]:
            raise Killed

    def failing_open(*args: object, **options: object) -> int:
        counted()
        return real_open(*args, **options)  # type: ignore[arg-type]

    def failing_write(descriptor: int, data: bytes) -> int:
        counted()
        return real_write(descriptor, bytes(data)[: max(1, len(data) // 2)])

    while True:
        count += 3
        place = tmp_path / str(count)
        place.mkdir()
        sink = sink_at(place)
        sink.resume("it", lambda block: None)
        with monkeypatch.context() as patch:
            calls[0] = count
            patch.setattr(os, "open", failing_open)
            patch.setattr(os, "write", failing_write)
            try:
                sink.write(mixed)
            except Killed:
                pass
            else:
                sink.close()
                break
        sink.close()
        on_disk = sum(path.stat().st_size for name in ("tree", "kept") for path in files_in(place, name))
        sink, reached = resumed(place, mixed)
        sink.close()
        assert reached >= on_disk
        assert finished(place, mixed) == wanted
    assert count > 40


def test_files_that_a_power_cut_took_are_asked_for_again(
    tmp_path: Path, mixed: bytes, wanted: dict[str, bytes | None]
) -> None:
    sink, _ = resumed(tmp_path, mixed)
    for piece in pieces(mixed, [700]):
        sink.write(piece)
    sink.close()
    for path in (*files_in(tmp_path, "tree"), *files_in(tmp_path, "kept")):
        if path.name != "first.txt":
            path.unlink()
    sink, reached = resumed(tmp_path, mixed)
    assert 3000 < reached < 6000
    for piece in pieces(mixed[reached : reached + 2000], [300]):
        sink.write(piece)
    sink.close()
    sink, again = resumed(tmp_path, mixed)
    sink.close()
    assert reached + 2000 - 512 <= again <= reached + 2000
    assert finished(tmp_path, mixed) == wanted


def test_what_was_left_for_other_bytes_is_removed(tmp_path: Path, mixed: bytes) -> None:
    sink = sink_at(tmp_path)
    sink.resume("other", lambda block: None)
    sink.write(mixed[:20_000])
    sink.close()
    assert finished(tmp_path, tar_of({"a": b"a"})) == {"a": b"a"}


def test_restart_begins_anew_with_nothing_left(
    tmp_path: Path, mixed: bytes, wanted: dict[str, bytes | None]
) -> None:
    sink, _ = resumed(tmp_path, mixed)
    sink.write(mixed[:9000])
    sink.restart()
    assert not list(tmp_path.iterdir())
    sink.write(mixed)
    sink.finish()
    sink.close()
    assert snapshot(tmp_path / "target") == wanted


@pytest.mark.parametrize("trouble", ["a file is gone", "a file too many", "too long", "no skeleton", "torn"])
def test_what_no_kill_explains_is_not_gone_on_with(
    trouble: str, tmp_path: Path, mixed: bytes, wanted: dict[str, bytes | None]
) -> None:
    sink, _ = resumed(tmp_path, mixed)
    for piece in pieces(mixed[:9000], [700]):
        sink.write(piece)
    sink.close()
    (staging,) = tmp_path.iterdir()
    match trouble:
        case "a file is gone":
            (staging / "tree" / "first.txt").unlink()
        case "a file too many":
            (staging / "tree" / "stranger").write_bytes(b"")
        case "too long":
            with (staging / "tree" / "first.txt").open("ab") as file:
                file.write(b"more")
        case "no skeleton":
            (staging / "skeleton").unlink()
        case _:
            os.truncate(staging / "skeleton", 100)
    sink, reached = resumed(tmp_path, mixed)
    sink.close()
    assert reached == 0
    assert finished(tmp_path, mixed) == wanted


@pytest.mark.parametrize("torn", [True, False])
def test_a_bad_record_at_the_end_of_the_skeleton_costs_no_more_than_its_block(
    torn: bool, tmp_path: Path, mixed: bytes, wanted: dict[str, bytes | None]
) -> None:
    sink, _ = resumed(tmp_path, mixed)
    sink.write(mixed[:2048])
    (staging,) = tmp_path.iterdir()
    size = (staging / "skeleton").stat().st_size
    sink.write(mixed[2048:3000])
    sink.close()
    with (staging / "skeleton").open("r+b") as file:
        if torn:
            file.truncate(size + 9)
        else:
            file.seek(size + 40)
            file.write(b"spoilt")
    os.truncate(staging / "tree" / "first.txt", 2048 - 512)
    sink, reached = resumed(tmp_path, mixed)
    sink.close()
    assert reached == 2048
    assert finished(tmp_path, mixed) == wanted


def test_the_skeleton_of_many_small_files_is_small(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    total = nested_tar(buffer, files=2000, classes=4, size=10_000)
    sink, _ = resumed(tmp_path, buffer.getvalue())
    for piece in pieces(buffer.getvalue(), [1 << 20]):
        sink.write(piece)
    (staging,) = tmp_path.iterdir()
    assert (staging / "skeleton").stat().st_size < total / 50
    sink.restart()


def test_the_end_is_reached_only_with_the_end(tmp_path: Path, mixed: bytes) -> None:
    sink, _ = resumed(tmp_path, mixed)
    sink.write(mixed[:5000])
    with pytest.raises(BadArchive, match="cut"):
        sink.finish()
    sink.restart()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("exists", [False, True])
def test_a_process_ended_anywhere_in_the_last_steps_is_finished_by_the_next(
    exists: bool,
    tmp_path: Path,
    mixed: bytes,
    wanted: dict[str, bytes | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recovered = count = 0
    left = [0]

    def dying(real: object) -> object:
        def call(*args: object, **options: object) -> object:
            left[0] -= 1
            if not left[0]:
                raise Killed
            return real(*args, **options)  # type: ignore[operator]

        return call

    while True:
        count += 1
        place = tmp_path / str(count)
        place.mkdir()
        if exists:
            (place / "target" / "folder").mkdir(parents=True)
            (place / "target" / "last").write_bytes(b"")
        sink, _ = resumed(place, mixed)
        sink.write(mixed)
        with monkeypatch.context() as patch:
            left[0] = count
            for name in ("rename", "replace", "unlink", "rmdir", "mkdir", "fsync"):
                patch.setattr(os, name, dying(getattr(os, name)))
            try:
                sink.finish()
                break
            except Killed:
                pass
        sink.close()
        later = sink_at(place)
        if later.recover("it"):
            later.close()
            recovered += 1
            assert [path.name for path in place.iterdir()] == ["target"]
            assert snapshot(place / "target") == wanted
        else:
            later.close()
            assert finished(place, mixed) == wanted
    assert snapshot(place / "target") == wanted
    assert count > recovered > 5


def test_a_tree_that_is_half_thrown_away_is_never_shown(tmp_path: Path, mixed: bytes) -> None:
    """All was there but the moving; then other bytes were wanted, and that process was ended, too."""
    for moment in range(1, 40):
        place = tmp_path / str(moment)
        place.mkdir()
        sink, _ = resumed(place, mixed)
        sink.write(mixed)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            patch.setattr("outlast.node.archives.finalize.move", _kill)
            sink.finish()
        sink.close()
        left = [moment]

        def pulse(left: list[int] = left) -> None:
            left[0] -= 1
            if not left[0]:
                raise Killed

        other = UnpackingSink(str(place / "target"), "it", nested=True, pulse=pulse)
        with contextlib.suppress(Killed):
            other.resume("another", lambda block: None)
        other.close()
        if left[0] > 0:
            break
        again = sink_at(place)
        if again.recover("it"):
            assert snapshot(place / "target") == snapshot(tmp_path / "1" / "target")
        again.close()
    assert moment > 5


def test_who_is_ended_while_tidying_up_has_nothing_to_fetch_again(tmp_path: Path, mixed: bytes) -> None:
    """What was moved is there: the next process must be able to know."""
    removed: list[str] = []
    sink, _ = resumed(tmp_path, mixed)
    sink.write(mixed)
    real = os.unlink
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            os, "unlink", lambda path, **more: (removed.append(Path(path).name), real(path, **more))
        )
        sink.finish()
    assert removed[-2:] == ["state.json", "lock"]


def _kill(*args: object) -> None:
    raise Killed


def test_digests_of_what_is_replayed_and_what_follows_are_those_of_the_whole(
    tmp_path: Path, mixed: bytes
) -> None:
    sink, _ = resumed(tmp_path, mixed)
    sink.write(mixed[:7777])
    sink.close()
    digest = hashlib.sha256()
    sink = sink_at(tmp_path)
    reached = sink.resume("it", digest.update)
    digest.update(mixed[reached:])
    sink.restart()
    assert digest.hexdigest() == hashlib.sha256(mixed).hexdigest()

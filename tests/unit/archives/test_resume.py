"""Unpacking resumes where an earlier process was killed, and replays the right bytes for the digests."""

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

from outlast.node.archives.limits import ArchiveLimits, ArchiveUsage
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
    """Return True if no name is a parent directory of another."""
    return not any(other.startswith(name + "/") for name in names for other in names)


TREES = st.dictionaries(NAMES, SIZES.map(lambda size: bytes(range(251)) * (size // 251 + 1))).filter(
    lambda files: _is_consistent(list(files))
)
CUTS = st.lists(st.integers(1, 3000), min_size=1, max_size=30)


class Killed(BaseException):
    """Stands for a kill: no code that it passes through handles it."""


def pieces(archive: bytes, cuts: list[int]) -> Iterator[bytes]:
    """Yield the archive in pieces of these lengths, which are repeated."""
    at, number = 0, 0
    while at < len(archive):
        yield archive[at : at + cuts[number % len(cuts)]]
        at += cuts[number % len(cuts)]
        number += 1


def sink_at(place: Path) -> UnpackingSink:
    return UnpackingSink(str(place / "target"), "it", nested=True)


def files_in(place: Path, part: str) -> list[Path]:
    """Return the files in this part of the workspace."""
    return [path for path in place.glob(".*.unpacking/%s/**/*" % part) if path.is_file()]


def resumed(place: Path, archive: bytes) -> tuple[UnpackingSink, int]:
    """Return the sink of a later process and the number of bytes that it resumes after.

    Exactly these bytes must be replayed.
    """
    sink = sink_at(place)
    replayed = bytearray()
    reached = sink.resume("it", replayed.extend)
    assert bytes(replayed) == archive[:reached]
    return sink, reached


def finished(place: Path, archive: bytes) -> dict[str, bytes | None]:
    """Resume, write the rest, and return the files of the finished tree."""
    sink, reached = resumed(place, archive)
    sink.write(archive[reached:])
    sink.finish()
    sink.close()
    assert [path.name for path in place.iterdir()] == ["target"]
    return snapshot(place / "target")


@pytest.fixture(scope="module")
def mixed() -> bytes:
    """A tar with a member for each way of unpacking."""
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
def expected(mixed: bytes) -> dict[str, bytes | None]:
    """The files of `mixed`, unpacked without interruption."""
    with tempfile.TemporaryDirectory() as folder:
        return finished(Path(folder), mixed)


@QUICK
@given(files=TREES, format=st.sampled_from(FORMATS), cuts=CUTS)
def test_any_tree_is_restored_from_any_format_and_any_pieces(
    files: dict[str, bytes], format: int, cuts: list[int]
) -> None:
    try:
        archive = tar_of(files, format)
    except ValueError:
        return  # the name is too long for ustar
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
def test_literals_and_contents_together_are_the_archive(files: dict[str, bytes], cuts: list[int]) -> None:
    archive = tar_of({**files, "n01.tar": tar_of(files)})
    parser = TarParser(ArchiveUsage(ArchiveLimits()), nested=True)
    rebuilt = bytearray()
    for piece in pieces(archive, cuts):
        parsed = parser.feed(piece)
        literals = io.BytesIO(b"".join(parsed.literals))
        contents = io.BytesIO(b"".join(action.content for action in parsed.actions))
        for index, length in enumerate([*parsed.runs, parsed.trailing_literals]):
            rebuilt += (contents if index % 2 else literals).read(length)
        assert not literals.read() and not contents.read()
        assert len(rebuilt) == parser.position
    parser.finish()
    assert rebuilt == archive


@QUICK
@given(data=st.data())
def test_an_interruption_anywhere_and_a_resume_give_the_whole_tree(
    data: st.DataObject, mixed: bytes, expected: dict[str, bytes | None]
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
            # Only an incomplete header is lost.
            assert fed - 1024 <= reached <= fed
        assert finished(place, archive) == expected


def test_a_resume_can_begin_anywhere_in_a_record_of_the_skeleton(
    tmp_path: Path, mixed: bytes, expected: dict[str, bytes | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is killed at the nth call that creates or writes a file, with the skeleton ahead."""
    calls_left, count = [0], 0
    real_open, real_write = os.open, os.write

    def count_call() -> None:
        calls_left[0] -= 1
        if not calls_left[0]:
            raise Killed

    def failing_open(*args: object, **options: object) -> int:
        count_call()
        return real_open(*args, **options)  # type: ignore[arg-type]

    def failing_write(descriptor: int, data: bytes) -> int:
        count_call()
        return real_write(descriptor, bytes(data)[: max(1, len(data) // 2)])

    while True:
        count += 3
        place = tmp_path / str(count)
        place.mkdir()
        sink = sink_at(place)
        sink.resume("it", lambda block: None)
        with monkeypatch.context() as patch:
            calls_left[0] = count
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
        assert finished(place, mixed) == expected
    assert count > 40


def test_files_that_a_power_cut_removed_are_requested_again(
    tmp_path: Path, mixed: bytes, expected: dict[str, bytes | None]
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
    assert finished(tmp_path, mixed) == expected


def test_leftovers_of_another_identity_are_removed(tmp_path: Path, mixed: bytes) -> None:
    sink = sink_at(tmp_path)
    sink.resume("other", lambda block: None)
    sink.write(mixed[:20_000])
    sink.close()
    assert finished(tmp_path, tar_of({"a": b"a"})) == {"a": b"a"}


def test_restart_removes_everything_and_begins_anew(
    tmp_path: Path, mixed: bytes, expected: dict[str, bytes | None]
) -> None:
    sink, _ = resumed(tmp_path, mixed)
    sink.write(mixed[:9000])
    sink.restart()
    assert not list(tmp_path.iterdir())
    sink.write(mixed)
    sink.finish()
    sink.close()
    assert snapshot(tmp_path / "target") == expected


@pytest.mark.parametrize("damage", ["a file is gone", "a file too many", "too long", "no skeleton", "torn"])
def test_a_state_that_no_kill_leaves_is_not_resumed(
    damage: str, tmp_path: Path, mixed: bytes, expected: dict[str, bytes | None]
) -> None:
    sink, _ = resumed(tmp_path, mixed)
    for piece in pieces(mixed[:9000], [700]):
        sink.write(piece)
    sink.close()
    (workspace,) = tmp_path.iterdir()
    match damage:
        case "a file is gone":
            (workspace / "tree" / "first.txt").unlink()
        case "a file too many":
            (workspace / "tree" / "stranger").write_bytes(b"")
        case "too long":
            with (workspace / "tree" / "first.txt").open("ab") as file:
                file.write(b"more")
        case "no skeleton":
            (workspace / "skeleton").unlink()
        case _:
            os.truncate(workspace / "skeleton", 100)
    sink, reached = resumed(tmp_path, mixed)
    sink.close()
    assert reached == 0
    assert finished(tmp_path, mixed) == expected


@pytest.mark.parametrize("torn", [True, False])
def test_a_bad_record_at_the_end_of_the_skeleton_costs_no_more_than_its_block(
    torn: bool, tmp_path: Path, mixed: bytes, expected: dict[str, bytes | None]
) -> None:
    sink, _ = resumed(tmp_path, mixed)
    sink.write(mixed[:2048])
    (workspace,) = tmp_path.iterdir()
    size = (workspace / "skeleton").stat().st_size
    sink.write(mixed[2048:3000])
    sink.close()
    with (workspace / "skeleton").open("r+b") as file:
        if torn:
            file.truncate(size + 9)
        else:
            file.seek(size + 40)
            file.write(b"spoilt")
    os.truncate(workspace / "tree" / "first.txt", 2048 - 512)
    sink, reached = resumed(tmp_path, mixed)
    sink.close()
    assert reached == 2048
    assert finished(tmp_path, mixed) == expected


def test_the_skeleton_of_many_small_files_is_small(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    total = nested_tar(buffer, files=2000, classes=4, size=10_000)
    sink, _ = resumed(tmp_path, buffer.getvalue())
    for piece in pieces(buffer.getvalue(), [1 << 20]):
        sink.write(piece)
    (workspace,) = tmp_path.iterdir()
    assert (workspace / "skeleton").stat().st_size < total / 50
    sink.restart()


def test_an_archive_without_its_end_cannot_be_finished(tmp_path: Path, mixed: bytes) -> None:
    sink, _ = resumed(tmp_path, mixed)
    sink.write(mixed[:5000])
    with pytest.raises(BadArchive, match="truncated"):
        sink.finish()
    sink.restart()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("exists", [False, True])
def test_a_process_killed_anywhere_while_finishing_is_finished_by_the_next(
    exists: bool,
    tmp_path: Path,
    mixed: bytes,
    expected: dict[str, bytes | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recovered = count = 0
    calls_left = [0]

    def dying(real: object) -> object:
        def call(*args: object, **options: object) -> object:
            calls_left[0] -= 1
            if not calls_left[0]:
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
            calls_left[0] = count
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
            assert snapshot(place / "target") == expected
        else:
            later.close()
            assert finished(place, mixed) == expected
    assert snapshot(place / "target") == expected
    assert count > recovered > 5


def test_a_partly_removed_tree_is_never_moved_into_place(tmp_path: Path, mixed: bytes) -> None:
    """The first process was killed before the final move, the next one while removing it for other bytes."""
    for moment in range(1, 40):
        place = tmp_path / str(moment)
        place.mkdir()
        sink, _ = resumed(place, mixed)
        sink.write(mixed)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            patch.setattr("outlast.node.archives.finalize.move_into_place", _kill)
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


def test_a_process_killed_during_cleanup_leaves_nothing_to_fetch_again(tmp_path: Path, mixed: bytes) -> None:
    """The state is removed last, so that the next process can see that the tree is in place."""
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


def test_replayed_and_following_bytes_give_the_digest_of_the_whole(tmp_path: Path, mixed: bytes) -> None:
    sink, _ = resumed(tmp_path, mixed)
    sink.write(mixed[:7777])
    sink.close()
    digest = hashlib.sha256()
    sink = sink_at(tmp_path)
    reached = sink.resume("it", digest.update)
    digest.update(mixed[reached:])
    sink.restart()
    assert digest.hexdigest() == hashlib.sha256(mixed).hexdigest()

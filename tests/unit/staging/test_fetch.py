"""A fetch delivers the right bytes through every error, records its cost, and fails clearly if it cannot."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outlast.node.archives.sink import BadArchive, Block
from outlast.node.protocol import Outcome
from outlast.node.staging.errors import ErrorKind, FetchFailed, SourceError
from outlast.node.staging.fetch.fetch import identify
from outlast.node.staging.fetch.file_identity import FileIdentity
from outlast.node.staging.fetch.part_file import PartFile
from outlast.node.staging.fetch.receipt import FetchProgress
from outlast.node.staging.file_version import FileVersion
from outlast.node.staging.item import DataItem
from outlast.node.staging.sources.base import Body
from servers.behaviour import PELICAN, Behaviour, rfc3230, seeded
from servers.misbehaving import Misbehaving
from support.fetching import BLOCK, CONTENT, PATH, SETTINGS, FastClock, Scene, sha256, threads_of_fetches

Make = Callable[[int], Scene]
OTHER = seeded(len(CONTENT), seed=2)
PINNED = sha256(CONTENT)


@pytest.fixture
def scene_of(tmp_path: Path) -> Iterator[Make]:
    servers: list[Misbehaving] = []

    def make(count: int) -> Scene:
        for _ in range(count):
            servers.append(Misbehaving({PATH: CONTENT}).__enter__())
        return Scene(tmp_path / "data", servers)

    yield make
    for server in servers:
        server.__exit__(None, None, None)


@pytest.fixture
def scene(scene_of: Make) -> Scene:
    return scene_of(1)


@pytest.fixture
def two(scene_of: Make) -> Scene:
    return scene_of(2)


def _assert_whole(scene: Scene, content: bytes = CONTENT) -> None:
    assert scene.target.read_bytes() == content
    assert scene.left() == ["a.bin"]
    assert threads_of_fetches() == []


def test_a_file_arrives_under_its_name_with_nothing_beside_it(scene: Scene) -> None:
    receipt = scene.fetch(PINNED)
    _assert_whole(scene)
    assert receipt.bytes == len(CONTENT)
    assert (receipt.digests, receipt.checked, receipt.vouched) == (PINNED, ("sha256",), "pinned")
    assert receipt.costs.by_kind == {}
    assert receipt.resumed_from == 0
    assert [share.bytes for share in receipt.sources.values()] == [len(CONTENT)]
    assert scene.starts() == [0]


@pytest.mark.parametrize(
    ("behaviour", "kind", "resumes_at"),
    [
        (Behaviour(silent=True), ErrorKind.NO_ANSWER, 0),
        (Behaviour(rubbish=b"SSH-2.0-OpenSSH\r\n"), ErrorKind.NONSENSE, 0),
        (Behaviour(endless_headers=True), ErrorKind.NONSENSE, 0),
        (Behaviour(status=500), ErrorKind.SERVER_ERROR, 0),
        (Behaviour(status=502), ErrorKind.SERVER_ERROR, 0),
        (Behaviour(status=429), ErrorKind.BUSY, 0),
        (Behaviour(status=503, headers=(("Retry-After", "7"),)), ErrorKind.BUSY, 0),
        (Behaviour(status=401), ErrorKind.REFUSED, 0),
        (Behaviour(status=403), ErrorKind.REFUSED, 0),
        (Behaviour(status=404), ErrorKind.MISSING_FOR_NOW, 0),
        (Behaviour(gzip=True), ErrorKind.NONSENSE, 0),
        (Behaviour(stall_after=0), ErrorKind.STALL, 0),
        (Behaviour(stall_after=30_001), ErrorKind.STALL, 30_001),
        (Behaviour(reset_after=30_001), ErrorKind.RESET, 30_001),
        (Behaviour(close_after=30_001), ErrorKind.TRUNCATED, 30_001),
        (Behaviour(chunked=True, close_after=30_001), ErrorKind.TRUNCATED, 30_001),
        (Behaviour(announce=500), ErrorKind.TRUNCATED, None),
        (Behaviour(chunked=True, no_last_chunk=True), ErrorKind.TRUNCATED, None),
    ],
    ids=str,
)
def test_an_error_is_recorded_and_received_bytes_are_not_fetched_again(
    scene: Scene, behaviour: Behaviour, kind: ErrorKind, resumes_at: int | None
) -> None:
    scene.servers[0].plan(behaviour)
    receipt = scene.fetch(PINNED, size=len(CONTENT) if behaviour.chunked else None)
    _assert_whole(scene)
    if behaviour.announce:
        # The server first announces a longer file than it then does, so the fetch restarts.
        assert kind in receipt.costs.by_kind
        return
    assert list(receipt.costs.by_kind) == [kind]
    assert receipt.costs.by_kind[kind].count == 1
    assert receipt.costs.by_kind[kind].bytes == 0
    assert scene.starts() == ([0] if resumes_at is None else [0, resumes_at])


def test_a_server_that_closes_after_some_bytes_each_time_is_asked_for_the_rest_at_once(scene: Scene) -> None:
    scene.servers[0].always(Behaviour(close_after=20_000))
    receipt = scene.fetch(PINNED)
    _assert_whole(scene)
    assert scene.starts() == [0, 20_000, 40_000, 60_000, 80_000]
    assert receipt.costs.by_kind[ErrorKind.TRUNCATED].count == 4
    assert scene.clock.slept == []


def test_the_time_of_a_stall_is_charged_to_it_even_if_a_buffer_was_partly_filled(scene: Scene) -> None:
    scene.servers[0].plan(Behaviour(stall_after=7 * BLOCK + 500))
    receipt = scene.fetch(PINNED)
    assert receipt.costs.by_kind[ErrorKind.STALL].seconds >= 0.1
    assert sum(share.seconds for share in receipt.sources.values()) < receipt.seconds - 0.1


def test_the_next_source_continues_at_once_where_the_first_one_stopped(two: Scene) -> None:
    two.servers[0].plan(Behaviour(reset_after=30_000))
    receipt = two.fetch(PINNED)
    _assert_whole(two)
    assert two.starts(1) == [30_000]
    assert [share.bytes for share in receipt.sources.values()] == [30_000, 70_000]
    assert two.clock.slept == []


def test_a_source_without_ranges_is_left_for_one_that_has_them(two: Scene) -> None:
    two.servers[0].plan(Behaviour(close_after=30_000), Behaviour(status=500))
    two.servers[1].always(Behaviour(ignore_range=True))
    receipt = two.fetch(PINNED)
    _assert_whole(two)
    assert two.starts(0) == [0, 30_000, 30_000]
    assert receipt.costs.by_kind[ErrorKind.NO_RANGES].bytes == 0


def test_bytes_that_the_only_source_without_ranges_sends_again_are_skipped_and_recorded(scene: Scene) -> None:
    scene.servers[0].plan(Behaviour(close_after=30_000))
    scene.servers[0].always(Behaviour(ignore_range=True))
    receipt = scene.fetch(PINNED)
    _assert_whole(scene)
    assert receipt.costs.by_kind[ErrorKind.NO_RANGES].bytes == 30_000


def test_a_source_that_sends_another_range_than_requested_is_not_trusted(two: Scene) -> None:
    two.servers[0].plan(Behaviour(close_after=30_000), Behaviour(other_range=100))
    two.servers[1].always(Behaviour(status=500))
    receipt = two.fetch(PINNED)
    _assert_whole(two)
    assert ErrorKind.NONSENSE in receipt.costs.by_kind


def test_pauses_grow_and_a_pause_that_a_server_requests_is_kept_within_bounds(scene: Scene) -> None:
    wait = (("Retry-After", "90"),)
    forever = (("Retry-After", "86400"),)
    scene.servers[0].plan(
        Behaviour(status=500), Behaviour(status=500), Behaviour(status=500),
        Behaviour(status=429, headers=wait), Behaviour(status=429, headers=forever),
    )  # fmt: skip
    receipt = scene.fetch(PINNED)
    _assert_whole(scene)
    assert receipt.costs.by_kind[ErrorKind.SERVER_ERROR].seconds == pytest.approx(0.75 + 1.5 + 3.0, abs=0.5)
    assert receipt.costs.by_kind[ErrorKind.BUSY].seconds == pytest.approx(90 + 300, abs=0.5)


# Missing or refused


def test_a_temporary_404_of_a_gateway_is_retried(scene: Scene) -> None:
    scene.servers[0].plan(*[Behaviour(status=404)] * 4)
    receipt = scene.fetch(PINNED)
    _assert_whole(scene)
    assert receipt.costs.by_kind[ErrorKind.MISSING_FOR_NOW].count == 4


def test_a_persistent_404_is_believed_after_a_while(scene: Scene) -> None:
    scene.servers[0].always(Behaviour(status=404))
    with pytest.raises(FetchFailed, match="404 Not Found") as caught:
        scene.fetch(PINNED)
    assert caught.value.cause.kind is ErrorKind.MISSING
    assert caught.value.outcome is Outcome.NOT_FOUND
    assert sum(scene.clock.slept) == pytest.approx(SETTINGS.refusal_seconds, abs=5)
    assert len(scene.servers[0].requests) >= SETTINGS.refusals


def test_a_final_404_ends_the_fetch_at_once(scene: Scene) -> None:
    scene.servers[0].always(Behaviour(status=404, server=PELICAN))
    with pytest.raises(FetchFailed) as caught:
        scene.fetch(PINNED)
    assert caught.value.cause.kind is ErrorKind.MISSING
    assert scene.clock.slept == []


def test_a_final_404_of_one_mirror_does_not_end_the_fetch_while_another_responds(two: Scene) -> None:
    two.servers[0].always(Behaviour(status=404, server=PELICAN))
    two.servers[1].plan(Behaviour(close_after=50_000), Behaviour(status=500))
    two.fetch(PINNED)
    _assert_whole(two)
    assert two.starts(0) == [0]


def test_a_refused_request_is_retried_once_at_once_and_then_elsewhere(two: Scene) -> None:
    two.servers[0].always(Behaviour(status=403))
    two.fetch(PINNED)
    _assert_whole(two)
    assert two.starts(0) == [0, 0]
    assert two.clock.slept == []


def test_a_fetch_that_is_refused_for_long_enough_fails_with_the_status(scene: Scene) -> None:
    scene.servers[0].always(Behaviour(status=401))
    with pytest.raises(FetchFailed, match="401 Unauthorized") as caught:
        scene.fetch(PINNED)
    assert caught.value.cause.kind is ErrorKind.REFUSED


def test_a_fetch_fails_when_no_new_byte_has_arrived_within_its_patience(two: Scene) -> None:
    two.servers[0].plan(Behaviour(close_after=10_000))
    for server in two.servers:
        server.always(Behaviour(status=500))
    two.servers[0].plan(Behaviour(close_after=10_000))
    with pytest.raises(FetchFailed, match=r"no new byte for 60[0-9] s") as caught:
        two.fetch(PINNED)
    assert caught.value.outcome is Outcome.NETWORK
    assert two.left() == [".a.bin.part", ".a.bin.part.json"]
    assert sum(two.clock.slept) == pytest.approx(SETTINGS.patience, abs=5)


# Wrong bytes


def test_wrong_bytes_never_get_the_final_name_and_their_source_is_excluded(two: Scene) -> None:
    two.servers[0].always(Behaviour(flip=(5000,)))
    receipt = two.fetch(PINNED)
    _assert_whole(two)
    assert two.starts(0) == [0]
    cost = receipt.costs.by_kind[ErrorKind.WRONG_DIGEST]
    assert (cost.count, cost.bytes) == (1, len(CONTENT))


def test_among_several_sources_the_one_with_wrong_bytes_is_found(scene_of: Make) -> None:
    scene = scene_of(3)
    scene.servers[0].plan(Behaviour(close_after=20_000))
    scene.servers[1].always(Behaviour(flip=(50_000,)))
    receipt = scene.fetch(PINNED)
    _assert_whole(scene)
    assert receipt.costs.by_kind[ErrorKind.WRONG_DIGEST].count == 1


def test_a_bit_flipped_once_on_the_way_from_the_only_source_does_not_end_the_fetch(scene: Scene) -> None:
    scene.servers[0].plan(Behaviour(flip=(70_000,)))
    scene.fetch(PINNED)
    _assert_whole(scene)


def test_a_wrong_file_on_all_sources_fails_the_fetch_and_leaves_no_bytes(two: Scene) -> None:
    for server in two.servers:
        server.put(PATH, OTHER)
    with pytest.raises(FetchFailed, match=r"its sha256 is [0-9a-f]{64}, expected [0-9a-f]{64}") as caught:
        two.fetch(PINNED)
    assert caught.value.outcome is Outcome.CORRUPT_INPUT
    assert not two.target.exists()
    assert (two.folder / ".a.bin.part").stat().st_size == 0


def test_a_file_of_another_length_than_pinned_is_not_even_read(two: Scene) -> None:
    two.servers[0].put(PATH, CONTENT + b"more")
    receipt = two.fetch(PINNED, size=len(CONTENT))
    _assert_whole(two)
    assert receipt.costs.by_kind[ErrorKind.WRONG_LENGTH].bytes == 0


def test_no_byte_beyond_the_pinned_size_is_written(two: Scene) -> None:
    two.servers[0].put(PATH, CONTENT + b"more")
    two.servers[0].always(Behaviour(chunked=True))
    receipt = two.fetch(size=len(CONTENT))
    _assert_whole(two)
    assert ErrorKind.WRONG_LENGTH in receipt.costs.by_kind


def test_a_trailer_that_reports_a_failure_is_respected_if_no_digest_is_known(scene: Scene) -> None:
    broken = Behaviour(chunked=True, trailers=(("X-Transfer-Status", "500: read failed"),))
    scene.servers[0].plan(Behaviour(), broken)
    receipt = scene.fetch()
    _assert_whole(scene)
    assert receipt.costs.by_kind[ErrorKind.SERVER_ERROR].bytes == len(CONTENT)


# Digests, and who vouches for them


def test_without_a_pin_the_digest_that_the_source_vouches_for_is_checked(scene: Scene) -> None:
    scene.servers[0].put(PATH, CONTENT, digest_headers={"Digest": rfc3230(CONTENT, "md5")})
    scene.servers[0].plan(Behaviour(), Behaviour(flip=(9,)))
    receipt = scene.fetch()
    _assert_whole(scene)
    assert (receipt.checked, receipt.vouched) == (("md5",), "source")
    assert receipt.costs.by_kind[ErrorKind.WRONG_DIGEST].count == 1


def test_without_any_digest_the_receipt_says_that_nobody_vouched(scene: Scene) -> None:
    receipt = scene.fetch()
    _assert_whole(scene)
    assert (receipt.digests, receipt.checked, receipt.vouched) == (PINNED, (), "nobody")


def test_a_source_whose_own_digest_contradicts_the_pin_is_not_trusted() -> None:
    file = FileIdentity(DataItem(("http://host/a",), PINNED))
    file.add_version(
        0, "one", FileVersion(len(CONTENT), digests={"sha256": PINNED["sha256"].upper(), "sha3": "?"})
    )
    with pytest.raises(SourceError, match="it reports the sha256 of its file as") as caught:
        file.add_version(1, "two", FileVersion(len(CONTENT), digests=sha256(OTHER)))
    assert (caught.value.kind, caught.value.source) == (ErrorKind.WRONG_DIGEST, "two")


# A file that changes


def test_without_a_pin_a_file_that_changes_is_fetched_again_from_the_start(scene: Scene) -> None:
    server = scene.servers[0]
    server.plan(Behaviour(), Behaviour(close_after=30_000))

    def change(progress: FetchProgress) -> None:
        if progress.done == 30_000:
            server.put(PATH, OTHER)

    server.plan(Behaviour(status=500))
    receipt = scene.fetch(on_progress=change)
    _assert_whole(scene, OTHER)
    cost = receipt.costs.by_kind[ErrorKind.CHANGED]
    assert (cost.count, cost.bytes) == (1, 30_000)


def test_with_a_pin_a_source_whose_file_has_changed_is_excluded(two: Scene) -> None:
    two.servers[0].plan(Behaviour(close_after=30_000))
    two.servers[1].plan(Behaviour(close_after=20_000), Behaviour(status=500))

    def change(progress: FetchProgress) -> None:
        if progress.done >= 30_000:
            two.servers[0].put(PATH, OTHER)

    two.servers[1].plan(Behaviour(status=500))
    receipt = two.fetch(PINNED, on_progress=change)
    _assert_whole(two)
    assert ErrorKind.WRONG_DIGEST not in receipt.costs.by_kind


def test_with_a_pin_the_only_source_may_change_everything_but_the_bytes(scene: Scene) -> None:
    scene.servers[0].plan(Behaviour(close_after=30_000))
    scene.servers[0].always(Behaviour(headers=(("ETag", '"touched"'),)))
    receipt = scene.fetch(PINNED)
    _assert_whole(scene)
    cost = receipt.costs.by_kind[ErrorKind.CHANGED]
    assert (cost.count, cost.bytes) == (1, 0)
    assert scene.starts() == [0, 30_000, 30_000]


def test_a_mirror_with_another_file_is_excluded(two: Scene) -> None:
    two.servers[0].plan(Behaviour(), Behaviour(close_after=30_000))
    two.servers[1].put(PATH, OTHER + b"more")
    receipt = two.fetch()
    _assert_whole(two)
    assert receipt.costs.by_kind[ErrorKind.CHANGED].count == 1


def test_with_a_pin_a_mirror_that_contradicts_a_wrong_one_is_used_once_that_is_excluded(two: Scene) -> None:
    two.servers[0].put(PATH, OTHER + b"more")
    two.servers[0].plan(Behaviour(close_after=30_000))
    receipt = two.fetch(PINNED)
    _assert_whole(two)
    assert receipt.costs.by_kind[ErrorKind.WRONG_DIGEST].count == 1


# From one process to the next


def test_an_interrupted_fetch_ends_quickly_and_is_resumed_where_it_was(scene: Scene) -> None:
    class Stop(Exception):
        pass

    scene.servers[0].plan(Behaviour(stall_after=30_000))

    def pulse() -> None:
        part = scene.folder / ".a.bin.part"
        if part.exists() and part.stat().st_size:
            raise Stop

    with pytest.raises(Stop):
        scene.fetch(PINNED, pulse=pulse)
    assert threads_of_fetches() == []
    kept = (scene.folder / ".a.bin.part").stat().st_size
    receipt = scene.fetch(PINNED)
    _assert_whole(scene)
    assert receipt.resumed_from == kept
    assert scene.starts() == [0, kept]


def test_a_part_of_another_file_is_not_resumed(scene: Scene) -> None:
    scene.servers[0].always(Behaviour(close_after=0))
    scene.servers[0].plan(Behaviour(close_after=30_000))
    with pytest.raises(FetchFailed):
        scene.fetch(sha256(OTHER), patience=1)
    scene.servers[0].always(Behaviour())
    receipt = scene.fetch(PINNED)
    _assert_whole(scene)
    assert receipt.resumed_from == 0


def test_files_that_cannot_be_distinguished_are_not_mixed(scene: Scene) -> None:
    server, no_version = scene.servers[0], (("ETag", ""), ("Last-Modified", ""))
    server.plan(Behaviour(headers=no_version), Behaviour(headers=no_version, close_after=30_000))
    server.always(Behaviour(status=500))
    with pytest.raises(FetchFailed):
        scene.fetch()
    server.put(PATH, OTHER)
    server.always(Behaviour(headers=no_version))
    assert scene.fetch().resumed_from == 0
    _assert_whole(scene, OTHER)


def test_a_complete_part_is_only_verified(scene: Scene) -> None:
    sink = PartFile(str(scene.folder), "a.bin")
    sink.resume("sha256:" + PINNED["sha256"], lambda block: None)
    sink.write(CONTENT)
    sink.close()
    receipt = scene.fetch(PINNED, size=len(CONTENT))
    _assert_whole(scene)
    assert (receipt.resumed_from, scene.starts()) == (len(CONTENT), [])


def test_a_part_that_is_longer_than_the_file_is_discarded(scene: Scene) -> None:
    sink = PartFile(str(scene.folder), "a.bin")
    item = DataItem((scene.servers[0].url(PATH),))
    sink.resume(identify(item, scene.sources()), lambda block: None)
    sink.write(CONTENT + b"more")
    sink.close()
    receipt = scene.fetch()
    _assert_whole(scene)
    assert (receipt.resumed_from, receipt.costs.by_kind) == (0, {})


def test_a_damaged_part_is_discarded_and_no_source_is_blamed(scene: Scene) -> None:
    sink = PartFile(str(scene.folder), "a.bin")
    sink.resume("sha256:" + PINNED["sha256"], lambda block: None)
    sink.write(b"\0" * 50_000)
    sink.close()
    receipt = scene.fetch(PINNED)
    _assert_whole(scene)
    assert receipt.costs.by_kind[ErrorKind.WRONG_DIGEST].count == 1


def test_an_empty_file_arrives_and_a_missing_one_does_not(scene: Scene) -> None:
    scene.servers[0].put(PATH, b"")
    scene.fetch(sha256(b""), size=0)
    _assert_whole(scene, b"")
    scene.target.unlink()
    scene.servers[0].always(Behaviour(status=404, server=PELICAN))
    with pytest.raises(FetchFailed):
        scene.fetch(sha256(b""), size=0)
    assert not scene.target.exists()


# The disk


@pytest.mark.parametrize("size", [None, len(CONTENT)])
def test_too_little_space_is_reported_before_a_byte_is_written(scene: Scene, size: int | None) -> None:
    with pytest.raises(FetchFailed, match=r"it needs 100 kB more.* has .* GB\. Free some space") as caught:
        scene.fetch(PINNED, size=size, margin=1 << 60)
    assert caught.value.outcome is Outcome.OUT_OF_DISK
    assert (scene.folder / ".a.bin.part").stat().st_size == 0
    assert len(scene.starts()) == (size is None)  # with a known size no request is needed
    assert threads_of_fetches() == []


class _FailingPartFile(PartFile):
    """A file on a disk with room for only `room` bytes; a write beyond that raises `error`."""

    def __init__(self, folder: Path, room: int, error: Exception) -> None:
        super().__init__(str(folder), "a.bin")
        self._room = room
        self._error = error

    def write(self, block: Block) -> None:
        if self._room < len(block):
            raise self._error
        self._room -= len(block)
        super().write(block)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_ends_the_fetch_at_once_and_written_bytes_stay(scene: Scene, code: int) -> None:
    sink = _FailingPartFile(scene.folder, 50_000, OSError(code, os.strerror(code)))
    with pytest.raises(FetchFailed, match=r"(No space|quota exceeded).* of 100 kB.* is kept") as caught:
        scene.fetch(PINNED, sink=sink)
    assert caught.value.cause.kind is ErrorKind.DISK_FULL
    receipt = scene.fetch(PINNED)
    _assert_whole(scene)
    assert 50_000 - BLOCK <= receipt.resumed_from <= 50_000


def test_another_disk_error_is_raised_as_it_is(scene: Scene) -> None:
    with pytest.raises(OSError, match="Input/output error"):
        scene.fetch(
            PINNED, sink=_FailingPartFile(scene.folder, 50_000, OSError(errno.EIO, "Input/output error"))
        )
    assert threads_of_fetches() == []


@pytest.mark.parametrize("room", [0, 10_000])
def test_bytes_that_cannot_be_unpacked_are_tried_once_from_the_next_source(two: Scene, room: int) -> None:
    error = BadArchive("it is no archive")
    with pytest.raises(FetchFailed, match="it is no archive") as caught:
        two.fetch(PINNED, sink=_FailingPartFile(two.folder, room, error))
    assert caught.value.cause.kind is ErrorKind.BAD_ARCHIVE
    assert (two.starts(0), two.starts(1)) == ([0], [0, 0])


# Progress and messages


def test_progress_reports_the_bytes_so_far_the_size_and_why_it_waits(scene: Scene) -> None:
    seen: list[FetchProgress] = []
    scene.servers[0].plan(Behaviour(close_after=30_000), Behaviour(status=500))
    scene.fetch(PINNED, on_progress=seen.append)
    waiting = [progress for progress in seen if progress.error]
    assert {progress.done for progress in waiting} == {30_000}
    assert {progress.total for progress in waiting} == {len(CONTENT)}
    assert all("500 Internal Server Error" in progress.error for progress in waiting)


@pytest.mark.parametrize("pinned", [PINNED, {}])
def test_progress_counts_down_to_the_next_try_and_to_the_end_of_the_patience(
    scene: Scene, pinned: dict[str, str]
) -> None:
    seen: list[FetchProgress] = []
    scene.servers[0].always(Behaviour(status=503, headers=(("Retry-After", "40"),)))
    with pytest.raises(FetchFailed):
        scene.fetch(pinned, on_progress=seen.append, patience=100.0)
    pauses = [progress for progress in seen if progress.next_try_in is not None]
    assert max(progress.next_try_in or 0.0 for progress in pauses) == pytest.approx(40.0, abs=1.0)
    ends = [progress.gives_up_in for progress in pauses if progress.gives_up_in is not None]
    assert len(ends) == len(pauses)
    assert ends == sorted(ends, reverse=True)
    assert (ends[0], ends[-1]) == (pytest.approx(100.0, abs=5.0), pytest.approx(0.0, abs=1.0))


def test_progress_names_the_source_that_was_tried_last(two: Scene) -> None:
    seen: list[FetchProgress] = []
    # Retry-After fixes the order of the tries: 0 and 1 at once, 0 after 10 s, 1 after 100 s.
    two.servers[0].plan(_busy(500, 10), _busy(500, 290))
    two.servers[1].plan(_busy(502, 100))
    two.fetch(PINNED, on_progress=seen.append)
    pauses = [progress.error for progress in seen if progress.next_try_in is not None]
    first, second = (server.url("/").split("/")[2] for server in two.servers)
    assert list(dict.fromkeys(pauses)) == [
        "%s responds with 502 Bad Gateway, and asks to wait 100 s" % second,
        "%s responds with 500 Internal Server Error, and asks to wait 290 s" % first,
    ]
    assert (two.starts(0), two.starts(1)) == ([0, 0], [0, 0])


def _busy(status: int, seconds: int) -> Behaviour:
    return Behaviour(status=status, headers=(("Retry-After", str(seconds)),))


def test_progress_counts_down_to_the_end_of_refusals_where_that_comes_first(scene: Scene) -> None:
    seen: list[FetchProgress] = []
    scene.servers[0].always(Behaviour(status=404))
    with pytest.raises(FetchFailed):
        scene.fetch(PINNED, on_progress=seen.append)
    ends = [progress.gives_up_in for progress in seen if progress.gives_up_in is not None]
    assert max(ends) <= SETTINGS.refusal_seconds < SETTINGS.patience


def test_a_source_that_never_responds_is_reported_and_the_fetch_ends_with_its_patience() -> None:
    seen: list[FetchProgress] = []
    released = threading.Event()

    class Silent:
        name = "http://a.example/x"

        def version(self) -> FileVersion:
            released.wait(60)
            raise SourceError(ErrorKind.NO_ANSWER, "a.example did not respond", self.name)

        def open(self, start: int, stop: int | None = None) -> Body:
            raise AssertionError("nothing is opened before the file is identified")

    clock = FastClock()

    def pulse() -> None:
        clock.slept.append(SETTINGS.patience / 4)

    try:
        with pytest.raises(FetchFailed, match="no new byte for"):
            identify(DataItem((Silent.name,)), [Silent()], SETTINGS, seen.append, pulse, clock.clock())
    finally:
        released.set()
    assert {progress.source for progress in seen} == {Silent.name}
    assert seen[-1].gives_up_in is not None and seen[0].next_try_in is None


def test_no_query_of_a_url_is_in_an_error(scene: Scene) -> None:
    scene.servers[0].always(Behaviour(status=500))
    item = DataItem((scene.servers[0].url(PATH + "?signature=hush"),))
    with pytest.raises(FetchFailed) as caught:
        identify(item, scene.sources(), clock=FastClock().clock())
    assert "hush" not in str(caught.value)


def test_two_processes_give_the_same_bytes_the_same_identity(scene: Scene) -> None:
    def identity(query: str, **pins: object) -> str:
        item = DataItem((scene.servers[0].url(PATH + query),), **pins)  # type: ignore[arg-type]
        return identify(item, scene.sources())

    assert identity("?signature=a") == identity("?signature=b") != identity("", digests=PINNED)
    before = identity("")
    scene.servers[0].put(PATH, OTHER)
    assert identity("") != before
    assert identity("", digests=PINNED) == "sha256:" + PINNED["sha256"]


# Several connections


def test_if_the_server_limits_each_connection_several_fetch_the_file_in_order(scene: Scene) -> None:
    content = seeded(3_000_000)
    scene.servers[0].put(PATH, content)
    scene.servers[0].always(Behaviour(rate=1_000_000))
    receipt = scene.fetch(
        sha256(content), connections=4, check_interval=0.05, block_size=8192, segment_blocks=8
    )
    _assert_whole(scene, content)
    assert receipt.connections == 4
    got = sum(request.sent for request in scene.servers[0].requests)
    assert got - len(content) < 4_000_000


def test_with_several_connections_an_error_of_one_costs_no_bytes_of_the_others(scene: Scene) -> None:
    content = seeded(3_000_000)
    scene.servers[0].put(PATH, content)
    scene.servers[0].always(Behaviour(rate=1_000_000))
    slow = Behaviour(rate=1_000_000)
    broken = Behaviour(rate=1_000_000, reset_after=20_000)
    scene.servers[0].plan(*[slow] * 12, broken, broken, slow, broken)
    receipt = scene.fetch(
        sha256(content), connections=4, check_interval=0.05, block_size=8192, segment_blocks=8
    )
    _assert_whole(scene, content)
    assert receipt.costs.by_kind[ErrorKind.RESET].bytes == 0
    assert receipt.connections == 4


def test_a_source_that_crawls_is_left_for_one_that_was_faster(two: Scene) -> None:
    content = seeded(2_500_000)
    for server in two.servers:
        server.put(PATH, content)
    two.servers[0].plan(Behaviour(rate=2_000_000, close_after=1_500_000))
    two.servers[1].always(Behaviour(rate=50_000))
    receipt = two.fetch(sha256(content), check_interval=0.05, crawl_window=0.3)
    _assert_whole(two, content)
    assert receipt.costs.by_kind[ErrorKind.CRAWL].count == 1
    assert receipt.costs.by_kind[ErrorKind.CRAWL].bytes == 0
    assert len(two.starts(0)) == 2


#: A range beyond the end, and no word about the size of the file.
NO_SUCH_RANGE = Behaviour(status=416)


def test_a_complete_part_with_the_pinned_digest_needs_no_response(scene: Scene) -> None:
    server = scene.servers[0]
    server.plan(Behaviour(chunked=True, no_last_chunk=True))
    server.always(Behaviour(status=503))
    with pytest.raises(FetchFailed):
        scene.fetch(PINNED)
    before = len(server.requests)
    server.always(NO_SUCH_RANGE)
    receipt = scene.fetch(PINNED)
    assert receipt.resumed_from == len(CONTENT)
    assert len(server.requests) == before
    _assert_whole(scene)


def test_a_server_that_has_no_more_bytes_ends_the_fetch_if_the_pinned_digest_fits(scene: Scene) -> None:
    scene.servers[0].plan(Behaviour(chunked=True, no_last_chunk=True), NO_SUCH_RANGE)
    scene.fetch(PINNED)
    assert scene.starts() == [0, len(CONTENT)]
    _assert_whole(scene)


def test_a_server_that_has_no_more_bytes_ends_no_fetch_whose_digest_does_not_fit(scene: Scene) -> None:
    scene.servers[0].plan(Behaviour(chunked=True, close_after=50_000))
    scene.servers[0].always(NO_SUCH_RANGE)
    with pytest.raises(FetchFailed, match="does not report the size"):
        scene.fetch(PINNED)
    scene.servers[0].always(Behaviour())
    scene.fetch(PINNED)
    _assert_whole(scene)


def test_a_416_without_a_range_is_no_empty_file(scene: Scene) -> None:
    no_content = Behaviour(status=416, headers=(("Content-Range", "bytes */0"),))
    scene.servers[0].always(no_content)
    with pytest.raises(FetchFailed):
        scene.fetch()
    assert not scene.target.exists()


def test_an_empty_file_is_fetched(scene: Scene) -> None:
    scene.servers[0].put(PATH, b"")
    scene.fetch()
    _assert_whole(scene, b"")


def test_a_response_with_two_lengths_is_not_a_short_file(scene: Scene) -> None:
    scene.servers[0].always(Behaviour(chunked=True, headers=(("Content-Length", "5"),)))
    with pytest.raises(FetchFailed, match="both Content-Length and Transfer-Encoding"):
        scene.fetch()
    assert not scene.target.exists()


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Scene]:
    """Yield a scene whose server sends neither ETag nor Last-Modified nor digests."""
    with Misbehaving({PATH: CONTENT}, etag=False) as server:
        yield Scene(tmp_path / "data", [server])


def test_without_validators_a_broken_transfer_begins_anew_and_joins_no_two_files(plain: Scene) -> None:
    server = plain.servers[0]
    server.plan(Behaviour(), Behaviour(close_after=50_000))

    def exchange(progress: FetchProgress) -> None:
        if progress.error:
            server.put(PATH, OTHER)

    plain.fetch(on_progress=exchange)
    assert plain.starts()[-1] == 0
    assert plain.target.read_bytes() in (CONTENT, OTHER)


def test_without_validators_a_transfer_that_always_breaks_is_given_up(plain: Scene) -> None:
    plain.servers[0].always(Behaviour(close_after=50_000))
    with pytest.raises(FetchFailed, match="restarted 5 times"):
        plain.fetch()
    assert set(plain.starts()) == {0}


def test_without_validators_a_pinned_digest_allows_to_resume(plain: Scene) -> None:
    plain.servers[0].plan(Behaviour(close_after=50_000))
    plain.fetch(PINNED)
    assert plain.starts() == [0, 50_000]
    _assert_whole(plain)


def test_without_validators_one_connection_fetches_all(plain: Scene) -> None:
    content = seeded(1_500_000)
    plain.servers[0].put(PATH, content)
    plain.servers[0].always(Behaviour(rate=1_000_000))
    receipt = plain.fetch(connections=4, check_interval=0.05, block_size=8192, segment_blocks=8)
    assert receipt.connections == 1
    _assert_whole(plain, content)

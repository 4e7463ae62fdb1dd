"""Choice of source, detection of slow sources, number of connections, and cost log: without a network."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.node.staging.fetch.fetch_settings import FetchClock, FetchSettings
from outlast.node.staging.fetch.receipt import CostLog
from outlast.node.staging.fetch.source_selection import SourceSelector
from outlast.node.staging.fetch.throughput import ConnectionScaler, SlowSource, SlowSourceDetector

SETTINGS = FetchSettings()
MB = 1_000_000


class FakeTime:
    def __init__(self) -> None:
        self.now = 1000.0

    def clock(self, jitter: float = 0.999) -> FetchClock:
        return FetchClock(now=lambda: self.now, sleep=lambda seconds: None, jitter=lambda: jitter)


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


def _selector(time: FakeTime, count: int) -> SourceSelector:
    return SourceSelector(["s%d" % index for index in range(count)], SETTINGS, time.clock())


def _fail(
    selector: SourceSelector, index: int, kind: ErrorKind, gained: int = 0, retry_after: float | None = None
) -> None:
    selector.record_failure(index, SourceError(kind, "it failed", "s%d" % index, retry_after), gained)


def _pick(selector: SourceSelector, time: FakeTime, position: int = 5) -> tuple[int, float]:
    pick = selector.pick(position)
    assert pick is not None
    return pick.index, max(0.0, round(pick.not_before - time.now, 1))


def test_the_first_source_in_order_is_used_until_it_fails(time: FakeTime) -> None:
    selector = _selector(time, 3)
    assert _pick(selector, time) == (0, 0)
    _fail(selector, 0, ErrorKind.RESET)
    assert _pick(selector, time) == (1, 0)
    time.now += 1
    assert _pick(selector, time) == (0, 0)


def test_pauses_of_one_source_grow_up_to_a_minute_and_are_jittered(time: FakeTime) -> None:
    selector = _selector(time, 1)
    pauses = []
    for _ in range(9):
        _fail(selector, 0, ErrorKind.NO_ANSWER)
        pauses.append(_pick(selector, time)[1])
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    early = SourceSelector(["s0"], SETTINGS, time.clock(jitter=0.0))
    _fail(early, 0, ErrorKind.NO_ANSWER)
    assert _pick(early, time) == (0, 0.5)


def test_the_only_source_is_retried_at_once_if_it_delivered_a_block(
    time: FakeTime,
) -> None:
    selector = _selector(time, 1)
    _fail(selector, 0, ErrorKind.TRUNCATED, gained=SETTINGS.block_size)
    assert _pick(selector, time) == (0, 0)
    _fail(selector, 0, ErrorKind.TRUNCATED, gained=1)
    assert _pick(selector, time) == (0, 1)


def test_a_final_error_excludes_a_source_for_good(time: FakeTime) -> None:
    selector = _selector(time, 2)
    _fail(selector, 0, ErrorKind.MISSING)
    _fail(selector, 1, ErrorKind.RESET)
    assert _pick(selector, time) == (1, 1)
    assert selector.final_error() is None
    _fail(selector, 1, ErrorKind.UNTRUSTED)
    assert selector.pick(0) is None
    final_error = selector.final_error()
    assert final_error is not None and final_error.kind is ErrorKind.UNTRUSTED


def test_missing_is_believed_when_all_sources_report_it_often_and_long_enough(time: FakeTime) -> None:
    selector = _selector(time, 2)
    for _ in range(SETTINGS.refusals):
        _fail(selector, 0, ErrorKind.MISSING_FOR_NOW)
        _fail(selector, 1, ErrorKind.MISSING_FOR_NOW)
    assert selector.final_error() is None  # not for long enough
    time.now += SETTINGS.refusal_seconds
    final_error = selector.final_error()
    assert final_error is not None and final_error.kind is ErrorKind.MISSING
    _fail(selector, 1, ErrorKind.SERVER_ERROR)
    assert selector.final_error() is None  # that source may have it


def test_a_source_that_ignores_ranges_is_used_only_when_the_others_have_failed_often(time: FakeTime) -> None:
    selector = _selector(time, 2)
    _fail(selector, 0, ErrorKind.NO_RANGES)
    assert _pick(selector, time) == (1, 0)
    _fail(selector, 1, ErrorKind.RESET)
    assert _pick(selector, time) == (1, 1)  # a pause is preferred
    assert _pick(selector, time, position=0) == (0, 0)  # at byte 0 ranges do not matter
    for _ in range(2):
        _fail(selector, 1, ErrorKind.RESET)
    assert _pick(selector, time) == (0, 0)


def test_a_source_that_is_tried_alone_is_given_up_after_repeated_failures(time: FakeTime) -> None:
    selector = _selector(time, 2)
    selector.only = 1
    _fail(selector, 1, ErrorKind.RESET)
    assert _pick(selector, time) == (1, 1)
    for _ in range(3):
        _fail(selector, 1, ErrorKind.RESET)
    assert _pick(selector, time) == (0, 0)


# Slow sources


def _feed(
    detector: SlowSourceDetector,
    time: FakeTime,
    seconds: int,
    rate: float,
    total: float,
    alternatives: list[int],
) -> SlowSource | None:
    """Deliver at `rate` for some seconds, checked each second. Return the first verdict, or None."""
    for _ in range(seconds):
        time.now += 1
        total += rate
        slow = detector.check(time.now, int(total), 0.0, alternatives)
        if slow is not None:
            return slow
    return None


def test_a_slow_source_is_left_for_one_that_was_not_tried(time: FakeTime) -> None:
    detector = SlowSourceDetector(SETTINGS)
    detector.connected(0)
    assert _feed(detector, time, 30, 50 * MB, 0, [1]) is None
    slow = _feed(detector, time, 60, 1 * MB, 1500 * MB, [1])
    assert slow is not None
    assert slow.better_source == 1
    assert slow.rate < 5.1 * MB and slow.reference == pytest.approx(50 * MB)


def test_a_source_that_was_never_faster_is_not_left(time: FakeTime) -> None:
    detector = SlowSourceDetector(SETTINGS)
    detector.connected(0)
    assert _feed(detector, time, 300, 10_000, 0, [1, 2]) is None


def test_a_bursty_source_is_not_left(time: FakeTime) -> None:
    detector = SlowSourceDetector(SETTINGS)
    detector.connected(0)
    total = 0.0
    for second in range(200):
        total += 100 * MB if second % 10 == 0 else 0
        time.now += 1
        assert detector.check(time.now, int(total), 0.0, [1]) is None


def test_a_slow_source_is_kept_if_the_others_are_no_better(time: FakeTime) -> None:
    detector = SlowSourceDetector(SETTINGS)
    detector.connected(0)
    _feed(detector, time, 30, 50 * MB, 0, [1])
    assert _feed(detector, time, 60, 1 * MB, 1500 * MB, [1]) is not None
    detector.connected(1)
    slow = _feed(detector, time, 60, 1 * MB, 1600 * MB, [0])
    # The first source is as slow; this one gets one new connection, and is then kept.
    assert slow is not None and slow.better_source is None
    detector.connected(1)
    assert _feed(detector, time, 200, 1 * MB, 1700 * MB, [0]) is None


def test_a_slow_disk_does_not_count_against_the_source(time: FakeTime) -> None:
    detector = SlowSourceDetector(SETTINGS)
    detector.connected(0)
    _feed(detector, time, 30, 50 * MB, 0, [1])
    total, waited = 1500 * MB, 0.0
    for _ in range(60):
        time.now += 1
        total += MB
        waited += 0.9
        assert detector.check(time.now, total, waited, [1]) is None


# Several connections


class _Server:
    """A server that sends at most `each` bytes per second over one connection, `total` over all."""

    def __init__(self, each: float, total: float) -> None:
        self.each, self.total = each, total
        self.received = 0.0
        self.connections = 1

    def serve(self, scaler: ConnectionScaler, time: FakeTime, seconds: int, left: int = 10**12) -> list[int]:
        """Return the number of connections in each second."""
        seen = []
        for _ in range(seconds):
            time.now += 1
            self.received += min(self.total, self.each * self.connections)
            target = scaler.recommend(time.now, int(self.received), 0.0, left)
            if target != self.connections:
                self.connections = target
                scaler.connections_changed(target)
            seen.append(self.connections)
        return seen


def test_a_server_that_limits_each_connection_gets_four(time: FakeTime) -> None:
    scaler = ConnectionScaler(SETTINGS)
    scaler.connections_changed(1)
    assert _Server(10 * MB, 1000 * MB).serve(scaler, time, 200)[-180:] == [4] * 180


def test_if_four_connections_are_no_faster_one_is_used_and_trials_become_rare(time: FakeTime) -> None:
    scaler = ConnectionScaler(SETTINGS)
    scaler.connections_changed(1)
    seen = _Server(10 * MB, 11 * MB).serve(scaler, time, 400)
    assert seen[-1] == 1
    assert 0 < seen.count(4) < 20


def test_a_transfer_that_is_nearly_done_keeps_one_connection(time: FakeTime) -> None:
    scaler = ConnectionScaler(SETTINGS)
    scaler.connections_changed(1)
    assert set(_Server(10 * MB, 1000 * MB).serve(scaler, time, 50, left=20 * MB)) == {1}


def test_one_connection_is_used_if_no_more_are_allowed(time: FakeTime) -> None:
    scaler = ConnectionScaler(replace(SETTINGS, connections=1))
    scaler.connections_changed(1)
    assert set(_Server(10 * MB, 1000 * MB).serve(scaler, time, 50)) == {1}


# Cost log


def test_every_second_is_charged_once(time: FakeTime) -> None:
    cost_log = CostLog(["s0", "s1"], 0.0)
    cost_log.add_bytes(0, 100, 1.0, 4.0)
    cost_log.add_error(ErrorKind.STALL, 19.0)  # 15 s of silence
    cost_log.add_error(ErrorKind.NO_ANSWER, 20.0)  # the second in between belongs to the error before
    cost_log.add_bytes(1, 50, 25.0, 26.0)
    cost_log.add_error(ErrorKind.RESET, 26.0)
    cost_log.charge_elapsed(28.0)
    assert {kind: cost.seconds for kind, cost in cost_log.costs.by_kind.items()} == {
        ErrorKind.STALL: 16.0,
        ErrorKind.NO_ANSWER: 5.0,
        ErrorKind.RESET: 2.0,
    }
    assert {name: (s.bytes, s.seconds) for name, s in cost_log.shares_by_name().items()} == {
        "s0": (100, 4.0),
        "s1": (50, 1.0),
    }

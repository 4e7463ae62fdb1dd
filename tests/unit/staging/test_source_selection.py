"""Which source is asked next, when a crawl is left, when more connections are opened: without a network."""

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


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def clock(self, chance: float = 0.999) -> FetchClock:
        return FetchClock(now=lambda: self.now, sleep=lambda seconds: None, chance=lambda: chance)


@pytest.fixture
def time() -> Time:
    return Time()


def _choice(time: Time, count: int) -> SourceSelector:
    return SourceSelector(["s%d" % index for index in range(count)], SETTINGS, time.clock())


def _fail(
    choice: SourceSelector, index: int, kind: ErrorKind, gained: int = 0, retry_after: float | None = None
) -> None:
    choice.failed(index, SourceError(kind, "it failed", "s%d" % index, retry_after), gained)


def _turn(choice: SourceSelector, time: Time, position: int = 5) -> tuple[int, float]:
    turn = choice.next(position)
    assert turn is not None
    return turn.index, max(0.0, round(turn.not_before - time.now, 1))


def test_the_first_in_order_is_asked_as_long_as_it_does_not_fail(time: Time) -> None:
    choice = _choice(time, 3)
    assert _turn(choice, time) == (0, 0)
    _fail(choice, 0, ErrorKind.RESET)
    assert _turn(choice, time) == (1, 0)
    time.now += 1
    assert _turn(choice, time) == (0, 0)


def test_pauses_of_one_source_grow_up_to_a_minute_and_are_spread(time: Time) -> None:
    choice = _choice(time, 1)
    pauses = []
    for _ in range(9):
        _fail(choice, 0, ErrorKind.NO_ANSWER)
        pauses.append(_turn(choice, time)[1])
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    early = SourceSelector(["s0"], SETTINGS, time.clock(chance=0.0))
    _fail(early, 0, ErrorKind.NO_ANSWER)
    assert _turn(early, time) == (0, 0.5)


def test_a_source_that_gave_something_worth_the_while_is_asked_again_at_once_if_it_is_alone(
    time: Time,
) -> None:
    choice = _choice(time, 1)
    _fail(choice, 0, ErrorKind.TRUNCATED, gained=SETTINGS.block)
    assert _turn(choice, time) == (0, 0)
    _fail(choice, 0, ErrorKind.TRUNCATED, gained=1)
    assert _turn(choice, time) == (0, 1)


def test_what_is_final_is_final(time: Time) -> None:
    choice = _choice(time, 2)
    _fail(choice, 0, ErrorKind.MISSING)
    _fail(choice, 1, ErrorKind.RESET)
    assert _turn(choice, time) == (1, 1)
    assert choice.verdict() is None
    _fail(choice, 1, ErrorKind.UNTRUSTED)
    assert choice.next(0) is None
    verdict = choice.verdict()
    assert verdict is not None and verdict.kind is ErrorKind.UNTRUSTED


def test_not_there_is_believed_when_all_have_said_it_often_and_long_enough(time: Time) -> None:
    choice = _choice(time, 2)
    for _ in range(SETTINGS.refusals):
        _fail(choice, 0, ErrorKind.MISSING_FOR_NOW)
        _fail(choice, 1, ErrorKind.MISSING_FOR_NOW)
    assert choice.verdict() is None  # not long enough
    time.now += SETTINGS.refusal_seconds
    verdict = choice.verdict()
    assert verdict is not None and verdict.kind is ErrorKind.MISSING
    _fail(choice, 1, ErrorKind.SERVER_ERROR)
    assert choice.verdict() is None  # that one may have it yet


def test_a_source_that_begins_anew_is_asked_only_when_the_others_have_failed_often(time: Time) -> None:
    choice = _choice(time, 2)
    _fail(choice, 0, ErrorKind.NO_RANGES)
    assert _turn(choice, time) == (1, 0)
    _fail(choice, 1, ErrorKind.RESET)
    assert _turn(choice, time) == (1, 1)  # rather a pause
    assert _turn(choice, time, position=0) == (0, 0)  # there is nothing to be begun anew
    for _ in range(2):
        _fail(choice, 1, ErrorKind.RESET)
    assert _turn(choice, time) == (0, 0)


def test_a_source_that_is_to_be_heard_alone_is_given_up_when_it_fails_again_and_again(time: Time) -> None:
    choice = _choice(time, 2)
    choice.alone = 1
    _fail(choice, 1, ErrorKind.RESET)
    assert _turn(choice, time) == (1, 1)
    for _ in range(3):
        _fail(choice, 1, ErrorKind.RESET)
    assert _turn(choice, time) == (0, 0)


# Crawl


def _feed(
    crawl: SlowSourceDetector, time: Time, seconds: int, rate: float, total: float, others: list[int]
) -> SlowSource | None:
    """So many seconds at this rate, looked at each second; the first verdict."""
    for _ in range(seconds):
        time.now += 1
        total += rate
        slow = crawl.look(time.now, int(total), 0.0, others)
        if slow is not None:
            return slow
    return None


def test_a_crawl_is_left_for_a_source_that_was_not_tried(time: Time) -> None:
    crawl = SlowSourceDetector(SETTINGS)
    crawl.connected(0)
    assert _feed(crawl, time, 30, 50 * MB, 0, [1]) is None
    slow = _feed(crawl, time, 60, 1 * MB, 1500 * MB, [1])
    assert slow is not None
    assert slow.better == 1
    assert slow.rate < 5.1 * MB and slow.reference == pytest.approx(50 * MB)


def test_a_slow_source_is_no_crawl_if_nobody_was_faster(time: Time) -> None:
    crawl = SlowSourceDetector(SETTINGS)
    crawl.connected(0)
    assert _feed(crawl, time, 300, 10_000, 0, [1, 2]) is None


def test_a_bursty_server_is_no_crawl(time: Time) -> None:
    crawl = SlowSourceDetector(SETTINGS)
    crawl.connected(0)
    total = 0.0
    for second in range(200):
        total += 100 * MB if second % 10 == 0 else 0
        time.now += 1
        assert crawl.look(time.now, int(total), 0.0, [1]) is None


def test_where_the_others_are_no_better_it_stays(time: Time) -> None:
    crawl = SlowSourceDetector(SETTINGS)
    crawl.connected(0)
    _feed(crawl, time, 30, 50 * MB, 0, [1])
    assert _feed(crawl, time, 60, 1 * MB, 1500 * MB, [1]) is not None
    crawl.connected(1)
    slow = _feed(crawl, time, 60, 1 * MB, 1600 * MB, [0])
    # The first one is as slow; its sibling gets one new connection, and then all stays as it is.
    assert slow is not None and slow.better is None
    crawl.connected(1)
    assert _feed(crawl, time, 200, 1 * MB, 1700 * MB, [0]) is None


def test_a_slow_disk_is_no_crawl_of_the_source(time: Time) -> None:
    crawl = SlowSourceDetector(SETTINGS)
    crawl.connected(0)
    _feed(crawl, time, 30, 50 * MB, 0, [1])
    total, waited = 1500 * MB, 0.0
    for _ in range(60):
        time.now += 1
        total += MB
        waited += 0.9
        assert crawl.look(time.now, total, waited, [1]) is None


# Several connections


class _Server:
    """Each connection gets at most `each`, all together at most `total`."""

    def __init__(self, each: float, total: float) -> None:
        self.each, self.total = each, total
        self.received = 0.0
        self.connections = 1

    def play(self, widening: ConnectionScaler, time: Time, seconds: int, left: int = 10**12) -> list[int]:
        """How many connections there were, each second."""
        seen = []
        for _ in range(seconds):
            time.now += 1
            self.received += min(self.total, self.each * self.connections)
            wanted = widening.look(time.now, int(self.received), 0.0, left)
            if wanted != self.connections:
                self.connections = wanted
                widening.changed(wanted)
            seen.append(self.connections)
        return seen


def test_connections_that_are_held_down_become_four(time: Time) -> None:
    widening = ConnectionScaler(SETTINGS)
    widening.changed(1)
    assert _Server(10 * MB, 1000 * MB).play(widening, time, 200)[-180:] == [4] * 180


def test_where_four_bring_no_more_one_is_gone_back_to_and_trials_become_rare(time: Time) -> None:
    widening = ConnectionScaler(SETTINGS)
    widening.changed(1)
    seen = _Server(10 * MB, 11 * MB).play(widening, time, 400)
    assert seen[-1] == 1
    assert 0 < seen.count(4) < 20


def test_a_transfer_that_is_nearly_done_stays_as_it_is(time: Time) -> None:
    widening = ConnectionScaler(SETTINGS)
    widening.changed(1)
    assert set(_Server(10 * MB, 1000 * MB).play(widening, time, 50, left=20 * MB)) == {1}


def test_one_connection_it_is_where_no_more_are_allowed(time: Time) -> None:
    widening = ConnectionScaler(replace(SETTINGS, connections=1))
    widening.changed(1)
    assert set(_Server(10 * MB, 1000 * MB).play(widening, time, 50)) == {1}


# Books


def test_every_second_is_booked_once(time: Time) -> None:
    books = CostLog(["s0", "s1"], 0.0)
    books.gave(0, 100, 1.0, 4.0)
    books.trouble(ErrorKind.STALL, 19.0)  # 15 s of silence
    books.trouble(ErrorKind.NO_ANSWER, 20.0)  # the second between belongs to what kept us from the first byte
    books.gave(1, 50, 25.0, 26.0)
    books.trouble(ErrorKind.RESET, 26.0)
    books.settle(28.0)
    assert {kind: cost.seconds for kind, cost in books.costs.by_kind.items()} == {
        ErrorKind.STALL: 16.0,
        ErrorKind.NO_ANSWER: 5.0,
        ErrorKind.RESET: 2.0,
    }
    assert {name: (s.bytes, s.seconds) for name, s in books.by_name().items()} == {
        "s0": (100, 4.0),
        "s1": (50, 1.0),
    }

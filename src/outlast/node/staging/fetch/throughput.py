"""The throughput of a transfer and what follows from it: progress reports, leaving slow sources, connections.

ThroughputMonitor   measures, reports, and applies what the other two decide
SlowSourceDetector  whether a source is so slow that another one, or a new connection, is better
ConnectionScaler    how many connections are worth having
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Callable, Sequence

from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.node.staging.fetch.context import BackgroundCall, FetchContext
from outlast.node.staging.fetch.fetch_settings import FetchSettings
from outlast.node.staging.fetch.ordered_stream import OrderedStream, Slot
from outlast.node.staging.sources.base import Source

#: Seconds between two progress reports.
_REPORT_INTERVAL = 0.2
#: Seconds over which the reported rate is measured.
_RATE_WINDOW = 1.0


class ThroughputMonitor:
    """Watches one stream. `start_connection` lets a source fill a slot of it."""

    def __init__(
        self,
        context: FetchContext,
        stream: OrderedStream,
        slow_detector: SlowSourceDetector,
        start_connection: Callable[[Slot, int], None],
    ) -> None:
        #: Sources that are known to respond from the middle of the file.
        self.range_capable: set[int] = set()
        self._context = context
        self._stream = stream
        self._slow_detector = slow_detector
        self._start_connection = start_connection
        self._scaler = ConnectionScaler(context.settings)
        self._range_probe: BackgroundCall[bool] | None = None
        self._seconds_lost = 0.0
        self._next_check = self._next_report = context.clock.now()
        #: When the rate was last measured, bytes received until then, and the rate.
        self._measured = (context.clock.now(), 0, 0.0)

    def connection_started(self, index: int) -> None:
        """Measure anew: a connection to this source has started."""
        self._slow_detector.connected(index)
        self._scaler.connections_changed(self._stream.connections)

    def connection_failed(self) -> float:
        """Fall back to one connection. Return the seconds lost if the failed one was closed as too slow."""
        if self._stream.is_segmented:
            self._stream.reduce_connections()
            self._scaler.trial_failed(self._context.clock.now())
        seconds_lost, self._seconds_lost = self._seconds_lost, 0.0
        return seconds_lost

    def check(self) -> None:
        """Report progress and check the rate, if they are due. Call it often. Raises FetchFailed."""
        now = self._context.clock.now()
        if now >= self._next_report:
            self._next_report = now + _REPORT_INTERVAL
            self._report(now)
        if now >= self._next_check:
            self._next_check = now + self._context.settings.check_interval
            self._context.raise_if_hopeless()
            self._check_rate(now)

    def _check_rate(self, now: float) -> None:
        """Start connections in free slots; leave a slow source, or change the number of connections."""
        stream, context = self._stream, self._context
        due = stream.due_receiver()
        if due is None:
            return
        for slot in stream.free_slots():
            self._start_connection(slot, due.index)
        alternatives = context.selector.alternatives(due.index)
        slow = self._slow_detector.check(now, stream.received, stream.seconds_waited, alternatives)
        if slow is not None:
            self._seconds_lost = slow.seconds_lost
            context.selector.preferred = slow.better_source
            detail = "it sends %.0f kB/s; %.0f kB/s were possible before" % (
                slow.rate / 1e3,
                slow.reference / 1e3,
            )
            due.interrupt(SourceError(ErrorKind.CRAWL, detail, due.name))
            return
        if not context.file.is_distinguishable:
            return  # the parts that several connections fetch may be of different files
        size = context.file.size
        left = None if size is None else size - stream.position
        target = self._scaler.recommend(now, stream.received, stream.seconds_waited, left)
        if target > max(1, stream.connections):
            self._add_connections(now, due.index, target)
        elif target < stream.connections:
            stream.reduce_connections(target)
            self._scaler.connections_changed(target)

    def _add_connections(self, now: float, index: int, target: int) -> None:
        """Add connections, once a probe has shown that the source responds from the middle of the file."""
        if index not in self.range_capable:
            if self._range_probe is None:
                source, position = self._context.sources[index], self._stream.position
                self._range_probe = BackgroundCall(lambda: _can_start_at(source, position))
                return
            if not self._range_probe.wait(0):
                return
            probe, self._range_probe = self._range_probe, None
            if not probe.result():
                self._scaler.trial_failed(now)
                return
            self.range_capable.add(index)
        self._stream.add_connections(target)

    def _report(self, now: float) -> None:
        stream = self._stream
        measured_at, received, rate = self._measured
        if now - measured_at >= _RATE_WINDOW:
            rate = (stream.received - received) / (now - measured_at)
            self._measured = (now, stream.received, rate)
        due = stream.due_receiver()
        self._context.report_progress(rate, due.name if due is not None else "", stream.connections)


def _can_start_at(source: Source, position: int) -> bool:
    """Return True if the source responds from the middle of the file. An error of it counts as no."""
    try:
        body = source.open(position, position + 1)
    except SourceError:
        return False
    body.close()
    return body.start == position


# Slow sources

#: Seconds for which a measured rate is meaningful.
_RATE_MEMORY = 600.0
#: Seconds before the same source gets a new connection again for being slow.
_RECONNECT_INTERVAL = 300.0
#: A source that was this many times faster is better.
_BETTER_FACTOR = 2.0


@dataclass(frozen=True)
class SlowSource:
    """A source that should be left, with its rate and the best recent rate, in bytes per second."""

    rate: float
    reference: float
    #: Seconds by which the window would have been shorter at the reference rate.
    seconds_lost: float
    #: The source to use instead; None: the same one, over a new connection.
    better_source: int | None


class SlowSourceDetector:
    """Detects when the current source delivers too little.

    Too little is relative: less than a share of the best recent rate of these sources. And there must be
    something better to try: a source that was not faster when it was last tried is not.
    """

    def __init__(self, settings: FetchSettings) -> None:
        self._share = settings.crawl_share
        self._window = settings.crawl_window
        #: Time, bytes received, and seconds waited for the disk; from the start of the window on.
        self._samples: deque[tuple[float, int, float]] = deque()
        self._source: int | None = None
        #: When each source was last measured, and its rate.
        self._rates: dict[int, tuple[float, float]] = {}
        #: Times and rates, descending: the best recent rate comes first.
        self._best: deque[tuple[float, float]] = deque()
        self._reconnected_at: dict[int, float] = {}

    def connected(self, source: int) -> None:
        """Measure anew, for a connection to this source."""
        self._source = source
        self._samples.clear()

    def check(
        self, now: float, received: int, seconds_waited: float, alternatives: Sequence[int]
    ) -> SlowSource | None:
        """Return the current source if it should be left, else None. The caller then closes its connection.

        `received`: bytes so far; `seconds_waited`: seconds so far in which the receiver waited for the disk.
        """
        samples, source = self._samples, self._source
        samples.append((now, received, seconds_waited))
        while len(samples) > 1 and now - samples[1][0] >= self._window:
            samples.popleft()
        window_start, received_then, waited_then = samples[0]
        elapsed = now - window_start
        if source is None or elapsed < self._window:
            return None
        rate = (received - received_then) / elapsed
        if seconds_waited - waited_then > elapsed / 2:
            return None
        self._rates[source] = (now, min(rate, self._latest_rate(now, received)))
        reference = self._best_rate(now, rate)
        if rate >= self._share * reference:
            return None
        better_source = self._find_better(now, rate, alternatives)
        if better_source is None:
            if now - self._reconnected_at.get(source, -math.inf) <= _RECONNECT_INTERVAL:
                return None
            self._reconnected_at[source] = now
        return SlowSource(rate, reference, elapsed * (1 - rate / reference), better_source)

    def _latest_rate(self, now: float, received: int) -> float:
        """Return the rate over the last quarter of the window, whose beginning may have been faster."""
        then, received_then, _ = next(
            (sample for sample in reversed(self._samples) if now - sample[0] >= self._window / 4),
            self._samples[0],
        )
        return (received - received_then) / (now - then)

    def _best_rate(self, now: float, rate: float) -> float:
        """Add a rate and return the best recent one. The queue keeps only rates that no later one exceeds."""
        best = self._best
        while best and best[-1][1] <= rate:
            best.pop()
        best.append((now, rate))
        while now - best[0][0] > _RATE_MEMORY:
            best.popleft()
        return best[0][1]

    def _find_better(self, now: float, rate: float, alternatives: Sequence[int]) -> int | None:
        """Return the first source that was faster or has not been measured recently; None if none was."""
        for source in alternatives:
            measured_at, measured = self._rates.get(source, (-math.inf, 0.0))
            if now - measured_at > _RATE_MEMORY or measured > _BETTER_FACTOR * rate:
                return source
        return None


# Number of connections

#: Consecutive rates that must agree before a conclusion is drawn.
_STEADY_CHECKS = 3
#: Largest ratio between the fastest and the slowest of them.
_MAX_SPREAD = 1.5
#: The factor by which more connections must increase the rate.
_MIN_GAIN = 1.3
#: A trial needs at least this many check intervals of remaining transfer.
_MIN_CHECKS_LEFT = 10
#: Check intervals until the next trial, doubled after each trial that did not pay.
_CHECKS_BETWEEN_TRIALS = 60


class ConnectionScaler:
    """Recommends a number of connections: several only if the server limits each of them, while it pays.

    A trial with the most connections allowed is kept if it increases the rate, else it is undone.
    """

    def __init__(self, settings: FetchSettings) -> None:
        self._max_connections = settings.connections
        self._min_seconds_left = _MIN_CHECKS_LEFT * settings.check_interval
        self._shortest_rest = _CHECKS_BETWEEN_TRIALS * settings.check_interval
        self._rates: deque[float] = deque(maxlen=_STEADY_CHECKS)
        #: Time, bytes received and seconds waited at the last call.
        self._last: tuple[float, int, float] | None = None
        self._connections = 1
        #: The rate of one connection when the last trial began.
        self._single_rate = 0.0
        #: Rate and connections when a trial was recommended, and before the trial that is under way.
        self._proposed: tuple[float, int] | None = None
        self._before_trial: tuple[float, int] | None = None
        self._no_trial_before = -math.inf
        self._rest = self._shortest_rest
        self._is_settling = False

    def connections_changed(self, connections: int) -> None:
        """Measure anew: this many connections are open now."""
        self._connections = connections
        self._rates.clear()
        self._last = None
        self._is_settling = True
        if connections == 1:
            self._before_trial = None
        elif self._proposed is not None and connections > self._proposed[1]:
            self._before_trial = self._proposed

    def trial_failed(self, now: float) -> None:
        """Postpone the next trial, after a failed connection or for a source without ranges."""
        self._postpone_trials(now)
        self._before_trial = self._proposed = None

    def recommend(self, now: float, received: int, seconds_waited: float, left: int | None) -> int:
        """Return the number of connections to use. Call it at every check.

        `received`: bytes so far; `seconds_waited`: seconds so far in which connections waited for the disk;
        `left`: bytes that are missing, None if unknown.
        """
        last, self._last = self._last, (now, received, seconds_waited)
        if last is None or now <= last[0]:
            return self._connections
        if self._is_settling:  # the rate of a new connection is not meaningful yet
            self._is_settling = False
            return self._connections
        elapsed = now - last[0]
        self._rates.append((received - last[1]) / elapsed)
        if len(self._rates) < _STEADY_CHECKS:
            return self._connections
        rate = sum(self._rates) / len(self._rates)
        if self._before_trial is not None:
            return self._judge_trial(now, rate)
        if self._connections > 1 and rate < self._single_rate:
            self._postpone_trials(now)
            return 1
        is_disk_slow = seconds_waited - last[2] > elapsed / 4
        is_steady = max(self._rates) <= _MAX_SPREAD * min(self._rates)
        is_worth_it = left is not None and rate > 0 and left / rate >= self._min_seconds_left
        can_try = self._connections == 1 < self._max_connections and now >= self._no_trial_before
        if can_try and is_steady and is_worth_it and not is_disk_slow:
            self._proposed = (rate, self._connections)
            self._single_rate = rate
            return self._max_connections
        return self._connections

    def _judge_trial(self, now: float, rate: float) -> int:
        assert self._before_trial is not None, "a trial is under way"
        rate_before, connections_before = self._before_trial
        self._before_trial = self._proposed = None
        if rate >= _MIN_GAIN * rate_before:
            self._rest = self._shortest_rest
            return self._connections
        self._postpone_trials(now)
        return connections_before

    def _postpone_trials(self, now: float) -> None:
        self._no_trial_before = now + self._rest
        self._rest *= 2

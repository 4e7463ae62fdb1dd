"""How fast it goes, and what follows from that: a word to the user, turning elsewhere, more connections."""

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

#: Seconds between two words to whoever looks at the progress, and over which the rate in them is counted.
_TELL, _RATE = 0.2, 1.0


class ThroughputMonitor:
    """`begin` lets a source fill a slot of the stream."""

    def __init__(
        self,
        affairs: FetchContext,
        stream: OrderedStream,
        crawl: SlowSourceDetector,
        begin: Callable[[Slot, int], None],
    ) -> None:
        #: Sources that are known to begin where they are asked to.
        self.ranged: set[int] = set()
        self._affairs = affairs
        self._stream = stream
        self._crawl = crawl
        self._begin = begin
        self._widening = ConnectionScaler(affairs.settings)
        self._probe: BackgroundCall[bool] | None = None
        self._lost = 0.0
        self._next_look = self._next_word = affairs.clock.now()
        self._told = (affairs.clock.now(), 0, 0.0)

    def begun(self, index: int) -> None:
        """A connection to this source."""
        self._crawl.connected(index)
        self._widening.changed(self._stream.connections)

    def failed(self) -> float:
        """A connection: there are to be fewer. Seconds that were lost, if it was ended for its crawl."""
        if self._stream.is_wide:
            self._stream.narrow()
            self._widening.refused(self._affairs.clock.now())
        lost, self._lost = self._lost, 0.0
        return lost

    def look(self) -> None:
        """To be called often. Raises GivenUp."""
        now = self._affairs.clock.now()
        if now >= self._next_word:
            self._next_word = now + _TELL
            self._tell(now)
        if now >= self._next_look:
            self._next_look = now + self._affairs.settings.look
            self._affairs.check_hope()
            self._look_at_rates(now)

    def _look_at_rates(self, now: float) -> None:
        stream, affairs = self._stream, self._affairs
        due = stream.receiver_due()
        if due is None:
            return
        for slot in stream.vacant():
            self._begin(slot, due.index)
        others = affairs.choice.others(due.index)
        slow = self._crawl.look(now, stream.received, stream.waited, others)
        if slow is not None:
            self._lost = slow.lost
            affairs.choice.hint = slow.better
            detail = "it gives %.0f kB/s; %.0f kB/s were to be had" % (slow.rate / 1e3, slow.reference / 1e3)
            due.interrupt(SourceError(ErrorKind.CRAWL, detail, due.name))
            return
        size = affairs.known.size
        left = None if size is None else size - stream.position
        wanted = self._widening.look(now, stream.received, stream.waited, left)
        if wanted > max(1, stream.connections):
            self._widen(now, due.index, wanted)
        elif wanted < stream.connections:
            stream.narrow(wanted)
            self._widening.changed(wanted)

    def _widen(self, now: float, index: int, wanted: int) -> None:
        """Only at a source that can begin anywhere, which is asked once before it is relied upon."""
        if index not in self.ranged:
            if self._probe is None:
                source, position = self._affairs.sources[index], self._stream.position
                self._probe = BackgroundCall(lambda: _begins_at(source, position))
                return
            if not self._probe.wait(0):
                return
            probe, self._probe = self._probe, None
            if not probe.result():
                self._widening.refused(now)
                return
            self.ranged.add(index)
        self._stream.widen(wanted)

    def _tell(self, now: float) -> None:
        stream = self._stream
        then, received, rate = self._told
        if now - then >= _RATE:
            rate = (stream.received - received) / (now - then)
            self._told = (now, stream.received, rate)
        due = stream.receiver_due()
        self._affairs.report(rate, due.name if due is not None else "", stream.connections)


def _begins_at(source: Source, position: int) -> bool:
    """Whether it answers from the middle of the file. Trouble with that is none of the fetch's."""
    try:
        body = source.open(position, position + 1)
    except SourceError:
        return False
    body.close()
    return body.start == position


# When a source gives bytes, and so few that another one, or another connection, is better.
#
# Few is relative: a share of what these sources just gave. And there must be something better to turn to: a
# source that was no faster when it was last tried is not.
#: Seconds for which a measured rate tells something.
_MEMORY = 600.0
#: Seconds before the same source is tried again over a new connection for being slow.
_RECONNECT = 300.0
#: A source is worth turning to if it was so much faster.
_BETTER = 2.0


@dataclass(frozen=True)
class SlowSource:
    rate: float
    reference: float
    #: Seconds that the window would have been shorter by.
    lost: float
    #: The source to turn to; None: the same one, over a new connection.
    better: int | None


class SlowSourceDetector:
    def __init__(self, settings: FetchSettings) -> None:
        self._share = settings.crawl_share
        self._window = settings.crawl_window
        self._samples: deque[tuple[float, int, float]] = deque()
        self._source: int | None = None
        self._measured: dict[int, tuple[float, float]] = {}
        self._best: deque[tuple[float, float]] = deque()
        self._reconnected: dict[int, float] = {}

    def connected(self, source: int) -> None:
        self._source = source
        self._samples.clear()

    def look(self, now: float, received: int, waited: float, others: Sequence[int]) -> SlowSource | None:
        """`received`: bytes so far; `waited`: seconds so far for which the disk held the receiver up.

        What is returned is acted upon: the connection is closed.
        """
        samples, source = self._samples, self._source
        samples.append((now, received, waited))
        while len(samples) > 1 and now - samples[1][0] >= self._window:
            samples.popleft()
        began, bytes_then, waited_then = samples[0]
        span = now - began
        if source is None or span < self._window:
            return None
        rate = (received - bytes_then) / span
        if waited - waited_then > span / 2:
            return None
        self._measured[source] = (now, min(rate, self._lately(now, received)))
        reference = self._reference(now, rate)
        if rate >= self._share * reference:
            return None
        better = self._better(now, rate, others)
        if better is None:
            if now - self._reconnected.get(source, -math.inf) <= _RECONNECT:
                return None
            self._reconnected[source] = now
        return SlowSource(rate, reference, span * (1 - rate / reference), better)

    def _lately(self, now: float, received: int) -> float:
        """Over the last part of the window: what it has come down to, while the window still holds better."""
        then, bytes_then, _ = next(
            (sample for sample in reversed(self._samples) if now - sample[0] >= self._window / 4),
            self._samples[0],
        )
        return (received - bytes_then) / (now - then)

    def _reference(self, now: float, rate: float) -> float:
        """The best rate over a window, lately. The queue holds what no later one has exceeded."""
        best = self._best
        while best and best[-1][1] <= rate:
            best.pop()
        best.append((now, rate))
        while now - best[0][0] > _MEMORY:
            best.popleft()
        return best[0][1]

    def _better(self, now: float, rate: float, others: Sequence[int]) -> int | None:
        for other in others:
            at, measured = self._measured.get(other, (-math.inf, 0.0))
            if now - at > _MEMORY or measured > _BETTER * rate:
                return other
        return None


# How many connections: more than one only where the server holds each of them down, while it pays.
#: Looks that must agree before anything is concluded from them.
_STEADY = 3
#: The slowest and the fastest of them differ by no more.
_SPREAD = 1.5
#: What more connections must bring.
_PAYS = 1.3
#: As long as so many looks must be left of the transfer for a trial.
_WORTH = 10
#: So many looks until the next trial, doubled after each that did not pay.
_REST = 60


class ConnectionScaler:
    def __init__(self, settings: FetchSettings) -> None:
        self._most = settings.connections
        self._worth = _WORTH * settings.look
        self._first_rest = _REST * settings.look
        self._rates: deque[float] = deque(maxlen=_STEADY)
        self._last: tuple[float, int, float] | None = None
        self._now = 1
        #: What one connection gave when it was left for more.
        self._single = 0.0
        #: Rate and number of connections when more were proposed, and before the trial that is on.
        self._proposed: tuple[float, int] | None = None
        self._before: tuple[float, int] | None = None
        self._not_before = -math.inf
        self._rest = self._first_rest
        self._settling = False

    def changed(self, connections: int) -> None:
        """So many are open now."""
        self._now = connections
        self._rates.clear()
        self._last = None
        self._settling = True
        if connections == 1:
            self._before = None
        elif self._proposed is not None and connections > self._proposed[1]:
            self._before = self._proposed

    def refused(self, now: float) -> None:
        """A trial that went wrong: the server does not like it."""
        self._back_off(now)
        self._before = self._proposed = None

    def look(self, now: float, received: int, waited: float, left: int | None) -> int:
        """How many it should be. To be asked at every look; `left`: bytes, None if not known."""
        last, self._last = self._last, (now, received, waited)
        if last is None or now <= last[0]:
            return self._now
        if self._settling:  # the first moments of a connection say little
            self._settling = False
            return self._now
        span = now - last[0]
        self._rates.append((received - last[1]) / span)
        if len(self._rates) < _STEADY:
            return self._now
        rate = sum(self._rates) / len(self._rates)
        if self._before is not None:
            return self._judge(now, rate)
        if self._now > 1 and rate < self._single:
            self._back_off(now)
            return 1
        held_up = waited - last[2] > span / 4
        steady = max(self._rates) <= _SPREAD * min(self._rates)
        worth = left is not None and rate > 0 and left / rate >= self._worth
        if self._now == 1 < self._most and now >= self._not_before and steady and worth and not held_up:
            self._proposed = (rate, self._now)
            self._single = rate
            return self._most
        return self._now

    def _judge(self, now: float, rate: float) -> int:
        assert self._before is not None, "a trial is on"
        before, connections = self._before
        self._before = self._proposed = None
        if rate >= _PAYS * before:
            self._rest = self._first_rest
            return self._now
        self._back_off(now)
        return connections

    def _back_off(self, now: float) -> None:
        self._not_before = now + self._rest
        self._rest *= 2

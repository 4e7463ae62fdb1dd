"""How fast it goes, and what follows from that: a word to the user, turning elsewhere, more connections."""

from __future__ import annotations

from typing import Callable

from outlast.node.data.affairs import Affairs
from outlast.node.data.beside import Beside
from outlast.node.data.crawl import Crawl
from outlast.node.data.source import Source
from outlast.node.data.stream import Slot, Stream
from outlast.node.data.troubles import Kind, Trouble
from outlast.node.data.widening import Widening

#: Seconds between two words to whoever looks at the progress, and over which the rate in them is counted.
_TELL, _RATE = 0.2, 1.0


class Speed:
    """`begin` lets a source fill a slot of the stream."""

    def __init__(
        self, affairs: Affairs, stream: Stream, crawl: Crawl, begin: Callable[[Slot, int], None]
    ) -> None:
        #: Sources that are known to begin where they are asked to.
        self.ranged: set[int] = set()
        self._affairs = affairs
        self._stream = stream
        self._crawl = crawl
        self._begin = begin
        self._widening = Widening(affairs.settings)
        self._probe: Beside[bool] | None = None
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
            due.interrupt(Trouble(Kind.CRAWL, detail, due.name))
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
                self._probe = Beside(lambda: _begins_at(source, position))
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
    except Trouble:
        return False
    body.close()
    return body.start == position

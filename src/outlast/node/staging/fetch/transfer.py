"""Bytes from the sources to the sink, from one position to the end of the file, through all troubles."""

from __future__ import annotations

import threading

from outlast.node.archives.sink import BadArchive, Sink
from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.node.staging.fetch import disk_space
from outlast.node.staging.fetch.context import GLANCE, FetchContext, RestartFetch
from outlast.node.staging.fetch.digests import Digests
from outlast.node.staging.fetch.ordered_stream import OrderedStream, Slot
from outlast.node.staging.fetch.receiver import (
    ByteRange,
    Chunk,
    EndOfFile,
    ReceiverBroken,
    ReceiverEvent,
    ReceiverFailed,
    SizeKnown,
    Skipped,
)
from outlast.node.staging.fetch.throughput import SlowSourceDetector, ThroughputMonitor
from outlast.node.staging.sources.base import Body

#: Troubles of the very end that say that the bytes before it may be wrong.
_SUSPICIOUS = frozenset({ErrorKind.SERVER_ERROR, ErrorKind.WRONG_LENGTH})


class Transfer:
    """`hashed` has what the sink has, up to `position`, and hashes on."""

    def __init__(
        self, affairs: FetchContext, sink: Sink, crawl: SlowSourceDetector, hashed: Digests, position: int
    ) -> None:
        self.affairs = affairs
        self.hashed = hashed
        self.most_connections = 1
        self._sink = sink
        self._stream = OrderedStream(
            position,
            affairs.settings,
            self._admit,
            self._write,
            lambda: affairs.known.size,
            affairs.clock.now,
        )
        self._speed = ThroughputMonitor(affairs, self._stream, crawl, self._begin)
        #: Slots that need a source.
        self._needy: list[Slot] = [self._stream.slots[0]]
        #: Set when there is room for a file whose size is known, or when nobody needs to know any more.
        self._room = threading.Event()
        self._over = False
        self._ended = False
        #: Sources whose file has changed, and which are endured.
        self._endured: set[int] = set()

    @property
    def contributors(self) -> set[int]:
        """Whose bytes the sink has, beside those that were there before."""
        return self._stream.contributors

    @property
    def position(self) -> int:
        return self._stream.position

    def run(self) -> None:
        """Raises GivenUp, StartAgain, OSError, and what the pulse raises."""
        try:
            self._make_room()
            while not self._is_complete():
                self.affairs.pulse()
                waiting = self._begin_connections()
                if waiting is not None:
                    self.affairs.pause(waiting)
                    continue
                arrival = self._stream.next(min(GLANCE, self.affairs.settings.look))
                if arrival is not None:
                    self._take(arrival)
                self._book_bytes()
                self._speed.look()
        finally:
            self._over = True
            self._room.set()
            self._stream.close()
            self.hashed.close()
            self._book_bytes()

    def _is_complete(self) -> bool:
        size = self.affairs.known.size
        if size is None or self._stream.position < size or self._stream.connections:
            return False
        # That an empty file is there is known from an answer only.
        return size > 0 or self._ended

    # Connections

    def _begin_connections(self) -> float | None:
        """When to come back, if nobody can be asked before then and nothing is under way."""
        affairs, soonest = self.affairs, None
        for slot in list(self._needy):
            turn = affairs.choice.next(self._stream.position)
            if turn is None:
                affairs.check_hope()
                raise AssertionError("somebody is left")
            if turn.not_before <= affairs.clock.now():
                self._needy.remove(slot)
                self._begin(slot, turn.index)
            else:
                soonest = turn.not_before
        return soonest if not self._stream.connections else None

    def _begin(self, slot: Slot, index: int) -> None:
        self._stream.begin(slot, index, self.affairs.sources[index])
        self.most_connections = max(self.most_connections, self._stream.connections)
        self._speed.begun(index)

    def _admit(self, index: int, span: ByteRange, body: Body) -> None:
        """Called by receivers: whether what a source is about to send is what was asked for."""
        affairs = self.affairs
        name = affairs.sources[index].name
        affairs.known.hear(index, name, body.version)
        if affairs.known.size is not None and not self._room.is_set():
            self._stream.post(SizeKnown())
            self._room.wait()  # `run` sees to it, however it ends
            if self._over:
                raise SourceError(ErrorKind.RESET, "nobody wants it any more", name)
        if body.start == span.start:
            if span.start > 0:
                self._speed.ranged.add(index)
                affairs.choice.standings[index].rangeless = False
        elif body.start != 0:
            detail = "asked for byte %d, it begins at %d" % (span.start, body.start)
            raise SourceError(ErrorKind.NONSENSE, detail, name)
        elif not affairs.choice.standings[index].rangeless:
            detail = "asked for byte %d, it begins at the first" % span.start
            raise SourceError(ErrorKind.NO_RANGES, detail, name)

    # What comes

    def _take(self, arrival: ReceiverEvent) -> None:
        self._book_bytes()
        if isinstance(arrival, ReceiverFailed):
            self._meet(arrival)
        elif isinstance(arrival, EndOfFile):
            self._ended = True
            self.affairs.known.ends_at(arrival.at)
        elif isinstance(arrival, Skipped):
            self.affairs.books.twice(ErrorKind.NO_RANGES, arrival.count)
        elif isinstance(arrival, SizeKnown):
            self._make_room()
        elif isinstance(arrival, ReceiverBroken):
            self._break(arrival)

    def _make_room(self) -> None:
        size = self.affairs.known.size
        if size is not None and not self._room.is_set():
            disk_space.check(self._sink, size, self.affairs.settings.margin)
            self._room.set()

    def _write(self, piece: Chunk) -> None:
        """Called by receivers, one at a time."""
        self._sink.write(piece.data)
        self.hashed.feed(piece.data, lambda: self._stream.release(piece))

    def _book_bytes(self) -> None:
        affairs = self.affairs
        for index, given in self._stream.take_news().items():
            affairs.last_byte = given.last
            affairs.done = self._stream.position
            affairs.last_trouble = None
            affairs.books.gave(index, given.bytes, given.first, given.last)

    def _break(self, broken: ReceiverBroken) -> None:
        error, piece, affairs = broken.error, broken.piece, self.affairs
        if piece is not None and isinstance(error, BadArchive):
            raise RestartFetch(SourceError(ErrorKind.BAD_ARCHIVE, str(error), piece.receiver.name)) from error
        if piece is not None and isinstance(error, OSError) and error.errno in disk_space.FULL:
            raise disk_space.full(self._sink, error, piece.offset, affairs.known.size) from error
        raise error

    # What goes wrong

    def _meet(self, failed: ReceiverFailed) -> None:
        affairs, trouble, index = self.affairs, failed.trouble, failed.receiver.index
        slot = self._stream.slot_of(failed.receiver)
        slow = self._speed.failed()
        size = affairs.known.size
        if size is not None and failed.at >= size > 0:
            self._meet_at_the_end(slot, trouble)
            return
        self._needy.append(slot)
        if trouble.kind is ErrorKind.CHANGED:
            self._meet_change(index, trouble)
        else:
            affairs.meet(index, trouble, failed.receiver.gained, slow)

    def _meet_at_the_end(self, slot: Slot, trouble: SourceError) -> None:
        """All bytes have come, and then it did not end well. A digest decides, where there is one."""
        slot.pending = None
        affairs = self.affairs
        affairs.books.trouble(trouble.kind, affairs.clock.now())
        affairs.last_trouble = trouble
        if not affairs.proof.expected and trouble.kind in _SUSPICIOUS:
            raise RestartFetch(trouble)

    def _meet_change(self, index: int, trouble: SourceError) -> None:
        affairs = self.affairs
        affairs.books.trouble(trouble.kind, affairs.clock.now())
        affairs.last_trouble = trouble
        usable, known = affairs.choice.usable(), affairs.known
        if usable != [index] and (known.pinned or (known.by != index and known.by in usable)):
            affairs.choice.put_aside(index, trouble)
        elif known.pinned and index not in self._endured:
            # Nobody else is left, and it may have been a new date only: the digest will tell.
            self._endured.add(index)
            known.tolerate(index)
        else:
            raise RestartFetch(trouble)

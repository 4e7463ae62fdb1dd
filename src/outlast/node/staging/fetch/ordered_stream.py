"""The bytes of one file in their order, from one connection or from several side by side.

With one connection the whole rest is one span. With several each claims the next segment, in ascending
order, and has buffers of its own for all of it: what comes early waits in them, so memory is bounded, and
whoever has the segment that is due always has room to go on.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from typing import Callable

from outlast.node.staging.fetch.fetch_settings import FetchSettings
from outlast.node.staging.fetch.receiver import (
    BufferPool,
    ByteRange,
    Chunk,
    Receiver,
    ReceiverBroken,
    ReceiverDone,
    ReceiverEvent,
    ReceiverFailed,
)
from outlast.node.staging.sources.base import Body, Source

#: Seconds that ended connections have to leave. One that is still being opened leaves when it is.
_FAREWELL = 1.0


class Slot:
    """A place for one connection: its buffers, and what it still has to bring if one has failed."""

    def __init__(self, buffers: BufferPool) -> None:
        self.buffers = buffers
        self.pending: ByteRange | None = None
        self.receiver: Receiver | None = None
        self.last_receiver: Receiver | None = None


@dataclass
class Given:
    """Bytes of one source, and when the first and the last of them came."""

    first: float
    last: float
    bytes: int = 0


class OrderedStream:
    """Whoever brings the bytes that are due writes them, and what waits behind them: nothing is handed from
    thread to thread on the way, and `write` is called by one thread at a time, in the order of the file.

    `position`: the first byte that is not written.
    """

    def __init__(
        self,
        position: int,
        settings: FetchSettings,
        admit: Callable[[int, ByteRange, Body], None],
        write: Callable[[Chunk], None],
        size: Callable[[], int | None],
        now: Callable[[], float],
    ) -> None:
        self.position = position
        #: Bytes that came, in order or not yet.
        self.received = 0
        #: Sources whose bytes were written, or would have been.
        self.contributors: set[int] = set()
        self._given: dict[int, Given] = {}
        self.slots: list[Slot] = [Slot(BufferPool(settings.blocks, settings.block))]
        self._settings = settings
        self._admit = admit
        self._write = write
        self._size = size
        self._now = now
        self._arrivals: queue.SimpleQueue[ReceiverEvent] = queue.SimpleQueue()
        self._early: dict[int, Chunk] = {}
        self._lock = threading.Lock()
        self._written = threading.Condition(self._lock)
        self._writing = False
        #: The first byte that nobody has claimed; None: all is claimed, to the end.
        self._cursor: int | None = position
        self._wanted = 1
        self._active = 0
        self._wide = False
        self._closed = False

    @property
    def waited(self) -> float:
        return sum(slot.buffers.waited for slot in self.slots)

    @property
    def is_wide(self) -> bool:
        return self._wide

    @property
    def connections(self) -> int:
        return sum(slot.receiver is not None for slot in self.slots)

    def receiver_due(self) -> Receiver | None:
        """Whose bytes come next."""
        busy = [slot.receiver for slot in self.slots if slot.receiver is not None]
        return min(busy, key=lambda receiver: receiver.at) if busy else None

    def begin(self, slot: Slot, index: int, source: Source) -> None:
        """Let this source bring what the slot has pending, and go on from there."""
        with self._lock:
            self._active += 1
        slot.receiver = Receiver(
            index,
            source,
            slot.buffers,
            self._arrivals,
            lambda: self._claim(slot),
            self._admit,
            self._bring,
            self._size,
            lambda at: self._cut(slot, at),
        )
        slot.last_receiver = slot.receiver
        slot.receiver.start()

    def slot_of(self, receiver: Receiver) -> Slot:
        return next(slot for slot in self.slots if slot.last_receiver is receiver)

    def next(self, timeout: float) -> ReceiverEvent | None:
        """What became of a connection. None: nothing for so long."""
        try:
            arrival = self._arrivals.get(timeout=timeout)
        except queue.Empty:
            return None
        if isinstance(arrival, (ReceiverFailed, ReceiverDone)):
            self._vacate(arrival)
        return arrival

    def take_news(self) -> dict[int, Given]:
        """What was written since this was last asked, by source."""
        with self._lock:
            given, self._given = self._given, {}
            return given

    def release(self, piece: Chunk) -> None:
        """Its bytes were used; from any thread."""
        if piece.buffer is not None:
            piece.receiver.buffers.give(piece.buffer)

    def widen(self, connections: int) -> None:
        """More connections; `vacant` has their slots once the first one has been cut, at its next block."""
        self._wanted = connections
        if not self._wide:
            for slot in self.slots:
                if slot.receiver is not None:
                    slot.receiver.cut()

    def narrow(self, connections: int = 1) -> None:
        """Fewer: who has brought their segment leaves."""
        with self._lock:
            self._wanted = connections
            self._wide = connections > 1

    def vacant(self) -> list[Slot]:
        """Slots for which a connection may begin now."""
        with self._lock:
            if not self._wide or self._cursor is None or self._at_end(self._cursor):
                return []
        while len(self.slots) < self._wanted:
            self.slots.append(Slot(BufferPool(self._settings.segment_blocks, self._settings.block)))
        room = self._wanted - self.connections
        idle = [slot for slot in self.slots if slot.receiver is None and slot.pending is None]
        return idle[: max(0, room)]

    def close(self) -> None:
        """End all connections. What came early is lost. Nothing is written any more when this returns."""
        with self._lock:
            self._closed = True
            while self._writing:
                # As long as the disk takes for one block: nobody could end that any sooner.
                self._written.wait()
        busy = [slot.receiver for slot in self.slots if slot.receiver is not None]
        for receiver in busy:
            receiver.close()
        for slot in self.slots:
            slot.buffers.close()
        for receiver in busy:
            receiver.join(_FAREWELL)

    def _vacate(self, arrival: ReceiverFailed | ReceiverDone) -> None:
        slot = self.slot_of(arrival.receiver)
        slot.receiver = None
        if isinstance(arrival, ReceiverFailed):
            with self._lock:
                self._active -= 1
            slot.pending = ByteRange(arrival.at, arrival.receiver.span.stop)

    # Called by receivers

    def post(self, arrival: ReceiverEvent) -> None:
        self._arrivals.put(arrival)

    def _claim(self, slot: Slot) -> ByteRange | None:
        with self._lock:
            pending, slot.pending = slot.pending, None
            if pending is not None:
                return pending
            all_claimed = self._cursor is None or self._at_end(self._cursor)
            if self._closed or all_claimed or self._active > self._wanted:
                self._active -= 1
                return None
            assert self._cursor is not None, "something is left to claim"
            start, self._cursor = self._cursor, None
            if not self._wide:
                return ByteRange(start)
            size = self._size()
            assert size is not None, "segments are for files whose size is known"
            self._cursor = min(size, start + self._settings.segment_blocks * self._settings.block)
            return ByteRange(start, self._cursor)

    def _bring(self, piece: Chunk) -> bool:
        with self._lock:
            if self._closed:
                return False
            self.received += len(piece.data)
            assert piece.offset >= self.position, "nobody claims what is written already"
            if piece.offset != self.position:
                self._early[piece.offset] = self._compact(piece)
                return True
            self._writing = True
        due: Chunk | None = piece
        while due is not None:
            self.contributors.add(due.receiver.index)
            try:
                self._write(due)
            except BaseException as error:  # raised again where the fetch was called
                self._arrivals.put(ReceiverBroken(error, due))
                with self._lock:
                    self._closed = True
                    self._stop_writing()
                return False
            due = self._advance(due)
        return True

    def _advance(self, written: Chunk) -> Chunk | None:
        """The piece behind it, if it is there."""
        with self._lock:
            index, count = written.receiver.index, written.length
            self.position += count
            came = self._now() - written.age
            given = self._given.setdefault(index, Given(came, came))
            given.bytes += count
            given.last = came
            due = None if self._closed else self._early.pop(self.position, None)
            if due is None:
                self._stop_writing()
            return due

    def _stop_writing(self) -> None:
        self._writing = False
        self._written.notify_all()

    def _compact(self, piece: Chunk) -> Chunk:
        """What waits and fills little of its buffer does not keep it."""
        if piece.buffer is None or 2 * len(piece.data) > len(piece.buffer):
            return piece
        copy = Chunk(piece.offset, memoryview(bytes(piece.data)), None, piece.receiver)
        self.release(piece)
        return copy

    def _cut(self, slot: Slot, at: int) -> None:
        with self._lock:
            slot.buffers.grow(self._settings.segment_blocks)
            self._cursor = at
            self._wide = True

    def _at_end(self, cursor: int) -> bool:
        size = self._size()
        # An empty file must be asked for, too: that it is there is known from the answer only.
        return size is not None and cursor >= size > 0

"""The bytes of one file in order, from one connection or from several in parallel.

A single connection fetches the whole rest as one range. Of several, each claims the next segment, in
ascending order, and has buffers for a whole segment: chunks that arrive early wait there. So memory is
bounded, and the connection with the segment that is due next always has a free buffer.
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

#: Seconds that `close` waits for each receiver. One that is still connecting ends after that, by itself.
_JOIN_TIMEOUT = 1.0


class Slot:
    """A place for one connection: its buffers, and the range that a failed connection has left."""

    def __init__(self, buffers: BufferPool) -> None:
        self.buffers = buffers
        self.pending: ByteRange | None = None
        self.receiver: Receiver | None = None
        self.last_receiver: Receiver | None = None


@dataclass
class WrittenBytes:
    """Bytes of one source that were written, and when the first and the last chunk of them arrived."""

    first_at: float
    last_at: float
    count: int = 0


class OrderedStream:
    """Writes the chunks of all receivers in file order.

    The receiver that brings the chunk that is due writes it, and then the early chunks that follow it. So no
    data is handed from thread to thread, and `write` is called by one thread at a time, in file order.

    `check_body` and `write` are called by receivers; `size` returns the file's size, or None if unknown.
    """

    def __init__(
        self,
        position: int,
        settings: FetchSettings,
        check_body: Callable[[int, ByteRange, Body], None],
        write: Callable[[Chunk], None],
        size: Callable[[], int | None],
        now: Callable[[], float],
    ) -> None:
        #: The first byte that is not written.
        self.position = position
        #: Bytes received, written or not.
        self.received = 0
        #: Sources whose bytes were written, or failed to be.
        self.contributors: set[int] = set()
        self._written: dict[int, WrittenBytes] = {}
        self.slots: list[Slot] = [Slot(BufferPool(settings.block_count, settings.block_size))]
        self._settings = settings
        self._check_body = check_body
        self._write = write
        self._size = size
        self._now = now
        self._events: queue.SimpleQueue[ReceiverEvent] = queue.SimpleQueue()
        #: Chunks that wait for those before them, by offset.
        self._early: dict[int, Chunk] = {}
        self._lock = threading.Lock()
        self._writing_ended = threading.Condition(self._lock)
        self._is_writing = False
        #: The first byte that is not claimed; None: everything to the end is claimed.
        self._unclaimed: int | None = position
        self._target_connections = 1
        #: Receivers that still claim ranges.
        self._active = 0
        self._is_segmented = False
        self._closed = False

    @property
    def seconds_waited(self) -> float:
        """Seconds that connections waited for a free buffer, in total."""
        return sum(slot.buffers.seconds_waited for slot in self.slots)

    @property
    def is_segmented(self) -> bool:
        """True while the file is fetched in segments, over several connections."""
        return self._is_segmented

    @property
    def connections(self) -> int:
        return sum(slot.receiver is not None for slot in self.slots)

    def due_receiver(self) -> Receiver | None:
        """Return the receiver whose bytes come next in the file; None if there is no connection."""
        busy = [slot.receiver for slot in self.slots if slot.receiver is not None]
        return min(busy, key=lambda receiver: receiver.position) if busy else None

    def start_receiver(self, slot: Slot, index: int, source: Source) -> None:
        """Let this source fetch the slot's pending range, then further ranges."""
        with self._lock:
            self._active += 1
        slot.receiver = Receiver(
            index,
            source,
            slot.buffers,
            self._events,
            lambda: self._claim(slot),
            self._check_body,
            self._accept,
            self._size,
            lambda position: self._start_segments(slot, position),
        )
        slot.last_receiver = slot.receiver
        slot.receiver.start()

    def slot_for(self, receiver: Receiver) -> Slot:
        return next(slot for slot in self.slots if slot.last_receiver is receiver)

    def next_event(self, timeout: float) -> ReceiverEvent | None:
        """Return the next event of a receiver; None after `timeout` seconds without one."""
        try:
            event = self._events.get(timeout=timeout)
        except queue.Empty:
            return None
        if isinstance(event, (ReceiverFailed, ReceiverDone)):
            self._free_slot(event)
        return event

    def pop_written(self) -> dict[int, WrittenBytes]:
        """Return what was written since the last call, by source."""
        with self._lock:
            written, self._written = self._written, {}
            return written

    def release(self, chunk: Chunk) -> None:
        """Make the chunk's buffer available again. May be called from any thread."""
        if chunk.buffer is not None:
            chunk.receiver.buffers.release(chunk.buffer)

    def add_connections(self, target: int) -> None:
        """Allow `target` connections; `free_slots` has their slots once the first receiver has split."""
        self._target_connections = target
        if not self._is_segmented:
            for slot in self.slots:
                if slot.receiver is not None:
                    slot.receiver.request_split()

    def reduce_connections(self, target: int = 1) -> None:
        """Allow only `target` connections: receivers above that end after their current segment."""
        with self._lock:
            self._target_connections = target
            self._is_segmented = target > 1

    def free_slots(self) -> list[Slot]:
        """Return the slots in which a further connection may start now."""
        with self._lock:
            if not self._is_segmented or self._unclaimed is None or self._is_at_end(self._unclaimed):
                return []
        while len(self.slots) < self._target_connections:
            self.slots.append(Slot(BufferPool(self._settings.segment_blocks, self._settings.block_size)))
        missing = self._target_connections - self.connections
        idle = [slot for slot in self.slots if slot.receiver is None and slot.pending is None]
        return idle[: max(0, missing)]

    def close(self) -> None:
        """End all connections and drop early chunks. Nothing is written after this returns."""
        with self._lock:
            self._closed = True
            while self._is_writing:
                # As long as the disk takes for one block, which cannot be interrupted.
                self._writing_ended.wait()
        busy = [slot.receiver for slot in self.slots if slot.receiver is not None]
        for receiver in busy:
            receiver.close()
        for slot in self.slots:
            slot.buffers.close()
        for receiver in busy:
            receiver.join(_JOIN_TIMEOUT)

    def _free_slot(self, event: ReceiverFailed | ReceiverDone) -> None:
        slot = self.slot_for(event.receiver)
        slot.receiver = None
        if isinstance(event, ReceiverFailed):
            with self._lock:
                self._active -= 1
            slot.pending = ByteRange(event.position, event.receiver.byte_range.stop)

    # Called by receivers

    def post_event(self, event: ReceiverEvent) -> None:
        self._events.put(event)

    def _claim(self, slot: Slot) -> ByteRange | None:
        """Return the next range for the slot's receiver; None if it should end."""
        with self._lock:
            pending, slot.pending = slot.pending, None
            if pending is not None:
                return pending
            all_claimed = self._unclaimed is None or self._is_at_end(self._unclaimed)
            if self._closed or all_claimed or self._active > self._target_connections:
                self._active -= 1
                return None
            assert self._unclaimed is not None, "something is left to claim"
            start, self._unclaimed = self._unclaimed, None
            if not self._is_segmented:
                return ByteRange(start)
            size = self._size()
            assert size is not None, "only files of known size are fetched in segments"
            segment = self._settings.segment_blocks * self._settings.block_size
            self._unclaimed = min(size, start + segment)
            return ByteRange(start, self._unclaimed)

    def _accept(self, chunk: Chunk) -> bool:
        """Write the chunk, or keep it until it is due. Return False if the receiver should end."""
        with self._lock:
            if self._closed:
                return False
            self.received += len(chunk.data)
            assert chunk.offset >= self.position, "written bytes are not claimed again"
            if chunk.offset != self.position:
                self._early[chunk.offset] = self._compact(chunk)
                return True
            self._is_writing = True
        due: Chunk | None = chunk
        while due is not None:
            self.contributors.add(due.receiver.index)
            try:
                self._write(due)
            except BaseException as error:  # the thread that called the fetch raises it
                self._events.put(ReceiverBroken(error, due))
                with self._lock:
                    self._closed = True
                    self._stop_writing()
                return False
            due = self._advance(due)
        return True

    def _advance(self, chunk: Chunk) -> Chunk | None:
        """Record a written chunk and return the early chunk that follows it, if there is one."""
        with self._lock:
            index, count = chunk.receiver.index, chunk.length
            self.position += count
            arrived = self._now() - chunk.age
            written = self._written.setdefault(index, WrittenBytes(arrived, arrived))
            written.count += count
            written.last_at = arrived
            due = None if self._closed else self._early.pop(self.position, None)
            if due is None:
                self._stop_writing()
            return due

    def _stop_writing(self) -> None:
        self._is_writing = False
        self._writing_ended.notify_all()

    def _compact(self, chunk: Chunk) -> Chunk:
        """Copy a chunk that fills at most half of its buffer, and release the buffer."""
        if chunk.buffer is None or 2 * len(chunk.data) > len(chunk.buffer):
            return chunk
        copy = Chunk(chunk.offset, memoryview(bytes(chunk.data)), None, chunk.receiver)
        self.release(chunk)
        return copy

    def _start_segments(self, slot: Slot, position: int) -> None:
        """Fetch the file in segments from `position` on, where the only receiver has ended its range."""
        with self._lock:
            slot.buffers.grow(self._settings.segment_blocks)
            self._unclaimed = position
            self._is_segmented = True

    def _is_at_end(self, offset: int) -> bool:
        size = self._size()
        # An empty file must be requested, too: only a response proves that it exists.
        return size is not None and offset >= size > 0

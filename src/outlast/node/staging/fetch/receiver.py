"""One connection: a thread that requests one byte range after the other from a source and fills buffers."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Callable, Union

from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.node.staging.sources.base import Body, Source

#: Seconds after which a partly filled buffer is delivered, so that slow data is not held back.
_MAX_FILL_SECONDS = 0.5
#: A buffer filled to 1 / _ENOUGH is delivered.
_ENOUGH = 4


class Receiver:
    """A thread that reads from one source until there is no range left, an error occurs or it is closed.

    `claim` returns the next range, or None to end; `check_body` raises SourceError if a source is about to
    send another file or range; `deliver` accepts a chunk and returns False to end; `size` returns the file's
    size or None, and no byte beyond it is delivered; `on_split` is called with the position at which
    `request_split` has ended a range.
    """

    def __init__(
        self,
        index: int,
        source: Source,
        buffers: BufferPool,
        events: queue.SimpleQueue[ReceiverEvent],
        claim: Callable[[], ByteRange | None],
        check_body: Callable[[int, ByteRange, Body], None],
        deliver: Callable[[Chunk], bool],
        size: Callable[[], int | None],
        on_split: Callable[[int], None],
    ) -> None:
        self.index = index
        self.name = source.name
        #: The next byte to deliver.
        self.position = 0
        #: Bytes delivered so far.
        self.gained = 0
        self.byte_range = ByteRange(0)
        self.buffers = buffers
        self._source = source
        self._events = events
        self._claim = claim
        self._check_body = check_body
        self._deliver = deliver
        self._size = size
        self._on_split = on_split
        self._split_requested = False
        self._body: Body | None = None
        self._interruption: SourceError | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="receiver", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def interrupt(self, error: SourceError) -> None:
        """End the connection as if this error had occurred; delivered bytes count."""
        self._interruption = error
        self._close_body()

    def request_split(self) -> None:
        """End the current range at the next block, report the position to `on_split`, and claim again."""
        self._split_requested = True

    def close(self) -> None:
        self._closed = True
        self._close_body()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _close_body(self) -> None:
        body = self._body
        if body is not None:
            body.close()

    def _run(self) -> None:
        try:
            while not self._closed:
                byte_range = self._claim()
                if byte_range is None:
                    break
                self._fetch_range(byte_range)
            self._events.put(ReceiverDone(self))
        except SourceError as error:
            self._events.put(ReceiverFailed(self, self._interruption or error, self.position))
        except BaseException as error:
            if self._closed:
                return  # closing a body under its reader may raise anything, and the result is not needed
            if self._interruption is not None:
                self._events.put(ReceiverFailed(self, self._interruption, self.position))
            else:
                self._events.put(ReceiverBroken(error))

    def _fetch_range(self, byte_range: ByteRange) -> None:
        self.byte_range, self.position = byte_range, byte_range.start
        body = self._body = self._source.open(byte_range.start, byte_range.stop)
        try:
            if not self._closed and self._interruption is None:
                self._check_body(self.index, byte_range, body)
                self._skip(body, byte_range.start - body.start)
                self._read(body, byte_range)
        finally:
            self._body = None
            body.close()
        if self._interruption is not None:
            raise self._interruption

    def _read(self, body: Body, byte_range: ByteRange) -> None:
        """Read the body to the end of the range and deliver it. Raises SourceError if it ends too early."""
        more = True
        while more and not self._closed and self._interruption is None:
            if self._split_requested and byte_range.stop is None:
                self._split_requested = False
                self._on_split(self.position)
                return
            end = self._end_of(byte_range)
            if end == self.position:
                if byte_range.stop is None:
                    self._confirm_end(body)
                return
            buffer = self.buffers.acquire()
            if buffer is None:
                return
            limit = len(buffer) if end is None else min(len(buffer), end - self.position)
            # Reading a small remainder costs as much as reading a full buffer, so a partly filled one is
            # delivered. With segments, buffers must be filled: there are only as many as a segment needs.
            enough = limit if byte_range.stop is not None else min(limit, max(1, len(buffer) // _ENOUGH))
            more = self._fill(body, buffer[:limit], buffer, enough)
        if more or self._closed or self._interruption is not None:
            return
        end = self._end_of(byte_range)
        if end is not None and self.position < end:
            detail = "the data ended after %d of %d bytes" % (self.position, end)
            raise SourceError(ErrorKind.TRUNCATED, detail, self.name)
        self._events.put(EndOfFile(self, self.position))

    def _fill(self, body: Body, free: memoryview, buffer: memoryview, enough: int) -> bool:
        """Read at least `enough` bytes and deliver them, also if an error occurs. Return False at the end."""
        filled, first_at, last_at, age = 0, 0.0, 0.0, 0.0
        try:
            while filled < enough:
                count = body.read_into(free[filled:])
                if count == 0:
                    return False
                filled += count
                if filled < enough:
                    last_at = time.monotonic()
                    first_at = first_at or last_at
                    if last_at - first_at > _MAX_FILL_SECONDS:
                        break
            return True
        except SourceError:
            age = time.monotonic() - last_at
            raise
        finally:
            if filled:
                offset, self.position = self.position, self.position + filled
                self.gained += filled
                if not self._deliver(Chunk(offset, buffer[:filled], buffer, self, age)):
                    self._closed = True
            else:
                self.buffers.release(buffer)

    def _end_of(self, byte_range: ByteRange) -> int | None:
        return byte_range.stop if byte_range.stop is not None else self._size()

    def _confirm_end(self, body: Body) -> None:
        """Check that the source, too, ends where the file ends. Raises SourceError."""
        if body.read_into(memoryview(bytearray(1))):
            detail = "it sends more than the %d bytes of the file" % self.position
            raise SourceError(ErrorKind.WRONG_LENGTH, detail, self.name)
        self._events.put(EndOfFile(self, self.position))

    def _skip(self, body: Body, count: int) -> None:
        """Read and drop the first `count` bytes, which have been written already. Raises SourceError."""
        if count <= 0:
            return
        scratch, skipped = memoryview(bytearray(self.buffers.size)), 0
        try:
            while skipped < count and not self._closed and self._interruption is None:
                got = body.read_into(scratch[: min(len(scratch), count - skipped)])
                if got == 0:
                    detail = "the data ended after %d bytes, %d were received before" % (skipped, count)
                    raise SourceError(ErrorKind.TRUNCATED, detail, self.name)
                skipped += got
        finally:
            self._events.put(Skipped(skipped, self))


@dataclass(frozen=True)
class ByteRange:
    """The bytes from `start` up to, not including, `stop`; None: to the end of the file."""

    start: int
    stop: int | None = None


@dataclass(frozen=True)
class Chunk:
    """Consecutive bytes of the file, as one receiver delivers them."""

    offset: int
    data: memoryview
    #: The buffer that `data` is part of, to be released after use; None: `data` is a copy.
    buffer: memoryview | None
    receiver: Receiver
    #: Seconds between its last byte and the error that ended the wait for more; 0 without an error.
    age: float = 0.0

    @property
    def length(self) -> int:
        return len(self.data)


# Events, from receivers to the thread that runs the transfer


@dataclass(frozen=True)
class SizeKnown:
    """A receiver has learnt the file's size and waits until the disk has been checked."""


@dataclass(frozen=True)
class Skipped:
    """Bytes were received again, from a source that ignores ranges."""

    count: int
    receiver: Receiver


@dataclass(frozen=True)
class ReceiverFailed:
    """The receiver has ended with an error; the rest of its range begins at `position`."""

    receiver: Receiver
    error: SourceError
    position: int


@dataclass(frozen=True)
class EndOfFile:
    """According to the source the file ends at `position`."""

    receiver: Receiver
    position: int


@dataclass(frozen=True)
class ReceiverDone:
    """The receiver has ended because no range was left for it."""

    receiver: Receiver


@dataclass(frozen=True)
class ReceiverBroken:
    """The sink raised an error, or a source has a defect; `error` is raised to the caller of the fetch."""

    error: BaseException
    #: The chunk that the sink did not accept; None for a defect of a source.
    chunk: Chunk | None = None


ReceiverEvent = Union[SizeKnown, Skipped, ReceiverFailed, EndOfFile, ReceiverDone, ReceiverBroken]


class BufferPool:
    """The buffers that circulate between one connection, the sink and the digests; allocated on first use.

    The buffer released last is acquired first, because it is still in the processor's cache.
    """

    def __init__(self, count: int, size: int) -> None:
        self.size = size
        self._free: deque[memoryview] = deque()
        #: One entry for each free buffer, and one after `close`.
        self._available: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._unallocated = count
        self._count = count
        self._closed = False
        #: Seconds without a free buffer: the disk or a digest is slower than the network.
        self.seconds_waited = 0.0

    def acquire(self) -> memoryview | None:
        """Return a free buffer, waiting for one if necessary; None if the pool is closed."""
        try:
            self._available.get_nowait()
        except queue.Empty:
            if self._unallocated:
                self._unallocated -= 1
                return memoryview(bytearray(self.size))
            started = time.monotonic()
            self._available.get()
            self.seconds_waited += time.monotonic() - started
        return None if self._closed else self._free.pop()

    def grow(self, count: int) -> None:
        """Allow `count` buffers in total. Only for the thread that acquires."""
        self._unallocated += max(0, count - self._count)
        self._count = max(self._count, count)

    def release(self, buffer: memoryview) -> None:
        """Make a buffer available again. May be called from any thread."""
        self._free.append(buffer)
        self._available.put(None)

    def close(self) -> None:
        """Let the current or next `acquire` return None."""
        self._closed = True
        self._available.put(None)

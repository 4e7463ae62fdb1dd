"""One connection: a thread that asks a source for one span after the other and fills buffers with it."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Callable, Union

from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.node.staging.sources.base import Body, Source

#: A buffer that is not full after so many seconds goes on as it is: what is slow is not to be held back.
_LINGER = 0.5
#: This part of a buffer is worth passing on.
_ENOUGH = 4


class Receiver:
    """`claim` gives the next span; `admit` looks at what a source answers, and may raise Trouble; `bring`
    takes a piece, and says whether more is wanted.

    `size`: of the whole file, as far as it is known; not a byte beyond it is passed on.
    """

    def __init__(
        self,
        index: int,
        source: Source,
        buffers: BufferPool,
        arrivals: queue.SimpleQueue[ReceiverEvent],
        claim: Callable[[], ByteRange | None],
        admit: Callable[[int, ByteRange, Body], None],
        bring: Callable[[Chunk], bool],
        size: Callable[[], int | None],
        cut: Callable[[int], None],
    ) -> None:
        self.index = index
        self.name = source.name
        #: The next byte that it will pass on.
        self.at = 0
        self.gained = 0
        self.span = ByteRange(0)
        self._source = source
        self.buffers = buffers
        self._arrivals = arrivals
        self._claim = claim
        self._admit = admit
        self._bring = bring
        self._size = size
        self._cut = cut
        self._cut_wanted = False
        self._body: Body | None = None
        self._interruption: SourceError | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="receiver", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def interrupt(self, trouble: SourceError) -> None:
        """End the connection for this reason; what it has passed on counts."""
        self._interruption = trouble
        self._close_body()

    def cut(self) -> None:
        """End the span at the next block; `cut` of the stream is told where, and the next is claimed."""
        self._cut_wanted = True

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
                span = self._claim()
                if span is None:
                    break
                self._pull(span)
            self._arrivals.put(ReceiverDone(self))
        except SourceError as trouble:
            self._arrivals.put(ReceiverFailed(self, self._interruption or trouble, self.at))
        except BaseException as error:
            if self._closed:
                return  # whatever a body does when it is closed under its reader, nobody wants it any more
            if self._interruption is not None:
                self._arrivals.put(ReceiverFailed(self, self._interruption, self.at))
            else:
                self._arrivals.put(ReceiverBroken(error))

    def _pull(self, span: ByteRange) -> None:
        self.span, self.at = span, span.start
        body = self._body = self._source.open(span.start, span.stop)
        try:
            if not self._closed and self._interruption is None:
                self._admit(self.index, span, body)
                self._skip(body, span.start - body.start)
                self._read(body, span)
        finally:
            self._body = None
            body.close()
        if self._interruption is not None:
            raise self._interruption

    def _read(self, body: Body, span: ByteRange) -> None:
        more = True
        while more and not self._closed and self._interruption is None:
            if self._cut_wanted and span.stop is None:
                self._cut_wanted = False
                self._cut(self.at)
                return
            stop = self._stop(span)
            if stop == self.at:
                if span.stop is None:
                    self._confirm_end(body)
                return
            buffer = self.buffers.take()
            if buffer is None:
                return
            limit = len(buffer) if stop is None else min(len(buffer), stop - self.at)
            # To ask for the last bit that fits, while more waits, costs as much as to ask for all of it. Of
            # several connections each has room for full buffers only.
            enough = limit if span.stop is not None else min(limit, max(1, len(buffer) // _ENOUGH))
            more = self._fill(body, buffer[:limit], buffer, enough)
        if more or self._closed or self._interruption is not None:
            return
        stop = self._stop(span)
        if stop is not None and self.at < stop:
            detail = "it ended after %d bytes, of %d" % (self.at, stop)
            raise SourceError(ErrorKind.TRUNCATED, detail, self.name)
        self._arrivals.put(EndOfFile(self, self.at))

    def _fill(self, body: Body, room: memoryview, buffer: memoryview, enough: int) -> bool:
        """Pass on what came, also when something goes wrong. False: the body is at its end."""
        filled, began, now, age = 0, 0.0, 0.0, 0.0
        try:
            while filled < enough:
                count = body.read_into(room[filled:])
                if count == 0:
                    return False
                filled += count
                if filled < enough:
                    now = time.monotonic()
                    began = began or now
                    if now - began > _LINGER:
                        break
            return True
        except SourceError:
            age = time.monotonic() - now
            raise
        finally:
            if filled:
                offset, self.at = self.at, self.at + filled
                self.gained += filled
                if not self._bring(Chunk(offset, buffer[:filled], buffer, self, age)):
                    self._closed = True
            else:
                self.buffers.give(buffer)

    def _stop(self, span: ByteRange) -> int | None:
        return span.stop if span.stop is not None else self._size()

    def _confirm_end(self, body: Body) -> None:
        """All bytes are there: the source must say so, too."""
        if body.read_into(memoryview(bytearray(1))):
            detail = "it sends more than the %d bytes that the file has" % self.at
            raise SourceError(ErrorKind.WRONG_LENGTH, detail, self.name)
        self._arrivals.put(EndOfFile(self, self.at))

    def _skip(self, body: Body, count: int) -> None:
        """Read over what is there already."""
        if count <= 0:
            return
        scratch, done = memoryview(bytearray(self.buffers.size)), 0
        try:
            while done < count and not self._closed and self._interruption is None:
                got = body.read_into(scratch[: min(len(scratch), count - done)])
                if got == 0:
                    detail = "it ended after %d bytes, and gave %d before" % (done, count)
                    raise SourceError(ErrorKind.TRUNCATED, detail, self.name)
                done += got
        finally:
            self._arrivals.put(Skipped(done, self))


# What a connection is asked for, and what it tells: bytes, and what became of it.
@dataclass(frozen=True)
class ByteRange:
    """From `start` up to, not including, `stop`; None: to the end."""

    start: int
    stop: int | None = None


@dataclass(frozen=True)
class Chunk:
    offset: int
    data: memoryview
    #: What `data` is a part of, to be given back; None: it is a copy.
    buffer: memoryview | None
    receiver: Receiver
    #: Seconds since its last byte came: in vain was more awaited.
    age: float = 0.0

    @property
    def length(self) -> int:
        return len(self.data)


@dataclass(frozen=True)
class SizeKnown:
    """How large the file is was heard for the first time, and whoever heard it waits until there is room."""


@dataclass(frozen=True)
class Skipped:
    """So many bytes came that were there already, from a source that cannot begin elsewhere."""

    count: int
    receiver: Receiver


@dataclass(frozen=True)
class ReceiverFailed:
    """The receiver has ended; what is left of its span begins at `at`."""

    receiver: Receiver
    trouble: SourceError
    at: int


@dataclass(frozen=True)
class EndOfFile:
    """The source says that the file ends at `at`."""

    receiver: Receiver
    at: int


@dataclass(frozen=True)
class ReceiverDone:
    """The receiver has ended: there is nothing more for it to do."""

    receiver: Receiver


@dataclass(frozen=True)
class ReceiverBroken:
    """The sink would not take a piece, or a source has a defect: for whoever called the fetch."""

    error: BaseException
    #: What the sink would not take.
    piece: Chunk | None = None


ReceiverEvent = Union[SizeKnown, Skipped, ReceiverFailed, EndOfFile, ReceiverDone, ReceiverBroken]


# Memory between a connection and the disk.
class BufferPool:
    """Blocks that go round between one connection, the sink and the digests. Made when first needed.

    The one that came back last goes out first: it is still in the processor's cache.
    """

    def __init__(self, count: int, size: int) -> None:
        self.size = size
        self._free: deque[memoryview] = deque()
        #: One entry for each that is free, and one for the end.
        self._returned: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._unmade = count
        self._count = count
        self._closed = False
        #: Seconds for which there was none: the disk, or a digest, is slower than the network.
        self.waited = 0.0

    def take(self) -> memoryview | None:
        """Waits for one; None: closed."""
        try:
            self._returned.get_nowait()
        except queue.Empty:
            if self._unmade:
                self._unmade -= 1
                return memoryview(bytearray(self.size))
            began = time.monotonic()
            self._returned.get()
            self.waited += time.monotonic() - began
        return None if self._closed else self._free.pop()

    def grow(self, count: int) -> None:
        """So many in all; called by whoever takes."""
        self._unmade += max(0, count - self._count)
        self._count = max(self._count, count)

    def give(self, buffer: memoryview) -> None:
        self._free.append(buffer)
        self._returned.put(None)

    def close(self) -> None:
        self._closed = True
        self._returned.put(None)

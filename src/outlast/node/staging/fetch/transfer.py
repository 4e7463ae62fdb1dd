"""One pass over a file: bytes from sources to the sink, from a position to the end, through all errors."""

from __future__ import annotations

import threading

from outlast.node.archives.sink import BadArchive, Sink
from outlast.node.staging.errors import BeyondTheEnd, ErrorKind, SourceError
from outlast.node.staging.fetch import disk_space
from outlast.node.staging.fetch.context import POLL_INTERVAL, FetchContext, RestartFetch
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

#: Errors after the last byte which suggest that the bytes before it are wrong.
_SUSPICIOUS = frozenset({ErrorKind.SERVER_ERROR, ErrorKind.WRONG_LENGTH, ErrorKind.NONSENSE})


class Transfer:
    """Transfers a file from `position` to its end. `digests` has hashed what the sink has, up to there."""

    def __init__(
        self,
        context: FetchContext,
        sink: Sink,
        slow_detector: SlowSourceDetector,
        digests: Digests,
        position: int,
    ) -> None:
        self.context = context
        self.digests = digests
        self.peak_connections = 1
        self._sink = sink
        self._stream = OrderedStream(
            position,
            context.settings,
            self._check_body,
            self._write,
            lambda: context.file.size,
            context.clock.now,
        )
        self._throughput = ThroughputMonitor(context, self._stream, slow_detector, self._start_connection)
        #: Slots that need a source.
        self._idle_slots: list[Slot] = [self._stream.slots[0]]
        #: Set once the disk is known to have room for the file, or when the transfer is over.
        self._space_checked = threading.Event()
        self._is_over = False
        self._end_confirmed = False
        #: Sources whose file has changed and which are used all the same.
        self._tolerated: set[int] = set()

    @property
    def contributors(self) -> set[int]:
        """The sources whose bytes were written in this pass."""
        return self._stream.contributors

    @property
    def position(self) -> int:
        """The first byte that is not written."""
        return self._stream.position

    def run(self) -> None:
        """Transfer the rest of the file.

        Raises FetchFailed, RestartFetch, OSError, and what the pulse raises.
        """
        try:
            self._check_disk_space()
            while not self._is_complete():
                self.context.pulse()
                next_try = self._start_connections()
                if next_try is not None:
                    self.context.pause_until(next_try)
                    continue
                event = self._stream.next_event(min(POLL_INTERVAL, self.context.settings.check_interval))
                if event is not None:
                    self._handle(event)
                self._record_written()
                self._throughput.check()
        finally:
            self._is_over = True
            self._space_checked.set()
            self._stream.close()
            self.digests.close()
            self._record_written()

    def _is_complete(self) -> bool:
        size = self.context.file.size
        if size is None or self._stream.position < size or self._stream.connections:
            return False
        # Only a response proves that an empty file exists.
        return size > 0 or self._end_confirmed

    # Connections

    def _start_connections(self) -> float | None:
        """Start a connection for each idle slot whose source may be used now.

        Return when to try again if no connection is open and no source may be used before then, else None.
        """
        context, next_try = self.context, None
        for slot in list(self._idle_slots):
            pick = context.selector.pick(self._stream.position)
            if pick is None:
                context.raise_if_hopeless()
                raise AssertionError("without a usable source the fetch is hopeless")
            if pick.not_before <= context.clock.now():
                self._idle_slots.remove(slot)
                self._start_connection(slot, pick.index)
            else:
                next_try = pick.not_before
        return next_try if not self._stream.connections else None

    def _start_connection(self, slot: Slot, index: int) -> None:
        self._stream.start_receiver(slot, index, self.context.sources[index])
        self.peak_connections = max(self.peak_connections, self._stream.connections)
        self._throughput.connection_started(index)

    def _check_body(self, index: int, byte_range: ByteRange, body: Body) -> None:
        """Raise SourceError if a source is about to send another file or range. Called by receivers.

        Once the file's size is known, receivers wait here until `run` has checked the disk.
        """
        context = self.context
        name = context.sources[index].name
        state = context.selector.states[index]
        context.file.add_version(index, name, body.version)
        if context.file.size is not None and not self._space_checked.is_set():
            self._stream.post_event(SizeKnown())
            self._space_checked.wait()  # `run` sets it, however it ends
            if self._is_over:
                raise SourceError(ErrorKind.RESET, "the fetch has ended", name)
        if body.start == byte_range.start:
            if byte_range.start > 0:
                self._throughput.range_capable.add(index)
                state.ignores_ranges = False
        elif body.start != 0:
            detail = "byte %d was requested, the response begins at byte %d" % (byte_range.start, body.start)
            raise SourceError(ErrorKind.NONSENSE, detail, name)
        elif not state.ignores_ranges:
            detail = "byte %d was requested, the response begins at byte 0" % byte_range.start
            raise SourceError(ErrorKind.NO_RANGES, detail, name)

    # Events of receivers

    def _handle(self, event: ReceiverEvent) -> None:
        self._record_written()
        if isinstance(event, ReceiverFailed):
            self._handle_failure(event)
        elif isinstance(event, EndOfFile):
            self._end_confirmed = True
            self.context.file.set_size_if_unknown(event.position)
        elif isinstance(event, Skipped):
            self.context.cost_log.add_refetched(ErrorKind.NO_RANGES, event.count)
        elif isinstance(event, SizeKnown):
            self._check_disk_space()
        elif isinstance(event, ReceiverBroken):
            self._raise_broken(event)

    def _check_disk_space(self) -> None:
        """Check once, as soon as the file's size is known. Raises FetchFailed if the disk is too small."""
        size = self.context.file.size
        if size is not None and not self._space_checked.is_set():
            disk_space.require_space(self._sink, size, self.context.settings.margin)
            self._space_checked.set()

    def _write(self, chunk: Chunk) -> None:
        """Write a chunk to the sink and hash it. Called by receivers, one at a time."""
        self.context.file.check_size(chunk.offset + len(chunk.data), chunk.receiver.name)
        self._sink.write(chunk.data)
        self.digests.update_in_background(chunk.data, lambda: self._stream.release(chunk))

    def _record_written(self) -> None:
        """Credit the sources with the bytes written since the last call."""
        context = self.context
        for index, written in self._stream.pop_written().items():
            context.last_byte_at = written.last_at
            context.bytes_done = self._stream.position
            context.last_error = None
            context.cost_log.add_bytes(index, written.count, written.first_at, written.last_at)

    def _raise_broken(self, broken: ReceiverBroken) -> None:
        error, chunk = broken.error, broken.chunk
        if isinstance(error, SourceError):  # the file turned out to be too large
            self.context.cost_log.add_error(error.kind, self.context.clock.now())
            raise self.context.make_failure(error, "") from error
        if chunk is not None and isinstance(error, BadArchive):
            bad = SourceError(ErrorKind.BAD_ARCHIVE, str(error), chunk.receiver.name)
            raise RestartFetch(bad) from error
        if chunk is not None and isinstance(error, OSError) and error.errno in disk_space.DISK_FULL_ERRNOS:
            size = self.context.file.size
            raise disk_space.disk_full_error(self._sink, error, chunk.offset, size) from error
        raise error

    # Errors of sources

    def _handle_failure(self, failed: ReceiverFailed) -> None:
        """Record the error and let another connection fetch the rest. Raises FetchFailed, RestartFetch."""
        context, error, index = self.context, failed.error, failed.receiver.index
        slot = self._stream.slot_for(failed.receiver)
        slow_seconds = self._throughput.connection_failed()
        size = context.file.size
        if size is not None and failed.position >= size > 0:
            self._handle_failure_at_end(slot, error)
            return
        if isinstance(error, BeyondTheEnd) and self.has_all_bytes():
            slot.pending = None
            self._record_error(error)
            context.file.set_size_if_unknown(failed.position)
            return
        self._idle_slots.append(slot)
        if error.kind is ErrorKind.CHANGED:
            self._handle_change(index, error)
        else:
            context.record_failure(index, error, failed.receiver.gained, slow_seconds)
        if self._stream.position and not context.file.is_distinguishable:
            # The file may be another one at the next request, and nothing would show it.
            raise RestartFetch(error, is_wrong=False)

    def has_all_bytes(self) -> bool:
        """Return True if a pinned digest proves that the bytes so far are the whole file of unknown size."""
        context = self.context
        return (
            self._stream.position > 0
            and not self._stream.connections
            and context.file.size is None
            and context.item.is_named_by_digest
            and not context.digest_check.mismatch(self.digests.results())
        )

    def _handle_failure_at_end(self, slot: Slot, error: SourceError) -> None:
        """Accept all bytes although an error followed the last one: the digest decides, if there is one.

        Raises RestartFetch for a suspicious error without a digest.
        """
        slot.pending = None
        self._record_error(error)
        if not self.context.digest_check.expected and error.kind in _SUSPICIOUS:
            raise RestartFetch(error)

    def _handle_change(self, index: int, error: SourceError) -> None:
        """Exclude a source whose file has changed, or tolerate it. Raises RestartFetch otherwise."""
        self._record_error(error)
        selector, file = self.context.selector, self.context.file
        usable = selector.usable()
        if usable != [index] and (
            file.pinned or (file.first_source != index and file.first_source in usable)
        ):
            selector.exclude(index, error)
        elif file.pinned and index not in self._tolerated:
            # It is the last source, and only the modification date may be new: the digest will decide.
            self._tolerated.add(index)
            file.forget_source(index)
        else:
            raise RestartFetch(error)

    def _record_error(self, error: SourceError) -> None:
        """Record an error that does not count against its source."""
        self.context.cost_log.add_error(error.kind, self.context.clock.now())
        self.context.last_error = error

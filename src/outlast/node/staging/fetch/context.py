"""State and services that all parts of one fetch share: the item, its sources, errors, progress, patience."""

from __future__ import annotations

import threading
from typing import Callable, Generic, Sequence, TypeVar

from outlast.node.staging.errors import ErrorKind, FetchFailed, SourceError
from outlast.node.staging.fetch.digests import DigestCheck
from outlast.node.staging.fetch.fetch_settings import FetchClock, FetchSettings
from outlast.node.staging.fetch.file_identity import FileIdentity
from outlast.node.staging.fetch.receipt import CostLog, FetchProgress
from outlast.node.staging.fetch.source_selection import SourceSelector
from outlast.node.staging.item import DataItem
from outlast.node.staging.sources.base import Source

#: Seconds between two calls of the pulse while no bytes arrive.
POLL_INTERVAL = 0.25
#: Seconds without a byte after which the time until the fetch gives up is reported.
QUIET_SECONDS = 5.0


class RestartFetch(Exception):
    """The bytes so far are wrong, or the file has changed: all of them must be discarded.

    `is_wrong` is False if they may be right, but could not be told from those of another file.
    """

    def __init__(self, error: SourceError, is_wrong: bool = True) -> None:
        super().__init__(str(error))
        self.error = error
        self.is_wrong = is_wrong


class FetchContext:
    """The shared state of one fetch. Sources are referred to by their index in `sources`."""

    def __init__(
        self,
        item: DataItem,
        sources: Sequence[Source],
        settings: FetchSettings,
        on_progress: Callable[[FetchProgress], None],
        pulse: Callable[[], None],
        clock: FetchClock,
    ) -> None:
        self.item = item
        self.sources = sources
        self.settings = settings
        self.pulse = pulse
        self.clock = clock
        self.file = FileIdentity(item)
        self.selector = SourceSelector([source.name for source in sources], settings, clock)
        self.cost_log = CostLog(self.selector.names, clock.now())
        #: The digests to compute and compare; set before the first byte arrives.
        self.digest_check = DigestCheck(())
        #: None once new bytes have arrived.
        self.last_error: SourceError | None = None
        #: When the last new byte arrived, or the fetch started.
        self.last_byte_at = clock.now()
        #: Bytes that the sink has.
        self.bytes_done = 0
        self._on_progress = on_progress

    def record_failure(self, index: int, error: SourceError, gained: int, slow_seconds: float = 0.0) -> None:
        """Record an error of a source. Raises FetchFailed if no source is left to try.

        `gained`: new bytes from this connection; `slow_seconds`: time lost to its low rate.
        """
        self.last_error = error
        self.cost_log.add_error(error.kind, self.clock.now(), slow_seconds)
        self.selector.record_failure(index, error, gained)
        self.raise_if_hopeless()

    def raise_if_hopeless(self) -> None:
        """Raise FetchFailed if every source has failed for good, or if no byte came within the patience."""
        final_error = self.selector.final_error()
        if final_error is not None:
            raise self.make_failure(final_error, "")
        idle = self.clock.now() - self.last_byte_at
        if idle > self.settings.patience:
            error = self.last_error or SourceError(ErrorKind.NO_ANSWER, "no source has responded")
            raise self.make_failure(error, "no new byte for %.0f s; " % idle)

    def make_failure(self, error: SourceError, reason: str) -> FetchFailed:
        """Return the exception that ends the fetch, with the last error of every source in its message."""
        self.cost_log.charge_elapsed(self.clock.now())
        costs = self.cost_log.costs
        others = "".join(
            "; %s" % state.last_error
            for state in self.selector.states
            if state.last_error is not None and str(state.last_error) != str(error)
        )
        counts = ", ".join("%s %d×" % (kind.value, cost.count) for kind, cost in costs.by_kind.items())
        detail = "%s could not be fetched: %s%s%s%s" % (
            self.item.name,
            reason,
            error,
            others,
            " (%s)" % counts if counts else "",
        )
        return FetchFailed(detail, error, costs)

    def pause_until(self, end: float) -> None:
        """Wait until `end`, calling the pulse. Raises FetchFailed if the patience ends before."""
        while True:
            left = end - self.clock.now()
            if left <= 0:
                return
            self.raise_if_hopeless()
            self.report_progress(0.0, "", 0, end)
            self.clock.sleep(min(left, POLL_INTERVAL))
            self.pulse()

    def report_progress(
        self, rate: float, source: str, connections: int, next_try: float | None = None
    ) -> None:
        """Report the progress; `next_try` is when the current pause ends."""
        now = self.clock.now()
        error = self.last_error.short if self.last_error is not None else ""
        next_try_in = gives_up_in = None
        if next_try is not None:
            next_try_in = max(0.0, next_try - now)
        if error or now - self.last_byte_at >= QUIET_SECONDS:
            gives_up_in = max(0.0, self._give_up_time() - now)
        self._on_progress(
            FetchProgress(
                self.bytes_done,
                self.file.size,
                rate,
                source,
                connections,
                error,
                next_try_in,
                gives_up_in,
            )
        )

    def _give_up_time(self) -> float:
        patience_end = self.last_byte_at + self.settings.patience
        refusal_deadline = self.selector.refusal_deadline()
        return patience_end if refusal_deadline is None else min(patience_end, refusal_deadline)

    def identify_file(self) -> None:
        """Ask the sources for the file's version until one responds. Do nothing if digests are pinned.

        Raises FetchFailed.
        """
        while not self.file.pinned and self.file.version is None:
            pick = self.selector.pick(0)
            assert pick is not None, "raise_if_hopeless has raised otherwise"
            self.pause_until(pick.not_before)
            source = self.sources[pick.index]
            call = BackgroundCall(source.version)
            while not call.wait(POLL_INTERVAL):
                self.pulse()
                self.raise_if_hopeless()
                self.report_progress(0.0, source.name, 1)
            try:
                self.file.add_version(pick.index, source.name, call.result())
            except SourceError as error:
                self.record_failure(pick.index, error, 0)


T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """A call in a thread of its own, so that the caller can go on polling. It may be abandoned at any time.

    The call must end by itself: its thread lives that long.
    """

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._value: T | None = None
        self._error: BaseException | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="background call", daemon=True).start()

    def wait(self, seconds: float) -> bool:
        """Return True if the call has ended, after at most `seconds`."""
        return self._ended.wait(seconds)

    def result(self) -> T:
        """Return the call's result, or raise its exception. Only after `wait` has returned True."""
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # None only where T is

    def _run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:  # `result` raises it
            self._error = error
        finally:
            self._ended.set()

"""What all parts of one fetch share: what is wanted, from whom, and how long there is patience."""

from __future__ import annotations

import threading
from typing import Callable, Generic, Sequence, TypeVar

from outlast.node.staging.errors import ErrorKind, FetchFailed, SourceError
from outlast.node.staging.fetch.digests import Proof
from outlast.node.staging.fetch.fetch_settings import FetchClock, FetchSettings
from outlast.node.staging.fetch.file_identity import FileIdentity
from outlast.node.staging.fetch.receipt import CostLog, FetchProgress
from outlast.node.staging.fetch.source_selection import SourceSelector
from outlast.node.staging.item import DataItem
from outlast.node.staging.sources.base import Source

#: Seconds between two looks at the pulse while nothing comes.
GLANCE = 0.25
#: Seconds without a byte after which the time until the fetch gives up is reported.
QUIET = 5.0


class RestartFetch(Exception):
    """What has come is wrong, or of a file that is no more: all of it is thrown away."""

    def __init__(self, trouble: SourceError) -> None:
        super().__init__(str(trouble))
        self.trouble = trouble


class FetchContext:
    def __init__(
        self,
        wanted: DataItem,
        sources: Sequence[Source],
        settings: FetchSettings,
        tell: Callable[[FetchProgress], None],
        pulse: Callable[[], None],
        clock: FetchClock,
    ) -> None:
        self.wanted = wanted
        self.sources = sources
        self.settings = settings
        self.tell = tell
        self.pulse = pulse
        self.clock = clock
        self.known = FileIdentity(wanted)
        self.choice = SourceSelector([source.name for source in sources], settings, clock)
        self.books = CostLog(self.choice.names, clock.now())
        #: What the bytes are compared with; settled before the first of them comes.
        self.proof = Proof(())
        self.last_trouble: SourceError | None = None
        #: When the last new byte came, or the fetch began.
        self.last_byte = clock.now()
        #: Bytes that are there.
        self.done = 0

    def meet(self, index: int, trouble: SourceError, gained: int, slow: float = 0.0) -> None:
        """Book it and let it count against its source. Raises GivenUp if nothing is left to try."""
        self.last_trouble = trouble
        self.books.trouble(trouble.kind, self.clock.now(), slow)
        self.choice.failed(index, trouble, gained)
        self.check_hope()

    def check_hope(self) -> None:
        """Raises GivenUp."""
        verdict = self.choice.verdict()
        if verdict is not None:
            raise self.given_up(verdict, "")
        idle = self.clock.now() - self.last_byte
        if idle > self.settings.patience:
            trouble = self.last_trouble or SourceError(ErrorKind.NO_ANSWER, "nobody has answered")
            raise self.given_up(trouble, "no new byte for %.0f s; " % idle)

    def given_up(self, trouble: SourceError, why: str) -> FetchFailed:
        self.books.settle(self.clock.now())
        others = [
            str(standing.last)
            for standing in self.choice.standings
            if standing.last is not None and str(standing.last) != str(trouble)
        ]
        told = "".join("; " + other for other in others)
        counts = ", ".join(
            "%s %d×" % (kind.value, cost.count) for kind, cost in self.books.costs.by_kind.items()
        )
        detail = "%s did not arrive: %s%s%s%s" % (
            self.wanted.name,
            why,
            trouble,
            told,
            " (%s)" % counts if counts else "",
        )
        return FetchFailed(detail, trouble, self.books.costs)

    def pause(self, until: float) -> None:
        """Wait, with a pulse. Raises GivenUp when the patience ends first."""
        while True:
            left = until - self.clock.now()
            if left <= 0:
                return
            self.check_hope()
            self.report(0.0, "", 0, until)
            self.clock.sleep(min(left, GLANCE))
            self.pulse()

    def report(self, rate: float, source: str, connections: int, next_try: float | None = None) -> None:
        """Report the progress; `next_try` is when the current pause ends."""
        now = self.clock.now()
        trouble = self.last_trouble.short if self.last_trouble is not None else ""
        next_try_in = gives_up_in = None
        if next_try is not None:
            next_try_in = max(0.0, next_try - now)
        if trouble or now - self.last_byte >= QUIET:
            gives_up_in = max(0.0, self._patience_end() - now)
        self.tell(
            FetchProgress(
                self.done, self.known.size, rate, source, connections, trouble, next_try_in, gives_up_in
            )
        )

    def _patience_end(self) -> float:
        end = self.last_byte + self.settings.patience
        refusals_end = self.choice.refusals_end()
        return end if refusals_end is None else min(end, refusals_end)

    def find_out(self) -> None:
        """What the first source to answer says of the file, unless what is pinned says it all.

        Raises GivenUp.
        """
        while not self.known.pinned and self.known.version is None:
            turn = self.choice.next(0)
            assert turn is not None, "hope was checked"
            self.pause(turn.not_before)
            source = self.sources[turn.index]
            asked = BackgroundCall(source.version)
            while not asked.wait(GLANCE):
                self.pulse()
                self.check_hope()
                self.report(0.0, source.name, 1)
            try:
                self.known.hear(turn.index, source.name, asked.result())
            except SourceError as trouble:
                self.meet(turn.index, trouble, 0)


# A call that may take its time, in a thread, while the caller stays able to hear and be heard.
T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """Who loses interest simply leaves it: the call is bounded, and so is its thread."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._value: T | None = None
        self._error: BaseException | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="beside", daemon=True).start()

    def wait(self, seconds: float) -> bool:
        """Whether it has ended."""
        return self._ended.wait(seconds)

    def result(self) -> T:
        """Once it has ended; raises what the call raised."""
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

"""The account of an attempt: typed facts about its time, saves, data and end, stored as JSON in the journal.

None, zero, false and empty values are left out of the JSON and read back as the default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from outlast.node.protocol import Outcome, Phase


@dataclass(frozen=True)
class Save:
    """A checkpoint that became durable; it holds the first `offset` seconds of the compute phase."""

    offset: float
    step: int | None


@dataclass(frozen=True)
class Saved:
    """The sum of all saves of a leg: number, seconds until they were durable, seconds of the slowest."""

    times: int
    seconds: float
    slowest: float
    #: Why the last save was made, as the training process logged it.
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        sums = {"times": self.times, "seconds": round(self.seconds, 3), "slowest": round(self.slowest, 3)}
        return {**sums, "why": self.why} if self.why else sums

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Saved:
        """Read the JSON form."""
        return cls(
            int(raw.get("times", 0)),
            float(raw.get("seconds", 0.0)),
            float(raw.get("slowest", 0.0)),
            str(raw.get("why", "")),
        )


@dataclass(frozen=True)
class ErrorTotal:
    """The cost of one kind of data error: occurrences, bytes fetched again, seconds without a new byte."""

    count: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def __add__(self, other: ErrorTotal) -> ErrorTotal:
        return ErrorTotal(self.count + other.count, self.bytes + other.bytes, self.seconds + other.seconds)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"count": self.count, "bytes": self.bytes, "seconds": self.seconds}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> ErrorTotal:
        """Read the JSON form."""
        return cls(int(raw["count"]), int(raw["bytes"]), float(raw["seconds"]))


@dataclass(frozen=True)
class ItemAccount:
    """The transfer of one item of data into a leg, and its cost."""

    name: str
    arrived: bool = True
    #: It was in the cache, or already in place.
    found: bool = False
    #: The scheduler's own transfer brought it, in `seconds`.
    carried: bool = False
    seconds: float = 0.0
    bytes: int = 0
    #: Seconds that the leg waited for it.
    waited: float = 0.0
    #: What verified it: "pinned", "source" or "nobody".
    vouched: str = ""
    sources: tuple[str, ...] = ()
    #: By error kind.
    troubles: Mapping[str, ErrorTotal] = field(default_factory=dict)
    #: The error kind for which it did not arrive; empty if it did, or if that is not known.
    failed: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        raw: dict[str, Any] = {
            "name": self.name,
            "arrived": self.arrived,
            "found": self.found,
            "carried": self.carried,
            "seconds": self.seconds,
            "bytes": self.bytes,
            "waited": self.waited,
            "vouched": self.vouched,
            "sources": list(self.sources),
            "troubles": {kind: total.to_dict() for kind, total in self.troubles.items()},
            "failed": self.failed,
        }
        return {key: value for key, value in raw.items() if value or key in ("name", "arrived")}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> ItemAccount:
        """Read the JSON form."""
        return cls(
            name=str(raw.get("name", "")),
            arrived=bool(raw.get("arrived", True)),
            found=bool(raw.get("found", False)),
            carried=bool(raw.get("carried", False)),
            seconds=float(raw.get("seconds", 0.0)),
            bytes=int(raw.get("bytes", 0)),
            waited=float(raw.get("waited", 0.0)),
            vouched=str(raw.get("vouched", "")),
            sources=tuple(raw.get("sources", ())),
            troubles={kind: ErrorTotal.from_dict(cost) for kind, cost in raw.get("troubles", {}).items()},
            failed=str(raw.get("failed", "")),
        )


@dataclass(frozen=True)
class LegAccount:
    """The account of a leg: phases, saves, data and end, as the node program logged them."""

    host: str = ""
    outcome: Outcome | None = None
    #: Phases in order, with their seconds.
    spans: tuple[tuple[Phase, float], ...] = ()
    #: The last saves, and the sum of all; None: none was logged.
    saves: tuple[Save, ...] = ()
    saved: Saved | None = None
    #: Seconds that the training waited for saves.
    saving: float = 0.0
    #: What the training used: seconds of CPU time, the most bytes of memory, the share of the time in which
    #: its GPUs were busy; None: not measured.
    cpu: float | None = None
    resident: int | None = None
    gpu: float | None = None
    #: A checkpoint was searched for; `resumed` is its step, None: there was none.
    loaded: bool = False
    resumed: int | None = None
    code: int | None = None
    signal: int | None = None
    notes: tuple[str, ...] = ()
    data: tuple[ItemAccount, ...] = ()

    @property
    def logged(self) -> float:
        """Seconds that the node program logged."""
        return sum(seconds for _, seconds in self.spans)

    @property
    def computed(self) -> float:
        """Seconds in the compute phase."""
        return sum(seconds for phase, seconds in self.spans if phase is Phase.COMPUTE)

    @property
    def saved_step(self) -> int | None:
        """The step of the last save; None if there was none, or it has no number."""
        return self.saves[-1].step if self.saves else None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        raw: dict[str, Any] = {
            "host": self.host,
            "outcome": self.outcome.value if self.outcome is not None else None,
            "spans": [[phase.value, round(seconds, 3)] for phase, seconds in self.spans],
            "saves": [[round(save.offset, 3), save.step] for save in self.saves],
            "saving": round(self.saving, 3),
            "saved": self.saved.to_dict() if self.saved is not None else None,
            "cpu": self.cpu,
            "resident": self.resident,
            "gpu": self.gpu,
            "loaded": self.loaded,
            "resumed": self.resumed,
            "code": self.code,
            "signal": self.signal,
            "notes": list(self.notes),
            "data": [item.to_dict() for item in self.data],
        }
        return {key: value for key, value in raw.items() if value or (key in _MEASURED and value is not None)}


#: Values of which 0 is not the same as unknown.
_MEASURED = ("cpu", "gpu")


@dataclass(frozen=True)
class AttemptAccount(LegAccount):
    """The whole attempt: the last start of its job, the earlier ones, and facts from the scheduler.

    `host` and `outcome` are empty here: `Attempt` has them.
    """

    #: Seconds that it held its slot; None: unknown.
    slot: float | None = None
    #: Seconds that its job waited in the queue, before its first start and between starts.
    queue: float = 0.0
    #: The last lines of its output.
    tail: tuple[str, ...] = ()
    #: The most memory that it used, in bytes.
    memory: int | None = None
    #: Seconds of `slot` in which the scheduler transferred input: before the last start, for failed starts.
    bringing: float = 0.0
    in_vain: float = 0.0
    earlier: tuple[LegAccount, ...] = ()

    @property
    def legs(self) -> tuple[LegAccount, ...]:
        """All starts of its job, in order."""
        return (*self.earlier, self)

    @property
    def items(self) -> Iterator[ItemAccount]:
        """The data of all starts."""
        for leg in self.legs:
            yield from leg.data

    @property
    def slot_seconds(self) -> float:
        """Seconds that it held its slot; 0 if unknown."""
        return self.slot or 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; empty if nothing is known about the attempt."""
        raw: dict[str, Any] = {} if self.slot is None else {"slot": self.slot}
        rest = {
            "queue": round(self.queue, 3),
            "tail": list(self.tail),
            "earlier": [leg.to_dict() for leg in self.earlier],
            "memory": self.memory,
            "bringing": self.bringing,
            "in_vain": self.in_vain,
        }
        return {**raw, **super().to_dict(), **{key: value for key, value in rest.items() if value}}


def read_account(raw: Mapping[str, Any]) -> AttemptAccount:
    """Read the JSON form of an attempt's account."""
    account = object.__new__(AttemptAccount)  # the constructor of a frozen class takes longer
    account.__dict__.update(_DEFAULTS)
    account.__dict__.update({key: _READERS[key](raw[key]) for key in _READERS.keys() & raw.keys()})
    return account


def _read_leg(raw: Mapping[str, Any]) -> LegAccount:
    return LegAccount(**{key: _LEG_READERS[key](raw[key]) for key in _LEG_READERS.keys() & raw.keys()})


def _read_spans(raw: Iterable[Any]) -> tuple[tuple[Phase, float], ...]:
    return tuple([(_PHASES[name], float(seconds)) for name, seconds in raw])


def _as_it_is(value: Any) -> Any:
    return value


_PHASES = {phase.value: phase for phase in Phase}
_LEG_READERS: Mapping[str, Callable[[Any], Any]] = {
    "host": _as_it_is,
    "outcome": lambda raw: Outcome(raw) if raw else None,
    "spans": _read_spans,
    "saves": lambda raw: tuple([Save(float(offset), step) for offset, step in raw]),
    "saved": lambda raw: Saved.from_dict(raw) if raw else None,
    "saving": lambda raw: float(raw or 0.0),
    "cpu": _as_it_is,
    "resident": _as_it_is,
    "gpu": _as_it_is,
    "loaded": bool,
    "resumed": _as_it_is,
    "code": _as_it_is,
    "signal": _as_it_is,
    "notes": tuple,
    "data": lambda raw: tuple(map(ItemAccount.from_dict, raw or ())),
}
#: How to read the value of each key; one that is missing has its default.
_READERS: Mapping[str, Callable[[Any], Any]] = {
    **_LEG_READERS,
    "slot": lambda raw: None if raw is None else float(raw),
    "queue": lambda raw: float(raw or 0.0),
    "tail": tuple,
    "memory": _as_it_is,
    "bringing": lambda raw: float(raw or 0.0),
    "in_vain": lambda raw: float(raw or 0.0),
    "earlier": lambda raw: tuple(map(_read_leg, raw or ())),
}
_DEFAULTS = vars(AttemptAccount())


def sum_errors(items: Iterable[ItemAccount]) -> dict[str, ErrorTotal]:
    """Sum the data errors of `items` by kind, the most costly first."""
    sums: dict[str, ErrorTotal] = {}
    for item in items:
        for kind, total in item.troubles.items():
            sums[kind] = sums.get(kind, ErrorTotal()) + total
    return dict(sorted(sums.items(), key=lambda pair: -pair[1].seconds))

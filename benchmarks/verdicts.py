"""What was measured, beside what it should be: rows of a table, or of JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from measuring import table

Measured = TypeVar("Measured")


@dataclass(frozen=True)
class Goal:
    """Either end may be open."""

    least: float | None = None
    most: float | None = None

    def __str__(self) -> str:
        ends = (("≥", self.least), ("≤", self.most))
        return ", ".join("%s %g" % (sign, end) for sign, end in ends if end is not None)

    def is_met(self, value: float) -> bool:
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


@dataclass(frozen=True)
class Row:
    """One measurement. `value` is None where it cannot be had here, and `beside` says why."""

    name: str
    value: float | None
    unit: str = ""
    goal: Goal | None = None
    beside: str = ""
    #: For those who compute with it.
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "not here"
        if self.goal is None:
            return ""
        return "met" if self.goal.is_met(self.value) else "MISSED"

    def cells(self) -> tuple[str, ...]:
        shown = "" if self.value is None else ("%.2f %s" % (self.value, self.unit)).strip()
        return (self.name, shown, str(self.goal or ""), self.verdict, self.beside)

    def to_dict(self) -> dict[str, Any]:
        goal = self.goal or Goal()
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "least": goal.least,
            "most": goal.most,
            "verdict": self.verdict,
            "beside": self.beside,
            **self.details,
        }


def show(title: str, rows: Sequence[Row]) -> None:
    table(title, ("", "measured", "goal", "verdict", ""), [row.cells() for row in rows])


def as_json(found: Mapping[str, Sequence[Row]]) -> str:
    told = {name: [row.to_dict() for row in rows] for name, rows in found.items()}
    return json.dumps(told, indent=2, ensure_ascii=False)


def in_turns(cases: Mapping[str, Callable[[], Measured]], rounds: int) -> dict[str, list[Measured]]:
    """All cases one after the other, then again: what else the machine does hits them alike."""
    found: dict[str, list[Measured]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            found[name].append(case())
    return found


def ratio(ours: Iterable[float], theirs: Iterable[float]) -> float:
    """Of those that were measured in the same round; the median over the rounds."""
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))

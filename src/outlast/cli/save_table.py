"""What saving did and what it cost, as `explain` and `report` show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from outlast.cli.common import table
from outlast.domain import save_costs
from outlast.domain.ledger import Booking, Use, total
from outlast.domain.save_costs import SaveCosts
from outlast.text import counted, printable
from outlast.units import show_duration


def facts(bookings: Sequence[Booking]) -> dict[str, Any]:
    """For `--json`: of all of these together, and the work that was lost after the last save."""
    sums = asdict(save_costs.total(booking.saving for booking in bookings))
    return {**sums, "lost": total(bookings)[Use.LOST_WORK]}


def in_attempt(step: int | None, its: SaveCosts) -> list[tuple[str, str]]:
    """The lines of one attempt, each with its first word."""
    lines = []
    cost = ""
    if its.saves:
        cost = "%s, for which the training waited %s" % (
            counted(its.saves, "save"),
            show_duration(its.blocked),
        )
        cost += " (%s of %s)" % (_share(its), show_duration(its.computed)) if its.computed else ""
    if step is not None or cost:
        lines.append(("saved", ": ".join(filter(None, ("step %d" % step if step is not None else "", cost)))))
    if its.why:
        lines.append(("rhythm", printable(its.why)))
    return lines


def as_table(runs: Mapping[str, Sequence[Booking]]) -> str:
    """By run; empty if nothing was told of any save."""
    rows = []
    for name, bookings in runs.items():
        sums = save_costs.total(booking.saving for booking in bookings)
        if not sums.saves:
            continue
        lost = total(bookings)[Use.LOST_WORK]
        rows.append(
            (
                name,
                format(sums.saves, ","),
                show_duration(sums.blocked),
                _share(sums),
                show_duration(sums.slowest),
                format(sums.interruptions, ","),
                show_duration(lost) if lost else "-",
                # Why the very last one was made matters less than the rhythm it broke.
                printable(sums.why.rpartition("; else ")[2]),
            )
        )
    head = ("RUN", "SAVES", "WAITED", "SHARE", "SLOWEST", "INTERRUPTED", "LOST WORK", "RHYTHM")
    return table(head, rows, right=range(1, 7)) if rows else ""


def _share(its: SaveCosts) -> str:
    percent = 100 * its.share
    return "%.1f %%" % percent if percent >= 0.05 or not percent else "<0.1 %"

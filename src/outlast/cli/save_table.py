"""The saves of attempts and runs and what they cost, as `explain` and `report` show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outlast.cli.common import table
from outlast.domain import save_costs
from outlast.domain.ledger import Booking, Use, total
from outlast.domain.save_costs import SaveCosts
from outlast.text import counted, printable
from outlast.units import show_duration


def as_json(bookings: Sequence[Booking]) -> dict[str, Any]:
    """Return the save costs of these attempts together, and the work lost after the last save."""
    sums = save_costs.total(booking.saving for booking in bookings)
    return {**vars(sums), "lost": total(bookings)[Use.LOST_WORK]}


def attempt_lines(step: int | None, costs: SaveCosts) -> list[tuple[str, str]]:
    """Return label and text of each line of one attempt; `step` is the last one saved."""
    lines = []
    cost = ""
    if costs.saves:
        cost = "%s, training waited %s" % (counted(costs.saves, "save"), show_duration(costs.blocked))
        cost += " (%s of %s)" % (_show_share(costs), show_duration(costs.computed)) if costs.computed else ""
    if step is not None or cost:
        lines.append(("saved", "; ".join(filter(None, ("step %d" % step if step is not None else "", cost)))))
    if costs.why:
        lines.append(("last save", printable(costs.why)))
    return lines


def as_table(runs: Mapping[str, Sequence[Booking]]) -> str:
    """Return one line per run; empty if no run has reported a save."""
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
                _show_share(sums),
                show_duration(sums.slowest),
                format(sums.interruptions, ","),
                show_duration(lost) if lost else "-",
                # The last save may have had a reason of its own; the regular interval follows it.
                printable(sums.why.rpartition("; else ")[2]),
            )
        )
    head = ("RUN", "SAVES", "WAITED", "SHARE", "SLOWEST", "INTERRUPTED", "LOST WORK", "SAVE INTERVAL")
    return table(head, rows, right=range(1, 7), most_lines=9) if rows else ""


def _show_share(costs: SaveCosts) -> str:
    percent = 100 * costs.share
    return "%.1f %%" % percent if percent >= 0.05 or not percent else "<0.1 %"

"""The time that data cost an attempt, and the parser for the lines about data in event logs.

Event logs come from other machines: names are cut, and impossible numbers and unknown kinds are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from outlast.domain import untrusted
from outlast.domain.accounts import AttemptAccount, ErrorTotal, ItemAccount, LegAccount, sum_errors
from outlast.node.staging.errors import ErrorKind

#: The most items of one leg that are kept, and the longest name in characters.
MOST = 50
_LONGEST = 200


def read_item(line: Mapping[str, Any]) -> ItemAccount:
    """Read one line of an event log about an item; `waited` are the seconds that the leg waited for it."""
    sources = line.get("sources")
    names = [untrusted.text(name, _LONGEST) for name in sources][:10] if isinstance(sources, Mapping) else []
    carried = line.get("carried") is True
    return ItemAccount(
        name=untrusted.text(line.get("name"), _LONGEST),
        arrived=line.get("arrived") is not False,
        found=line.get("found") is True,
        carried=carried,
        seconds=round(_seconds(line.get("seconds")), 3) if carried else 0.0,
        bytes=_count(line.get("bytes")),
        waited=round(_seconds(line.get("waited")), 3),
        vouched=untrusted.text(line.get("vouched"), 20),
        sources=tuple(names),
        troubles=dict(_errors(line.get("troubles"))),
        failed=failed if isinstance(failed := line.get("failed"), str) and failed in _KINDS else "",
    )


_KINDS = frozenset(kind.value for kind in ErrorKind)


def _errors(raw: object) -> Iterator[tuple[str, ErrorTotal]]:
    for kind, cost in raw.items() if isinstance(raw, Mapping) else ():
        if kind in _KINDS and isinstance(cost, Mapping):
            seconds = round(_seconds(cost.get("seconds")), 3)
            yield kind, ErrorTotal(_count(cost.get("count")), _count(cost.get("bytes")), seconds)


def _count(value: object) -> int:
    return untrusted.integer(value) or 0


def _seconds(value: object) -> float:
    return max(0.0, untrusted.seconds(value) or 0.0)


@dataclass(frozen=True)
class DataCost:
    """Seconds that data cost: in transfer, and lost to errors."""

    transfer: float
    lost: float


_NOTHING = DataCost(0.0, 0.0)


def cost_in_leg(leg: LegAccount, most: float) -> DataCost:
    """Return what data cost one leg in its stage phase, which took `most` seconds."""
    if not leg.data:
        return _NOTHING
    waited = min(most, sum(item.waited for item in leg.data))
    lost = min(waited, _lost(item for item in leg.data if not item.carried))
    return DataCost(waited - lost, lost)


def cost_before_start(account: AttemptAccount) -> DataCost:
    """Return what the scheduler's own transfers cost before the job began, over all its starts."""
    if not account.in_vain and not account.bringing:
        return _NOTHING
    slot = account.slot_seconds
    failed = min(slot, account.in_vain)
    brought = min(slot - failed, account.bringing)
    lost = min(brought, _lost(item for item in account.items if item.carried))
    return DataCost(brought - lost, failed + lost)


def _lost(items: Iterable[ItemAccount]) -> float:
    return sum(total.seconds for total in sum_errors(items).values())

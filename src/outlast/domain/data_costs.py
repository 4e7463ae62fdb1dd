"""What is known of the data of an attempt: as the node logged it, checked, and summed for people.

A node's log comes from outside: names, numbers and kinds are taken as far as they make sense.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from outlast.node.staging.errors import ErrorKind

#: Items of one attempt that are kept.
MOST = 50
_LONGEST = 200


def read_item(line: Mapping[str, Any]) -> dict[str, Any]:
    """One line of an event log that tells of an item; `waited` are the seconds that it took the attempt."""
    sources = line.get("sources")
    names = [str(name)[:_LONGEST] for name in sources][:10] if isinstance(sources, Mapping) else []
    item = {
        "name": str(line.get("name", ""))[:_LONGEST],
        "arrived": line.get("arrived") is not False,
        "found": line.get("found") is True,
        "carried": line.get("carried") is True,
        "seconds": round(_seconds(line.get("seconds")), 3) if line.get("carried") is True else 0.0,
        "bytes": _count(line.get("bytes")),
        "waited": round(_seconds(line.get("waited")), 3),
        "vouched": str(line.get("vouched", ""))[:20],
        "sources": names,
        "troubles": dict(_troubles(line.get("troubles"))),
    }
    return {key: value for key, value in item.items() if value or key in ("name", "arrived")}


def _troubles(raw: object) -> Iterator[tuple[str, dict[str, Any]]]:
    known = {kind.value for kind in ErrorKind}
    for kind, cost in raw.items() if isinstance(raw, Mapping) else ():
        if kind in known and isinstance(cost, Mapping):
            yield (
                kind,
                {
                    "count": _count(cost.get("count")),
                    "bytes": _count(cost.get("bytes")),
                    "seconds": round(_seconds(cost.get("seconds")), 3),
                },
            )


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else 0


def _seconds(value: object) -> float:
    good = isinstance(value, (int, float)) and math.isfinite(value) and value >= 0
    return float(value) if good and isinstance(value, (int, float)) else 0.0


@dataclass(frozen=True)
class DataCost:
    """Seconds that data took: on its way, and held up by troubles."""

    arriving: float
    troubled: float


def spent(account: Mapping[str, Any], most: float) -> DataCost:
    """In one start of a job, in its own phase for that, whose seconds are `most`."""
    items = account.get("data", ())
    waited = min(most, sum(float(item.get("waited", 0.0)) for item in items))
    lost = min(waited, _lost(item for item in items if not item.get("carried")))
    return DataCost(waited - lost, lost)


def spent_before(account: Mapping[str, Any], slot: float) -> DataCost:
    """In all starts of a job, by the scheduler's own transfer, before the job began; at most `slot`."""
    in_vain = min(slot, float(account.get("in_vain") or 0.0))
    brought = min(slot - in_vain, float(account.get("bringing") or 0.0))
    lost = min(brought, _lost(item for item in items_of(account) if item.get("carried")))
    return DataCost(brought - lost, in_vain + lost)


def _lost(items: Iterable[Mapping[str, Any]]) -> float:
    return sum(float(cost["seconds"]) for cost in troubles_in(items).values())


def items_of(account: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Of all starts of the attempt's job."""
    for leg in (*account.get("earlier", ()), account):
        yield from leg.get("data", ())


def troubles_in(items: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Summed by kind, the most costly first."""
    sums: dict[str, dict[str, Any]] = {}
    for item in items:
        for kind, cost in item.get("troubles", {}).items():
            total = sums.setdefault(kind, {"count": 0, "bytes": 0, "seconds": 0.0})
            for key in total:
                total[key] += cost[key]
    return dict(sorted(sums.items(), key=lambda pair: -pair[1]["seconds"]))

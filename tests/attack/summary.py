"""The section about random walks at the end of a test run: what was done, lost, doubled and not booked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

#: The account of one walk, as plain values.
Figures = Mapping[str, Any]
#: The property of a test report that has them.
PROPERTY = "walk"
_COUNTS = ("acts", "runs", "retried", "lost", "doubled", "ledgers open")


def describe(walk: Figures) -> str:
    """Return a line about one walk."""
    kinds = ", ".join("%s %d" % item for item in sorted(walk["kinds"].items()))
    line = "%-8s seed %d: %s; attacked for %d s, ended after %d s (%s)" % (
        *(walk["cluster"], walk["seed"], _counts([walk])),
        *(walk["attacked"], walk["lasted"], kinds),
    )
    return line + "; FAILED: " + walk["failure"] if walk["failure"] else line


def summarize(walks: Sequence[Figures]) -> Iterator[str]:
    """Yield a line for each walk, the sums of each cluster, and how to repeat one."""
    ordered = sorted(walks, key=lambda walk: walk["cluster"])
    yield from map(describe, ordered)
    clusters = list(dict.fromkeys(walk["cluster"] for walk in ordered))
    for name in [*clusters, "all"]:
        own = [walk for walk in ordered if name in (walk["cluster"], "all")]
        yield "%-8s walks %d, %s" % (name, len(own), _counts(own))
    yield "OUTLAST_ATTACK_SEED=SEED repeats the choices of a walk"


def _counts(walks: Sequence[Figures]) -> str:
    return ", ".join("%s %d" % (name, sum(walk[name] for walk in walks)) for name in _COUNTS)

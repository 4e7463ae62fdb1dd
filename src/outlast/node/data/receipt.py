"""What a fetch tells: while it runs, and at its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

from outlast.node.data.troubles import Costs


@dataclass(frozen=True)
class Progress:
    done: int
    #: None: nobody has said.
    total: int | None
    #: Bytes per second, over the last seconds.
    rate: float
    #: Who gives at the moment; empty in a pause.
    source: str
    connections: int
    #: The last trouble, until bytes come again.
    trouble: str = ""


@dataclass
class Share:
    """What one source gave."""

    bytes: int = 0
    #: For which it was the one that was asked.
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.bytes / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Receipt:
    bytes: int
    #: Hexadecimal, by algorithm: all that were computed.
    digests: Mapping[str, str]
    #: Which of them were compared, and with whose word: "pinned", "source", or "nobody".
    checked: tuple[str, ...]
    vouched: str
    #: By name, in the order in which they were wanted; those that gave nothing are left out.
    sources: Mapping[str, Share]
    costs: Costs
    seconds: float
    #: How many bytes an earlier process had left.
    resumed_from: int = 0
    #: The most at once.
    connections: int = 1

    def to_dict(self) -> dict[str, Any]:
        return {
            "bytes": self.bytes,
            "digests": dict(self.digests),
            "checked": list(self.checked),
            "vouched": self.vouched,
            "sources": {
                name: {"bytes": share.bytes, "seconds": round(share.seconds, 3)}
                for name, share in self.sources.items()
            },
            "troubles": self.costs.to_dict(),
            "seconds": round(self.seconds, 3),
            "resumed_from": self.resumed_from,
            "connections": self.connections,
        }

"""The decisions of the engine, which the controller carries out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from outlast.domain.model import EntryKind, Run


class DecisionKind(Enum):
    """The action that a decision requires."""

    RECORD = "record"  # append an entry, nothing else
    START = "start"  # a new attempt
    FENCE = "fence"  # make sure that a job that cannot be found never runs
    CANCEL_JOB = "cancel job"
    RELEASE = "release"  # release a held job
    PUBLISH = "publish"  # move the accepted results to results/


@dataclass(frozen=True)
class Decision:
    """An action for a run, and the reason for it."""

    do: DecisionKind
    run: str
    reason: str = ""
    token: str | None = None
    #: The entry to record, once the action has been carried out.
    kind: EntryKind | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


def record(
    run: Run,
    kind: EntryKind,
    token: str | None = None,
    reason: str = "",
    data: Mapping[str, Any] | None = None,
) -> Decision:
    """Return the decision to append an entry; its data is `data` and the reason."""
    return Decision(DecisionKind.RECORD, run.name, reason, token, kind, {"reason": reason, **(data or {})})

"""What the engine can ask the controller to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from outlast.domain.model import EntryKind, Run


class DecisionKind(Enum):
    RECORD = "record"  # append an entry, nothing else
    START = "start"  # a new attempt
    FENCE = "fence"  # make sure that a job which cannot be found will never run
    CANCEL_JOB = "cancel job"
    RELEASE = "release"  # let a held job go on
    PUBLISH = "publish"  # put the accepted results in their place


@dataclass(frozen=True)
class Decision:
    do: DecisionKind
    run: str
    reason: str = ""
    token: str | None = None
    #: For RECORD: the entry.
    kind: EntryKind | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


def record(
    run: Run,
    kind: EntryKind,
    token: str | None = None,
    reason: str = "",
    data: Mapping[str, Any] | None = None,
) -> Decision:
    return Decision(DecisionKind.RECORD, run.name, reason, token, kind, {"reason": reason, **(data or {})})

"""The end of an attempt, as the node program reports it."""

from __future__ import annotations

from dataclasses import dataclass

from outlast.node.outputs.delivery import Manifest
from outlast.node.protocol import STOP_AT_LIMIT, Outcome
from outlast.node.pulse import TAKEN_OVER
from outlast.node.supervise import TO_COMMIT


@dataclass(frozen=True)
class AttemptResult:
    """The end of an attempt: the fields of the event log's last line."""

    outcome: Outcome
    #: One sentence for the user; for wrong outputs, one for each rule that is not kept.
    detail: str
    code: int | None = None
    signal: int | None = None
    signature: str | None = None
    tail: str = ""
    progressed: bool = False
    #: A model or checkpoint in the working directory is new or changed, and the next attempt gets it.
    made: bool = False
    #: It read nothing of what earlier attempts had saved, and has written the same files anew.
    started_over: bool = False
    #: Another attempt would end in the same way.
    lasting: bool = False
    delivered: Manifest | None = None
    #: It may have failed on the checkpoint it began from: the next one can begin before this snapshot. If
    #: `unsure`, that checkpoint was found after a kill and could not be checked.
    go_back: int | None = None
    unsure: bool = False


def stopped_end(why: str, how: str) -> AttemptResult:
    """Return the end of an attempt that was stopped: `why` is in the event "stop", `how` is its end."""
    if why == STOP_AT_LIMIT:
        return AttemptResult(Outcome.OVER_TIME, f"The training was stopped at its wall-time limit and {how}.")
    if why == TO_COMMIT:
        return AttemptResult(
            Outcome.EVICTED, f"The training was stopped so that its checkpoints leave the job, and {how}."
        )
    if why == TAKEN_OVER:
        return AttemptResult(
            Outcome.EVICTED, "The attempt was given up or taken over while this job was still running."
        )
    return AttemptResult(Outcome.EVICTED, f"The job was stopped by a signal, and the training {how}.")

"""Places where the controller may die, by name, so that a test can make it die exactly there.

`reach` does nothing unless OUTLAST_CRASH_AT names the place: then the process kills itself with SIGKILL,
the way the kernel, an administrator or a power cut would.
"""

from __future__ import annotations

import os
import signal

CRASH_POINTS = (
    "submit.requested",  # the request is in the inbox
    "submit.recorded",  # it is in the journal, and still in the inbox
    "submit.removed",  # it is in the journal only
    "start.intended",  # the intent is committed, the scheduler knows nothing
    "start.ordered",  # the work order is written
    "start.submitted",  # the scheduler has answered, the journal knows nothing of it
    "start.recorded",  # the answer is committed
    "observe.polled",  # the scheduler told of its jobs
    "observe.read",  # the node's event logs were read
    "observe.started",  # the start of a job was committed
    "observe.ended",  # the end of an attempt was committed
    "accept.recorded",  # a result was accepted, and is not in its place yet
    "accept.published",  # it is in its place, the journal does not say so
    "accept.finished",  # the run is finished
    "fence.claimed",  # a vanished job was locked out, the journal does not say so
    "fence.recorded",  # the loss was committed
    "cancel.sent",  # the scheduler was told to cancel, the journal does not say so
    "cancel.recorded",
)

_AT = os.environ.get("OUTLAST_CRASH_AT", "")


def reach(point: str) -> None:
    if _AT and point == _AT:
        os.kill(os.getpid(), signal.SIGKILL)

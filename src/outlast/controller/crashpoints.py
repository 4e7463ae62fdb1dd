"""Named crash points: places where a test can kill the controller.

`reach` does nothing unless OUTLAST_CRASH_AT names the point: then the process kills itself with SIGKILL, as
the kernel, an administrator or a power failure would end it.
"""

from __future__ import annotations

import os
import signal

CRASH_POINTS = (
    "submit.requested",  # the request is in the inbox
    "submit.recorded",  # it is in the journal, and still in the inbox
    "submit.removed",  # it is in the journal only
    "start.intended",  # the intent is committed, the scheduler has not been called
    "start.ordered",  # the work order is written
    "start.submitted",  # the scheduler has responded, the journal does not contain that
    "start.recorded",  # the response is committed
    "observe.polled",  # the scheduler has listed its jobs
    "observe.read",  # the node's event logs were read
    "observe.started",  # the start of a job was committed
    "observe.ended",  # the end of an attempt was committed
    "accept.recorded",  # a result was accepted and is not published yet
    "accept.published",  # it is published, the journal does not contain that
    "accept.finished",  # the run is finished
    "fence.claimed",  # a missing job was fenced, the journal does not contain that
    "fence.recorded",  # the end as lost was committed
    "cancel.sent",  # the scheduler was called to cancel, the journal does not contain that
    "cancel.recorded",  # the cancellation was committed
)

_AT = os.environ.get("OUTLAST_CRASH_AT", "")


def reach(point: str) -> None:
    """Kill this process if OUTLAST_CRASH_AT is `point`."""
    if _AT and point == _AT:
        os.kill(os.getpid(), signal.SIGKILL)

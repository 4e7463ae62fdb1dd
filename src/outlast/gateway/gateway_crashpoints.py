"""Named crash points of the gateway: places where a test can kill it (see `controller.crashpoints`)."""

from __future__ import annotations

from outlast.controller.crashpoints import reach

__all__ = ["CRASH_POINTS", "reach"]

CRASH_POINTS = (
    "gateway.taken",  # messages were taken from the broker, and are nowhere else
    "gateway.recorded",  # they are in the record, the broker does not know that
    "gateway.acked",  # they were acknowledged, and not interpreted
    "gateway.interpreted",  # requests were accepted or refused, nothing follows from that yet
    "gateway.requested",  # a run was handed to the controller, the record does not contain that
    "gateway.submitted",  # the record contains it
    "gateway.followed",  # the end of a run was read from the journal and is in the record
    "gateway.encoded",  # the answer is a file, the outbox does not contain it
    "gateway.stored",  # the answer is in the outbox
    "gateway.published",  # it was handed to the broker
    "gateway.confirmed",  # the broker has confirmed it, the record does not contain that
    "gateway.answered",  # the record contains it
)

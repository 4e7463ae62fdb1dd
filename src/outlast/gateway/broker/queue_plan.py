"""Which queues are consumed, and how each is created if it does not exist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outlast.gateway.broker.link_health import parse_version
from outlast.gateway.settings import QueueSettings

#: How often a message is delivered before it is dead-lettered: RabbitMQ's own default since 4.0.
DELIVERY_LIMIT = 20


@dataclass(frozen=True)
class Creation:
    """The properties with which a queue is created."""

    durable: bool
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class QueuePlan:
    """A queue to consume."""

    name: str
    dialect: str
    #: Messages that expired or were delivered too often are put there; empty: they are dropped.
    dead_letters: str = ""
    #: It is such a queue itself: only there is a death in the headers the broker's.
    is_dead_letters: bool = False
    create: bool = True

    def creation(self, version: str) -> Creation:
        """Return how it is created on a broker of this version."""
        if self.dialect == "rodan":
            # Rodan declares its queues exactly so; with anything else its own declaration would fail.
            return Creation(durable=False)
        numbers = parse_version(version) or (0, 0)
        if numbers < (3, 8):
            return Creation(durable=True, arguments=self._dead_letter_arguments())
        arguments: dict[str, Any] = {"x-queue-type": "quorum"}
        if self.dead_letters:
            arguments |= {"x-delivery-limit": DELIVERY_LIMIT, **self._dead_letter_arguments()}
            if numbers >= (3, 10):
                # Without these, a message can be lost on its way to the dead letters.
                arguments |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
        return Creation(durable=True, arguments=arguments)

    def _dead_letter_arguments(self) -> dict[str, Any]:
        if not self.dead_letters:
            return {}
        return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": self.dead_letters}


def plan_queues(queues: Sequence[QueueSettings]) -> tuple[QueuePlan, ...]:
    """Return a plan for every queue, those of dead letters first: they must exist before anything expires."""
    dead = {
        queue.dead_letters: QueuePlan(
            queue.dead_letters, "outlast", is_dead_letters=True, create=queue.declare
        )
        for queue in queues
        if queue.dead_letters
    }
    plans = [
        QueuePlan(queue.name, queue.dialect, queue.dead_letters, create=queue.declare) for queue in queues
    ]
    return (*dead.values(), *(plan for plan in plans if plan.name not in dead))

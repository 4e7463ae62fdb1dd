"""The state of a running gateway, for metrics and health checks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

from outlast import __version__
from outlast.gateway.broker.link_health import LinkHealth
from outlast.gateway.monitoring.metrics import GatewayState
from outlast.gateway.record.record import Record


class StateView:
    """Counts events, and replaces the state that `snapshot` returns, which any thread may call."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._events: Counter[str] = Counter()
        self._answers: Counter[tuple[str, str]] = Counter()
        self._results: Counter[str] = Counter()
        self._codes: dict[object, tuple[str, str]] = {}
        self._errors: Counter[str] = Counter()
        self._troubles: Mapping[str, str] = {}
        self._passes = 0
        self._messages = 0
        self._state = GatewayState(version=__version__, started=started)

    def count(self, event: str, facts: Mapping[str, object]) -> None:
        """Count a decision; a listener of the audit log."""
        self._events[event] += 1
        if event in ("ended", "refused"):
            self._codes[facts.get("request")] = (str(facts.get("template", "")), str(facts.get("code", "")))
        elif event == "answered":
            self._answers[self._codes.pop(facts.get("request"), ("", "unknown"))] += 1
            self._results["confirmed"] += 1
        elif event == "put-off":
            self._results[str(facts.get("result"))] += 1

    def update(
        self,
        record: Record | None,
        health: LinkHealth,
        troubles: Mapping[str, str],
        *,
        messages: int,
        passes: int,
        pass_seconds: float,
        draining: bool,
    ) -> None:
        """Replace the state; called by the loop from time to time. None: the record cannot be read now."""
        for name in troubles:
            if name not in self._troubles:
                self._errors[name] += 1
        self._troubles = dict(troubles)
        last = self._state
        waiting, oldest, counts = last.outbox, last.outbox_oldest, last.requests
        if record is not None:
            waiting, oldest = record.waiting_answers()
            counts = {
                (state, template): number
                for template, states in record.counts().items()
                for state, number in states.items()
            }
        self._state = GatewayState(
            version=__version__,
            started=self._started,
            requests=counts,
            messages=messages,
            quarantined=self._events["quarantined"],
            answers=dict(self._answers),
            publications=dict(self._results),
            outbox=waiting,
            outbox_oldest=oldest,
            broker_up_since=health.connected_since,
            broker_down_since=health.down_since,
            broker_reason=health.trouble,
            passes=passes,
            last_pass=time.time() if record is not None else last.last_pass,
            pass_seconds=pass_seconds,
            scheduler_errors=dict(self._errors),
            draining=draining,
            problems=tuple("%s: %s" % each for each in sorted(troubles.items())),
        )

    def snapshot(self) -> GatewayState:
        """Return the state as of the last update."""
        return self._state

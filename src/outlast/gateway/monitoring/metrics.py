"""The state of a gateway as metrics in Prometheus' text format, and whether it is healthy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from outlast.units import show_duration

#: Seconds after which something that does not move makes a gateway unhealthy: no connection to the broker, no
#: pass of the loop, an answer that the broker does not take.
BROKER_PATIENCE = 30.0
PASS_PATIENCE = 120.0
OUTBOX_PATIENCE = 900.0

_PREFIX = "outlast_gateway_"
_Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class GatewayState:
    """What a gateway knows about itself. Times are seconds since 1970; counts begin with the process."""

    version: str = ""
    started: float = 0.0
    #: Requests now, by state and template.
    requests: Mapping[tuple[str, str], int] = field(default_factory=dict)
    #: Messages taken from the broker, and those put aside.
    messages: int = 0
    quarantined: int = 0
    #: Answers confirmed by the broker, by template and code: `finished`, or that of the failure.
    answers: Mapping[tuple[str, str], int] = field(default_factory=dict)
    #: Outcomes of publications, by `PublishResult`.
    publications: Mapping[str, int] = field(default_factory=dict)
    #: Answers that the broker has not confirmed, and when the oldest of them was made.
    outbox: int = 0
    outbox_oldest: float | None = None
    #: One of them is None. `broker_reason`: why there is no connection, or why the broker takes nothing.
    broker_up_since: float | None = None
    broker_down_since: float | None = None
    broker_reason: str = ""
    #: Seconds with and without a connection, up to the last change.
    broker_up_seconds: float = 0.0
    broker_down_seconds: float = 0.0
    #: Passes of the service's loop, the time of the last one and its duration in seconds.
    passes: int = 0
    last_pass: float | None = None
    pass_seconds: float = 0.0
    #: Errors of schedulers and journals, by template.
    scheduler_errors: Mapping[str, int] = field(default_factory=dict)
    draining: bool = False
    #: Further reasons why it is not healthy, such as a full disk.
    problems: tuple[str, ...] = ()


def unhealthy_reasons(state: GatewayState, now: float) -> list[str]:
    """Return why a gateway is not healthy; empty if it is."""
    reasons = list(state.problems)
    down = state.broker_down_since
    if down is not None and now - down > BROKER_PATIENCE:
        reason = state.broker_reason or "no connection"
        reasons.append("broker: %s for %s" % (reason, show_duration(now - down)))
    idle_since = state.started if state.last_pass is None else state.last_pass
    if now - idle_since > PASS_PATIENCE:
        reasons.append("the service has not finished a pass for %s" % show_duration(now - idle_since))
    if state.outbox_oldest is not None and now - state.outbox_oldest > OUTBOX_PATIENCE:
        age = show_duration(now - state.outbox_oldest)
        reasons.append("an answer waits for the broker's confirm for %s" % age)
    return reasons


def render_metrics(state: GatewayState, now: float) -> str:
    """Return the metrics as text (version 0.0.4 of the format)."""
    lines: list[str] = []
    for name, kind, text, samples in _families(state, now):
        lines.append("# HELP %s%s %s" % (_PREFIX, name, text))
        lines.append("# TYPE %s%s %s" % (_PREFIX, name, kind))
        lines += [_sample(name, labels, value) for labels, value in samples]
    return "\n".join(lines) + "\n"


def _families(state: GatewayState, now: float) -> Iterator[tuple[str, str, str, list[tuple[_Labels, float]]]]:
    """Yield name, type, help and samples of each metric."""

    def one(value: float) -> list[tuple[_Labels, float]]:
        return [((), value)]

    def by(label: str, values: Mapping[str, int]) -> list[tuple[_Labels, float]]:
        return [(((label, key),), count) for key, count in sorted(values.items())]

    def by_two(first: str, second: str, values: Mapping[tuple[str, str], int]) -> list[tuple[_Labels, float]]:
        return [(((first, a), (second, b)), count) for (a, b), count in sorted(values.items())]

    up, down = state.broker_up_since, state.broker_down_since
    yield "info", "gauge", "The version.", [((("version", state.version),), 1)]
    yield "start_time_seconds", "gauge", "When the gateway was started.", one(state.started)
    yield "requests", "gauge", "Requests now.", by_two("state", "template", state.requests)
    yield "messages_total", "counter", "Messages taken from the broker.", one(state.messages)
    yield "quarantined_total", "counter", "Messages put aside.", one(state.quarantined)
    yield (
        "answers_total",
        "counter",
        "Answers that the broker has confirmed.",
        by_two("template", "code", state.answers),
    )
    yield "publications_total", "counter", "Outcomes of publications.", by("result", state.publications)
    yield "outbox_answers", "gauge", "Answers that are not confirmed.", one(state.outbox)
    yield (
        "outbox_oldest_age_seconds",
        "gauge",
        "Age of the oldest answer that is not confirmed.",
        one(_age(state.outbox_oldest, now)),
    )
    yield "broker_up", "gauge", "1 if connected to the broker.", one(0 if up is None else 1)
    yield (
        "broker_up_seconds_total",
        "counter",
        "Seconds with a connection.",
        one(state.broker_up_seconds + _age(up, now)),
    )
    yield (
        "broker_down_seconds_total",
        "counter",
        "Seconds without a connection.",
        one(state.broker_down_seconds + _age(down, now)),
    )
    yield "passes_total", "counter", "Passes of the service's loop.", one(state.passes)
    yield "last_pass_age_seconds", "gauge", "Since the end of the last pass.", one(_age(state.last_pass, now))
    yield "pass_seconds", "gauge", "Duration of the last pass.", one(state.pass_seconds)
    yield (
        "scheduler_errors_total",
        "counter",
        "Errors of schedulers and journals.",
        by("template", state.scheduler_errors),
    )
    yield "draining", "gauge", "1 if no request is taken.", one(int(state.draining))
    yield "healthy", "gauge", "1 if healthy.", one(0 if unhealthy_reasons(state, now) else 1)


def _age(since: float | None, now: float) -> float:
    return 0.0 if since is None else max(0.0, now - since)


def _sample(name: str, labels: _Labels, value: float) -> str:
    pairs = ",".join('%s="%s"' % (key, _escape(text)) for key, text in labels)
    number = "%d" % value if float(value).is_integer() else "%.3f" % value
    return "%s%s%s %s" % (_PREFIX, name, "{%s}" % pairs if pairs else "", number)


def _escape(text: str) -> str:
    return text[:200].replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

"""`outlast gateway status`: whether it runs and is connected, and what waits. Imports little."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.common import (
    add_colour,
    json_option,
    show_argument,
    show_time,
    table,
    wrap_line,
    write_json,
)
from outlast.cli.gateway_common import gateway_argument, gateway_at, open_record
from outlast.gateway.gateway_directory import GatewayDirectory
from outlast.gateway.monitoring.heartbeat import Heartbeat, read_heartbeat
from outlast.gateway.requests import RequestState
from outlast.text import counted, printable
from outlast.units import show_duration

if TYPE_CHECKING:
    from outlast.gateway.record.record import Record
    from outlast.gateway.record.rows import RecordedAnswer

#: The states that a request may have once it is recorded.
STATES = tuple(state for state in RequestState if state is not RequestState.RECEIVED)
#: The line for requests that named none of the gateway's templates.
OTHERS = "(others)"
_INDENT = 12


@dataclass(frozen=True)
class _GatewaySight:
    """What can be seen of a gateway now."""

    heartbeat: Heartbeat | None
    counts: Mapping[str, Mapping[str, int]]
    answers: int
    oldest: RecordedAnswer | None
    quarantined: int
    draining: bool
    #: The last `up` or `tick` did not end by itself, or is still running.
    started: bool

    @property
    def alive(self) -> bool:
        return self.heartbeat is not None and self.heartbeat.alive

    def count(self, *states: RequestState) -> int:
        """Return the number of requests in these states."""
        return sum(by_state.get(state.value, 0) for by_state in self.counts.values() for state in states)


@click.command()
@gateway_argument
@json_option
def command(directory: Path, as_json: bool) -> None:
    """Show whether the gateway runs and is connected, what waits, and what to type next."""
    gateway = gateway_at(directory)
    with open_record(gateway, directory) as record:
        sight = _look(gateway, record)
    if as_json:
        write_json(_as_json(sight))
        return
    for line in _lines(sight, directory):
        click.echo(wrap_line(line, _INDENT))


def _look(gateway: GatewayDirectory, record: Record) -> _GatewaySight:
    answers, _ = record.waiting_answers()
    return _GatewaySight(
        heartbeat=read_heartbeat(gateway.heartbeat),
        counts=_by_template(gateway, record.counts()),
        answers=answers,
        oldest=record.oldest_waiting_answer() if answers else None,
        quarantined=record.count_quarantined(),
        draining=record.about("drain") == "yes",
        started=record.about("running") == "yes",
    )


def _by_template(
    gateway: GatewayDirectory, counts: Mapping[str, Mapping[str, int]]
) -> dict[str, dict[str, int]]:
    """Return the counts of the gateway's templates; a request can name any other, which are added up."""
    known: set[str] = set()
    for place in (gateway.templates, gateway.experiments):
        with suppress(OSError):
            known.update(path.name for path in place.iterdir())
    found: dict[str, dict[str, int]] = {}
    for template in sorted(counts):
        line = found.setdefault(template if template in known else OTHERS, {})
        for state, number in counts[template].items():
            line[state] = line.get(state, 0) + number
    return found


def _as_json(sight: _GatewaySight) -> dict[str, Any]:
    heartbeat, oldest = sight.heartbeat, sight.oldest
    return {
        "running": sight.alive,
        "connected": sight.alive and bool(heartbeat and heartbeat.connected_since),
        "gateway": vars(heartbeat) if heartbeat else None,
        "draining": sight.draining,
        "requests": sight.counts,
        "answers": {
            "waiting": sight.answers,
            "oldest": oldest.made if oldest else None,
            "tries": oldest.tries if oldest else None,
            "reason": oldest.reason if oldest else None,
        },
        "quarantined": sight.quarantined,
    }


def _lines(sight: _GatewaySight, directory: Path) -> Iterator[str]:
    yield "gateway     %s" % _describe_process(sight)
    if sight.alive and sight.heartbeat is not None:
        yield from _describe_connection(sight.heartbeat)
    if sight.draining:
        yield "draining    no more requests are taken; `outlast gateway drain --off%s` takes them again" % (
            show_argument(directory)
        )
    if sight.counts:
        yield ""
        head = ("TEMPLATE", *(state.value.upper() for state in STATES))
        rows = [
            (printable(name), *(str(by_state.get(state.value, 0)) for state in STATES))
            for name, by_state in sight.counts.items()
        ]
        yield table(head, rows, right=range(1, len(head)))
        yield ""
    else:
        yield "requests    none yet"
    yield from _describe_answers(sight)
    if sight.quarantined:
        place = show_argument(directory)
        text = "quarantine  %s put aside; `outlast gateway quarantine%s` lists them"
        yield text % (counted(sight.quarantined, "message"), place)
    yield from _advise(sight, show_argument(directory))


def _describe_process(sight: _GatewaySight) -> str:
    heartbeat = sight.heartbeat
    if heartbeat is not None and sight.alive:
        return "%s since %s (pid %d on %s)" % (
            add_colour("running"),
            show_time(heartbeat.started),
            heartbeat.pid,
            printable(heartbeat.host),
        )
    word = add_colour("failed", "not running")
    if heartbeat is not None:
        return "%s; pid %d on %s gave its last sign of life at %s" % (
            word,
            heartbeat.pid,
            printable(heartbeat.host),
            show_time(heartbeat.at),
        )
    return "%s%s" % (word, "; the last one did not stop by itself" if sight.started else "")


def _describe_connection(heartbeat: Heartbeat) -> Iterator[str]:
    reason = printable(heartbeat.reason)
    if heartbeat.connected_since is not None:
        name = printable(heartbeat.broker) or "the broker"
        state = "connected to %s since %s" % (name, show_time(heartbeat.connected_since))
        yield "broker      %s%s" % (state, "; %s" % reason if reason else "")
    else:
        since = " since %s" % show_time(heartbeat.down_since) if heartbeat.down_since else ""
        word = add_colour("failed", "not connected")
        yield "broker      %s%s: %s" % (word, since, reason or "no reason is known yet")
    for name, state in heartbeat.queues.items():
        yield "queue       %s: %s" % (printable(name), printable(state))
    for name, trouble in heartbeat.troubles.items():
        yield "trouble     %s: %s" % (printable(name), printable(trouble))


def _describe_answers(sight: _GatewaySight) -> Iterator[str]:
    oldest = sight.oldest
    if oldest is None:
        return
    age = show_duration(max(0.0, time.time() - oldest.made))
    text = "answers     %s for the broker, the oldest for %s" % (
        "1 waits" if sight.answers == 1 else "%s wait" % format(sight.answers, ","),
        age,
    )
    if oldest.tries:
        text += "; it was tried %s (%s)" % (counted(oldest.tries, "time"), printable(oldest.reason))
    yield text


def _advise(sight: _GatewaySight, place: str) -> Iterator[str]:
    """Yield what to type next."""
    undelivered = sight.count(RequestState.UNDELIVERED)
    if undelivered:
        text = (
            "next        `outlast gateway requests%s --state undelivered` lists what could not be delivered"
        )
        yield text % place
    if not sight.alive:
        left = sight.count(
            RequestState.ACCEPTED, RequestState.RUNNING, RequestState.ENDED, RequestState.REFUSED
        )
        waits = "%s and %s wait for it" % (counted(left, "request"), counted(sight.answers, "answer"))
        text = "next        `outlast gateway up%s` (or `outlast gateway tick%s` from cron)%s"
        yield text % (place, place, "; %s" % waits if left or sight.answers else "")
    elif sight.heartbeat is not None and sight.heartbeat.connected_since is None:
        yield "next        `outlast gateway check%s` shows what is wrong with the connection" % place
    elif not undelivered:
        yield "next        `outlast gateway requests%s` lists requests, `explain ID` shows one" % place

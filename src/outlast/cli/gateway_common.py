"""Helpers that the `gateway` commands share: finding the gateway and the request, and formatting."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.common import is_too_long, show_argument
from outlast.errors import BadInput
from outlast.gateway.gateway_directory import GatewayDirectory
from outlast.gateway.requests import RequestState

if TYPE_CHECKING:
    from outlast.gateway.monitoring.audit import AuditBuffer
    from outlast.gateway.record.record import Record
    from outlast.gateway.record.rows import RecordedAnswer, RecordedRequest

#: Characters of an id in tables, and requests that an ambiguous part of an id is shown to match.
SHORT_ID = 12
MOST_MATCHES = 8

gateway_argument = click.argument("directory", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
gateway_option = click.option(
    "-C", "--directory", "directory", metavar="DIR", default=".", type=click.Path(path_type=Path),
    help="Directory of the gateway, if not the current one.",
)  # fmt: skip


def gateway_at(directory: Path) -> GatewayDirectory:
    """Return the gateway in this directory. Raise BadInput if there is none."""
    root = directory.absolute()
    if root.exists() and not root.is_dir():
        raise BadInput("%s: not a directory; name the directory that contains gateway.yaml" % directory)
    if is_too_long(root):
        raise BadInput("%s: the path is too long for the record of requests; move the gateway" % directory)
    found = GatewayDirectory(root)
    if not found.settings.exists() and not found.record.exists():
        create = shlex.quote(str(directory))
        text = "no such directory" if not root.exists() else "not a gateway: there is no gateway.yaml in it"
        raise BadInput("%s: %s; `outlast gateway init %s` creates one" % (directory, text, create))
    return found


@contextmanager
def open_record(gateway: GatewayDirectory, directory: Path) -> Iterator[Record]:
    """Open the record of requests, and close it afterwards. Raise BadInput if there is none yet.

    `directory` is the gateway's, as the user named it.
    """
    from outlast.gateway.record.record import Record

    if not gateway.record.exists():
        place = show_argument(directory)
        raise BadInput(
            "%s: it has not been started yet; `outlast gateway check%s` checks it, `outlast gateway up%s` "
            "starts it" % (directory, place, place)
        )
    record = Record(gateway.record)
    try:
        yield record
    finally:
        record.close()


@contextmanager
def open_audit(gateway: GatewayDirectory) -> Iterator[AuditBuffer]:
    """Open the audit log: what people do at the command line is a decision, too.

    A log that cannot be written stops nothing; a warning is printed.
    """
    from outlast.gateway.monitoring.audit import Audit, AuditBuffer

    audit = AuditBuffer(Audit(gateway.audit))
    try:
        yield audit
    finally:
        audit.close()
        if audit.trouble:
            click.echo("warning: the audit log was not written: %s" % audit.trouble, err=True)


def require_client_library() -> None:
    """Raise BadInput if the library that speaks to brokers is not installed."""
    from importlib.util import find_spec

    if find_spec("pika") is None:
        raise BadInput(
            "messages to and from a broker need the package pika, which is not installed; type "
            "`pip install 'outlast[gateway]'`"
        )


def find_request(record: Record, text: str) -> RecordedRequest:
    """Return the request with this id, run or number, or the only one whose id or run contains the text.

    Raise BadInput if there is none, or several.
    """
    ids = _possible_ids(text)
    found = next(filter(None, map(record.request_by_id, ids)), None)
    if found is None and text:
        found = record.request_by_run(text)
    if found is None and text.isascii() and text.isdigit() and len(text) < 19:
        found = record.request(int(text))
    if found is not None:
        return found
    matches = record.find_requests(ids[0], MOST_MATCHES + 1) if ids[0] else []
    if len(matches) == 1:
        return matches[0]
    if matches:
        more = ", …" if len(matches) > MOST_MATCHES else ""
        shown = ", ".join("%d (%s)" % (one.number, short_id(one)) for one in matches[:MOST_MATCHES])
        raise BadInput("%s matches several requests: %s%s; type a number" % (text, shown, more))
    raise BadInput("no request has the id, number or run %s; `outlast gateway requests` lists them" % text)


def _possible_ids(text: str) -> list[bytes]:
    """Return the ids that are shown as this text: maybe cut, and escaped once or twice (see `show_id`)."""
    text = text.removesuffix("…")
    found = [text.encode("utf-8", "surrogateescape")]
    for _ in range(2):
        if "\\" not in text:
            break
        try:
            text = text.encode("latin-1", "backslashreplace").decode("unicode_escape")
            found.append(text.encode("latin-1"))
        except UnicodeError:
            break  # not an escaped id
    return found


def short_id(request: RecordedRequest) -> str:
    """Return the beginning of a request's id, which commands accept."""
    text = request.shown_id
    return text if len(text) <= SHORT_ID else text[: SHORT_ID - 1] + "…"


def describe_request(request: RecordedRequest) -> str:
    """Return `request 12 (3f2a…)`."""
    return "request %d (%s)" % (request.number, short_id(request))


def state_of(request: RecordedRequest) -> str:
    """Return the state as it is shown: an open request may be on its way to be cancelled."""
    if request.cancel and request.state in (RequestState.ACCEPTED, RequestState.RUNNING):
        return "cancelling"
    return request.state.value


def state_since(request: RecordedRequest) -> float:
    """Return when a request came into its state."""
    times = (request.answered, request.ended, request.started)
    if request.state is RequestState.REFUSED:
        return request.at
    return next((time for time in times if time is not None), request.at)


def how_to_run(gateway: GatewayDirectory, directory: Path) -> str:
    """Return a sentence about who carries out what was recorded: the running gateway, or none yet."""
    from outlast.gateway.monitoring.heartbeat import read_heartbeat

    heartbeat = read_heartbeat(gateway.heartbeat)
    if heartbeat is not None and heartbeat.alive:
        return "The running gateway (pid %d on %s) carries it out." % (heartbeat.pid, heartbeat.host)
    place = show_argument(directory)
    return "No gateway is running: `outlast gateway up%s` (or `tick%s` from cron) carries it out." % (
        place,
        place,
    )


def request_as_json(request: RecordedRequest) -> dict[str, Any]:
    """Return what the commands print of a request; no value of a parameter, which may be secret."""
    failure = request.failure
    return {
        "number": request.number,
        "id": request.shown_id,
        "template": request.template,
        "user": request.user,
        "queue": request.queue,
        "dialect": request.dialect,
        "state": request.state.value,
        "since": state_since(request),
        "cancelling": request.cancel or None,
        "received": request.at,
        "submitted": request.submitted,
        "started": request.started,
        "ended": request.ended,
        "answered": request.answered,
        "deadline": request.deadline,
        "run": request.run or None,
        "code": failure.code.value if failure else None,
        "failure": _failure_as_json(request),
        "note": request.note,
    }


def _failure_as_json(request: RecordedRequest) -> Mapping[str, Any] | None:
    failure = request.failure
    if failure is None:
        return None
    return {
        "code": failure.code.value,
        "message": failure.message,
        "advice": failure.advice,
        "mistakes": list(failure.mistakes),
        "attempts": failure.attempts,
        "retryable": failure.retryable,
    }


def answer_as_json(answer: RecordedAnswer) -> dict[str, Any]:
    """Return what the commands print of an answer."""
    return {
        "number": answer.number,
        "kind": answer.kind,
        "to": answer.routing_key,
        "size": answer.size,
        "state": answer.state,
        "made": answer.made,
        "tries": answer.tries,
        "confirmed": answer.confirmed,
        "due": answer.due if answer.state == "waiting" else None,
        "reason": answer.reason,
    }

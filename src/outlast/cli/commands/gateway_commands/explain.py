"""`outlast gateway explain`: everything about one request."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from outlast.cli.common import json_option, show_time, table, wrap_line, write_json
from outlast.cli.gateway_common import (
    answer_as_json,
    find_request,
    gateway_at,
    gateway_option,
    open_record,
    request_as_json,
    state_of,
)
from outlast.gateway.gateway_directory import GatewayDirectory
from outlast.text import counted, printable
from outlast.units import show_duration, show_size

if TYPE_CHECKING:
    from outlast.gateway.record.rows import RecordedAnswer, RecordedMessage, RecordedRequest

HIDDEN = "(hidden)"
_INDENT = 14
_SHOWN_RESOURCES = {"memory": show_size, "disk": show_size, "time": show_duration}


@click.command()
@click.argument("id", metavar="ID")
@gateway_option
@json_option
def command(id: str, directory: Path, as_json: bool) -> None:
    """Show everything about one request: where it came from, what became of it, and its answers.

    ID is the id, the number or the run of a request, or a part of these that no other request has.
    """
    gateway = gateway_at(directory)
    with open_record(gateway, directory) as record:
        found = find_request(record, id)
        sent = record.messages_of(found)
        answers = record.answers_of(found.number)
    asked = _describe_body(gateway, found)
    if as_json:
        write_json(
            {
                **request_as_json(found),
                "reply_to": found.reply_to or None,
                "body": asked,
                "messages": [{"number": one.number, "received": one.at, "state": one.state} for one in sent],
                "answers": [answer_as_json(one) for one in answers],
                "experiment": str(gateway.experiment(found.template)) if found.run else None,
            }
        )
        return
    for line in _lines(gateway, found, sent, asked, directory):
        click.echo(wrap_line(line, _INDENT))
    click.echo(_answers(found, answers))


def _describe_body(gateway: GatewayDirectory, request: RecordedRequest) -> dict[str, Any]:
    """Return what was asked for, without secrets."""
    body = request.body
    secret = _secret_parameters(gateway, request.template) if body.parameters else frozenset[str]()
    return {
        "parameters": {
            name: HIDDEN if secret is None or name in secret else value
            for name, value in body.parameters.items()
        },
        "inputs": {
            name: {"url": without_secrets(one.url), "sha256": one.sha256 or None, "size": one.size}
            for name, one in body.inputs.items()
        },
        "resources": dict(body.resources),
        "uploads": {name: without_secrets(url) for name, url in body.uploads.items()},
    }


def _secret_parameters(gateway: GatewayDirectory, template: str) -> frozenset[str] | None:
    """Return the parameters whose values are secret; None if that is not known: then all count as secret."""
    from outlast.gateway.configuration.settings_file import read_settings
    from outlast.gateway.configuration.template_file import read_template
    from outlast.spec import BadSpec

    try:
        settings = read_settings(gateway)
        if template not in settings.templates:
            return None
        parameters = read_template(gateway.template(template), template, settings).parameters
    except BadSpec:
        return None
    return frozenset(name for name, parameter in parameters.items() if parameter.secret)


def without_secrets(url: str) -> str:
    """Return a URL without the parts that may hold a password or a token."""
    try:
        parts = urlsplit(url)
        place = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
    except ValueError:
        return HIDDEN
    return place + ("?…" if parts.query else "")


def _lines(
    gateway: GatewayDirectory,
    request: RecordedRequest,
    sent: Sequence[RecordedMessage],
    asked: Mapping[str, Any],
    directory: Path,
) -> Iterator[str]:
    yield "request       %d, %s" % (request.number, click.style(state_of(request), bold=True))
    yield "id            %s" % request.shown_id
    user = "user %s" % printable(request.user) if request.user else "a user whom the broker did not check"
    yield "from          queue %s (%s), %s" % (printable(request.queue), request.dialect, user)
    yield "reply to      %s" % (printable(request.reply_to) or "nowhere: no answer was asked for")
    yield from _asked(request, asked)
    yield "history       %s" % _received(request, sent)
    yield from ("              %s  %s" % entry for entry in _history(request))
    if request.note:
        yield "note          %s" % printable(request.note)
    if request.run:
        yield "run           %s" % request.run
        if request.submitted is not None:
            place = shlex.quote(str(_relative(gateway.experiment(request.template), directory)))
            yield "              `outlast explain %s -C %s` shows its attempts" % (request.run, place)
    yield from _failure(request)


def _relative(path: Path, directory: Path) -> Path:
    """Return a path of the gateway as the user would type it."""
    return directory / path.relative_to(directory.absolute())


def _asked(request: RecordedRequest, asked: Mapping[str, Any]) -> Iterator[str]:
    yield "asked for     template %s" % (printable(request.template) or "(none)")
    for name, value in asked["parameters"].items():
        shown = value if value == HIDDEN else json.dumps(value, ensure_ascii=False)
        yield "  parameter   %s = %s" % (printable(name), printable(shown))
    for name, one in asked["inputs"].items():
        yield "  input       %s = %s" % (printable(name), printable(one["url"]))
    for name, value in asked["resources"].items():
        shown = _SHOWN_RESOURCES[name](value) if name in _SHOWN_RESOURCES else "%g" % value
        yield "  at most     %s = %s" % (name, shown)
    for name, url in asked["uploads"].items():
        yield "  upload      %s to %s" % (printable(name), printable(url))
    if request.deadline is not None:
        yield "  deadline    %s" % show_time(request.deadline)


def _received(request: RecordedRequest, sent: Sequence[RecordedMessage]) -> str:
    text = "%s  received" % show_time(request.at)
    if len(sent) > 1:
        text += "; sent %s more, the last at %s" % (
            counted(len(sent) - 1, "time"),
            show_time(sent[-1].at),
        )
    return text


def _history(request: RecordedRequest) -> Iterator[tuple[str, str]]:
    """Yield when a request came into each of its states."""
    if not request.run:
        yield show_time(request.at), "refused"
    events = (
        (request.submitted, "handed to the controller"),
        (request.started, "started"),
        (request.ended, "ended: %s" % (request.failure.code.value if request.failure else "finished")),
        (request.answered, request.state.value),
    )
    yield from ((show_time(time), text) for time, text in events if time is not None)
    if request.cancel and request.ended is None:
        yield "now", "to be cancelled (%s)" % request.cancel


def _failure(request: RecordedRequest) -> Iterator[str]:
    failure = request.failure
    if failure is None:
        return
    first, *more = failure.message.splitlines() or [""]
    yield "failure       %s: %s" % (failure.code.value, printable(first))
    yield from ("              %s" % printable(line) for line in more)
    yield from ("              %s" % printable(mistake) for mistake in failure.mistakes)
    if failure.advice:
        yield "  advice      %s" % printable(failure.advice)
    if request.run and request.state.value == "answered":
        yield "              `outlast gateway retry %d` runs it again" % request.number


def _answers(request: RecordedRequest, answers: Sequence[RecordedAnswer]) -> str:
    if not answers:
        return "answers       none yet" if not request.state.over else "answers       none"
    rows = [
        (
            str(one.number),
            one.kind,
            one.state,
            show_size(one.size),
            str(one.tries),
            show_time(one.confirmed if one.confirmed is not None else one.made),
            printable(one.reason) or "-",
        )
        for one in answers
    ]
    head = ("ANSWER", "KIND", "STATE", "SIZE", "TRIES", "SINCE", "REASON")
    return "\n" + table(head, rows, right=(0, 3, 4), most_lines=6)

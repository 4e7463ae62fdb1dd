"""`outlast gateway send`: a client, for trying a gateway out and for scripts."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from outlast.cli import ERROR, FAILED
from outlast.cli.common import json_option, show_argument, show_time, write_json
from outlast.cli.gateway_common import gateway_argument, gateway_at, require_client_library
from outlast.errors import BadInput
from outlast.gateway.gateway_directory import GatewayDirectory
from outlast.text import counted, printable
from outlast.units import show_size

if TYPE_CHECKING:
    from outlast.gateway.requester.client_answer import Answer
    from outlast.gateway.requester.client_request import ClientRequest
    from outlast.gateway.requester.requester import Requester
    from outlast.gateway.settings import GatewaySettings, Parameter

#: Seconds that are waited for an answer: a result, and the answer to --cancel and --status.
LONGEST_WAIT = 86400.0
CONTROL_WAIT = 60.0
_NOT_GIVEN = ""
_AS_LONG_AS_USUAL = "default"


@dataclass(frozen=True)
class _SendOptions:
    """The options of the command."""

    template: str
    parameters: tuple[str, ...]
    inputs: tuple[str, ...]
    resources: Mapping[str, str | int | None]
    deadline: str
    id: str
    queue: str
    reply_to: str
    credentials: Path | None
    cancel: str
    status: str
    wait: str
    out: Path | None
    as_json: bool

    @property
    def asks(self) -> bool:
        """True for --cancel and --status, which are answered at once."""
        return bool(self.cancel or self.status)


@click.command()
@gateway_argument
@click.option("--template", metavar="NAME", default="", help="The template of the request.")
@click.option(
    "--parameter", "parameters", metavar="NAME=VALUE", multiple=True, help="The value of a parameter."
)
@click.option("--input", "inputs", metavar="NAME=URL", multiple=True, help="The address of an input.")
@click.option("--cpus", metavar="N", type=click.IntRange(min=1), help="Use at most N CPUs.")
@click.option("--gpus", metavar="N", type=click.IntRange(min=0), help="Use at most N GPUs.")
@click.option("--memory", metavar="SIZE", help="Use at most this much memory, such as 8GB.")
@click.option("--disk", metavar="SIZE", help="Use at most this much disk.")
@click.option(
    "--time", "time_", metavar="TIME", help="Use at most this much time for each attempt, such as 6h."
)
@click.option(
    "--deadline",
    metavar="TIME",
    default="",
    help="No result is wanted later: 2h from now, or a moment such as 2026-11-19T12:00:00Z.",
)
@click.option("--id", metavar="ID", default="", help="The id of the request; default: a new one.")
@click.option("--cancel", metavar="ID", default="", help="Cancel the request with this id instead.")
@click.option(
    "--status", metavar="ID", default="", help="Ask for the state of the request with this id instead."
)
@click.option(
    "--wait",
    metavar="[TIME]",
    is_flag=False,
    flag_value=_AS_LONG_AS_USUAL,
    default=_NOT_GIVEN,
    help="Wait for the answer, for at most TIME (seconds, or such as 2h; default 24h).",
)
@click.option(
    "--out", metavar="DIR", type=click.Path(path_type=Path), help="Write the files of the result there."
)
@click.option("--queue", metavar="NAME", default="", help="Send to this queue of gateway.yaml.")
@click.option("--reply-to", metavar="NAME", default="", help="Take the answer from this queue, which exists.")
@click.option(
    "--credentials",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A file with `user` and `password` for the broker, instead of the gateway's own.",
)
@json_option
@click.pass_context
def command(
    context: click.Context,
    directory: Path,
    template: str,
    parameters: tuple[str, ...],
    inputs: tuple[str, ...],
    cpus: int | None,
    gpus: int | None,
    memory: str | None,
    disk: str | None,
    time_: str | None,
    deadline: str,
    id: str,
    cancel: str,
    status: str,
    wait: str,
    out: Path | None,
    queue: str,
    reply_to: str,
    credentials: Path | None,
    as_json: bool,
) -> None:
    """Send a request to the broker of the gateway in DIR, as an application would.

    With --wait, waits for the answer and shows progress on a terminal. Exits with 0 for a result, with 1 for
    a failure, and with 2 if it could not be sent or no answer came in time.
    """
    resources = {"cpus": cpus, "gpus": gpus, "memory": memory, "disk": disk, "time": time_}
    options = _SendOptions(
        template, parameters, inputs, resources, deadline, id, queue, reply_to, credentials, cancel, status,
        wait, out, as_json,
    )  # fmt: skip
    _check_options(options)
    require_client_library()
    context.exit(_SendCommand(gateway_at(directory), directory, options).run())


def _check_options(options: _SendOptions) -> None:
    """Raise UsageError for options that exclude each other."""
    if options.cancel and options.status:
        raise click.UsageError("use one of --cancel and --status")
    if options.asks == bool(options.template):
        raise click.UsageError("use one of --template NAME, --cancel ID and --status ID")
    others = [*options.parameters, *options.inputs, *filter(None, options.resources.values())]
    if options.asks and (others or options.deadline or options.out):
        raise click.UsageError(
            "--cancel and --status take no parameters, inputs, resources, --deadline or --out"
        )
    if options.out and options.wait == _NOT_GIVEN:
        raise click.UsageError("--out needs --wait: the files come with the answer")


class _SendCommand:
    """One call of the command."""

    def __init__(self, gateway: GatewayDirectory, directory: Path, options: _SendOptions) -> None:
        from outlast.gateway.configuration.settings_file import read_settings

        self._gateway = gateway
        self._directory = directory
        self._options = options
        self._settings: GatewaySettings = read_settings(gateway)
        self._id = options.id or str(uuid.uuid4())
        self._wait = _seconds_to_wait(options)

    def run(self) -> int:
        """Send, wait if that is wanted, print, and return the exit code."""
        from outlast.gateway.requester.client_answer import prepare_directory

        request = self._request()
        if self._options.out:
            prepare_directory(self._options.out)
        client = self._connect(request)
        try:
            client.send()
            self._note("sent %s to queue %s" % (self._id, request.queue))
            answer = client.wait(self._wait) if self._wait else None
        except KeyboardInterrupt:
            self._note("the request is not cancelled; %s" % self._how_to_ask("--cancel"))
            raise
        finally:
            client.close()
        if not self._wait:
            return self._conclude_unanswered(0)
        if answer is None:
            self._note("no answer came in time; the request goes on", always=True)
            return self._conclude_unanswered(ERROR)
        return self._conclude(answer)

    def _connect(self, request: ClientRequest) -> Requester:
        from dataclasses import replace

        from outlast.gateway.broker.broker_credentials import read_broker_credentials
        from outlast.gateway.broker.client_link import BrokerClientLink
        from outlast.gateway.requester.requester import Requester

        broker = self._settings.broker
        if self._options.credentials is not None:
            broker = replace(broker, credentials=self._options.credentials)
        credentials = read_broker_credentials(broker.credentials)
        link = BrokerClientLink(broker, credentials)
        return Requester(
            link, request, user=credentials.user, on_progress=self._show_progress, on_trouble=self._note
        )

    def _request(self) -> ClientRequest:
        from outlast.gateway.requester.client_request import ClientRequest, choose_queue, choose_reply_queue

        queue = choose_queue(self._settings.queues, self._options.queue)
        id = self._id.encode("utf-8", "surrogateescape")
        if not 1 <= len(id) <= 200 or not self._id.isprintable():
            raise BadInput("--id: write 1 to 200 printable characters")
        reply_to, is_own = "", True
        if self._wait or self._options.reply_to:
            reply_to, is_own = choose_reply_queue(queue, self._options.reply_to, id)
        follows = self._wait and not self._options.asks and not self._options.as_json and sys.stderr.isatty()
        progress = self._settings.progress_exchange if follows and is_own else ""
        return ClientRequest(id, self._body(), queue.name, reply_to, is_own, progress)

    def _body(self) -> bytes:
        from outlast.gateway.requester.client_request import (
            control_body,
            parse_value,
            split_pairs,
            training_body,
        )

        options = self._options
        if options.asks:
            kind = "cancel" if options.cancel else "status"
            return control_body(kind, (options.cancel or options.status).encode("utf-8", "surrogateescape"))
        types = self._parameter_types()
        parameters = {
            name: parse_value(name, text, types.get(name))
            for name, text in split_pairs("--parameter", options.parameters).items()
        }
        return training_body(
            options.template,
            parameters=parameters,
            inputs=split_pairs("--input", options.inputs),
            resources={name: value for name, value in options.resources.items() if value is not None},
            deadline=_moment(options.deadline),
        )

    def _parameter_types(self) -> Mapping[str, Parameter]:
        """Return the parameters of the template, if it is one of this gateway's."""
        from outlast.gateway.configuration.template_file import read_template

        name = self._options.template
        if name not in self._settings.templates:
            return {}
        return read_template(self._gateway.template(name), name, self._settings).parameters

    def _note(self, text: str, *, always: bool = False) -> None:
        """Print a sentence on stderr; with --json, only if it must be."""
        if always or not self._options.as_json:
            click.echo(text, err=True)

    def _show_progress(self, answer: Answer) -> None:
        text = " ".join(filter(None, (show_time(time.time()), answer.text("state"), _progress_facts(answer))))
        click.echo(text, err=True)

    def _how_to_ask(self, option: str) -> str:
        command = "outlast gateway send%s %s %s" % (show_argument(self._directory), option, self._id)
        return "`%s` %s" % (command, "cancels it" if option == "--cancel" else "asks for its state")

    def _conclude_unanswered(self, code: int) -> int:
        if self._options.as_json:
            write_json({"id": self._id, "sent": True, "answer": None, "files": [], "elsewhere": []})
        else:
            click.echo("%s; %s" % (self._id, self._how_to_ask("--status")))
        return code

    def _conclude(self, answer: Answer) -> int:
        from outlast.gateway.requester.client_answer import BadAnswer, write_files
        from outlast.gateway.requester.requester import CannotSend

        written: list[str] = []
        elsewhere = [file for file in answer.files if file.content is None]
        if answer.kind == "result" and self._options.out:
            try:
                written, elsewhere = write_files(answer, self._options.out)
            except BadAnswer as error:
                raise CannotSend("the result cannot be used: %s" % error) from error
        if self._options.as_json:
            files = [
                {"name": one.name, "size": one.size, "sha256": one.sha256, "place": one.place or None}
                for one in answer.files
            ]
            content = {**answer.facts, **({"files": files} if answer.files else {})}
            places = [one.name for one in elsewhere]
            write_json(
                {"id": self._id, "sent": True, "answer": content, "files": written, "elsewhere": places}
            )
        else:
            self._print_answer(answer, written, [one.name for one in elsewhere])
        return FAILED if answer.kind == "failure" else 0

    def _print_answer(self, answer: Answer, written: list[str], elsewhere: list[str]) -> None:
        if answer.kind == "failure":
            message = str(answer.facts.get("message", "")).splitlines()
            text = "\n".join(map(printable, message))
            click.echo("FAILED: %s: %s" % (answer.text("code"), text), err=True)
            for mistake in answer.facts.get("mistakes") or ():
                click.echo("  %s" % printable(str(mistake)), err=True)
            if answer.text("advice"):
                click.echo(answer.text("advice"), err=True)
            return
        if answer.kind != "result":
            note = answer.text("note")
            click.echo("%s%s" % (answer.text("state") or answer.kind, "; %s" % note if note else ""))
            return
        click.echo("finished: %s" % counted(len(answer.files), "file"))
        for file in answer.files:
            place = str(self._options.out / file.name) if self._options.out and file.name in written else ""
            if file.name in elsewhere:
                place = file.place
            click.echo("  %s  %s  %s" % (printable(file.name), show_size(file.size), printable(place)))
        if not self._options.out and any(file.content is not None for file in answer.files):
            click.echo("with --out DIR, the files are written")


def _progress_facts(answer: Answer) -> str:
    facts: list[tuple[str, Callable[[str], str]]] = [
        ("host", lambda text: "on %s" % text),
        (
            "step",
            lambda text: text if not answer.text("total") else "%s of %s" % (text, answer.text("total")),
        ),
        ("reason", lambda text: text),
        ("outcome", lambda text: text),
    ]
    return ", ".join(show(answer.text(key)) for key, show in facts if answer.text(key))


def _seconds_to_wait(options: _SendOptions) -> float:
    """Return how long to wait for an answer; 0: not at all. Raise BadInput."""
    from outlast.units import parse_duration

    if options.wait in (_NOT_GIVEN, _AS_LONG_AS_USUAL):
        if options.asks:
            return CONTROL_WAIT
        return LONGEST_WAIT if options.wait else 0.0
    text = options.wait + "s" if options.wait.isascii() and options.wait.isdigit() else options.wait
    try:
        return parse_duration(text)
    except ValueError as error:
        raise BadInput("--wait: %s (a directory stands before it)" % error) from None


def _moment(text: str) -> str:
    """Return a deadline as RFC 3339 timestamp; a duration counts from now. Raise BadInput."""
    from outlast.units import parse_duration

    if not text or "T" in text:
        return text
    try:
        at = time.time() + parse_duration(text)
    except ValueError as error:
        raise BadInput("--deadline: %s" % error) from None
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))

"""`outlast gateway demo`: five requests, and five answers in spite of kills, live."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outlast.cli import FAILED, INTERRUPTED
from outlast.cli.common import on_terminal
from outlast.cli.gateway_common import require_client_library
from outlast.cli.safe_output import has_colours
from outlast.errors import OutlastError
from outlast.text import counted

if TYPE_CHECKING:
    from outlast.demo.gateway.rabbitmq import DemoBroker
    from outlast.demo.gateway.sender import RequestSender
    from outlast.demo.gateway.up_process import UpProcess
    from outlast.demo.gateway.watcher import Watcher
    from outlast.demo.setup import DemoSetup
    from outlast.gateway.requester.client_answer import Answer
    from outlast.gateway.requests import RequestState

#: Seconds until what the demo waits for must have happened, and between two looks.
LONGEST, POLL_SECONDS = 120.0, 0.2
#: Columns of the output, and of the table's first two columns.
WIDTH, FIRST, SECOND = 80, 10, 23
#: CPUs of each of the two hosts: all jobs run at the same time.
CPUS = 2

INTRODUCTION = """\
A web application sends five training requests to a RabbitMQ broker. A gateway
takes them, runs them on a simulated cluster of two hosts and sends the answers.
On the way the gateway, the broker and one job are killed without warning. Every
request must get one answer. It takes about a minute.
"""
NEXT = """\
What to try next:
  docs/tutorial-gateway.md          # all of the following, step by step
  outlast gateway init lab          # a gateway of your own, to edit
  outlast gateway check lab         # lists everything that will not work
  outlast gateway up lab            # takes requests, until Ctrl-C
  outlast gateway send lab --template pages --wait     # a request, as a client
  outlast gateway status lab        # the connection, and what waits
"""
TWICE = """\
An answer comes twice if the gateway or the broker is killed after the broker has stored it and before the
gateway has recorded that. Both are the same; an application ignores the second.
"""


@click.command()
@click.argument("rabbitmq", metavar="SCRIPT", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--keep", metavar="DIR", type=click.Path(path_type=Path), help="Keep all files in DIR.")
@click.pass_context
def command(context: click.Context, rabbitmq: Path, keep: Path | None) -> None:
    """Watch five requests get five answers, while gateway, broker and a job are killed.

    SCRIPT installs, starts and stops RabbitMQ: tests/clusters/rabbitmq in a clone of Outlast's repository,
    where `make gateway-demo` calls this. Exits with 0 only if every request got the answer that it must get.
    """
    require_client_library()
    from outlast.demo.setup import set_up

    click.echo(INTRODUCTION)
    try:
        with set_up(keep, CPUS) as place:
            failures = _Demo(place, rabbitmq.absolute()).run()
    except KeyboardInterrupt:
        click.echo("\ninterrupted; all processes of the demo are stopped", err=True)
        context.exit(INTERRUPTED)
    for sentence in failures:
        click.echo(click.style("demo: FAILED: %s" % sentence, fg="red"), err=True)
    if keep is not None:
        click.echo("All files are in %s; try `outlast gateway requests %s`\n" % (keep, keep / "gateway"))
    if not failures:
        click.echo(NEXT.rstrip())
    context.exit(FAILED if failures else 0)


class _Demo:
    """The demo, from the start of the broker to the table."""

    def __init__(self, place: DemoSetup, script: Path) -> None:
        from outlast.demo.gateway.cases import make_cases

        self._place = place
        self._script = script
        self._cases = make_cases()
        self._root = place.root / "gateway"

    def run(self) -> list[str]:
        """Play all of it; return what went wrong, in sentences."""
        from outlast.demo.demo_application import WebApplication
        from outlast.demo.gateway.gateway_files import ANSWERS, INPUT, make_points, write_gateway
        from outlast.demo.gateway.rabbitmq import DemoBroker
        from outlast.demo.setup import HOSTS

        points = {INPUT: json.dumps(make_points()).encode()}
        broker = DemoBroker(self._script, self._place.root / "broker")
        _report("starting a RabbitMQ broker (and installing it, if it is missing)")
        try:
            broker.start()
            broker.create_queue(ANSWERS)
            with WebApplication(points, broker.certificate) as application:
                hosts = dict.fromkeys(HOSTS, CPUS)
                write_gateway(self._root, broker.port, application, broker.ca_file, hosts)
                return self._play(broker)
        finally:
            broker.stop()

    def _play(self, broker: DemoBroker) -> list[str]:
        from outlast.demo.gateway.gateway_files import ANSWERS, REQUESTS, TEMPLATE
        from outlast.demo.gateway.rabbitmq import PASSWORD, USER
        from outlast.demo.gateway.sender import RequestSender
        from outlast.demo.gateway.up_process import UpProcess
        from outlast.demo.gateway.watcher import Watcher
        from outlast.gateway.gateway_directory import GatewayDirectory

        gateway = UpProcess(self._root, _hand_on)
        watcher = Watcher(GatewayDirectory(self._root), TEMPLATE)
        try:
            _report("starting the gateway: outlast gateway up")
            gateway.start()
            _wait(lambda: broker.has_consumer(REQUESTS), "the gateway did not take requests")
            with RequestSender(broker.port, USER, PASSWORD, REQUESTS, ANSWERS) as sender:
                self._send_and_disturb(broker, gateway, watcher, sender)
                return self._conclude(gateway, watcher, sender)
        finally:
            gateway.kill()

    def _send_and_disturb(
        self, broker: DemoBroker, gateway: UpProcess, watcher: Watcher, sender: RequestSender
    ) -> None:
        """Send the five requests and the cancellation, and kill what takes part in answering them."""
        from outlast.gateway.requester.client_request import control_body
        from outlast.gateway.requests import RequestState

        _report("the application sends five requests")
        for case in self._cases:
            sender.send(case.id, case.body)
        _wait(lambda: sender.all_sent, "the broker did not take the requests")
        _wait(lambda: _state(watcher, "killed") is RequestState.RUNNING, "no job was started")

        _report("killing the gateway (SIGKILL); jobs continue")
        gateway.kill()
        _report("starting the gateway again")
        gateway.start()

        run = watcher.requests()["killed"].run
        attempt, step = _wait(lambda: watcher.attempt_beyond_checkpoint(run), "no job saved a checkpoint")
        _report("killing the job of the request `killed` without warning, at epoch %d" % step)
        self._place.scheduler.kill(attempt.token)

        _report("the application cancels the request `cancelled`, with a message")
        sender.send("cancel-1", control_body("cancel", b"cancelled"), wants_answer=False)
        _wait(lambda: sender.all_sent, "the broker did not take the message")

        _report("killing the broker (kill -9)")
        broker.kill()
        over = (RequestState.ENDED, RequestState.ANSWERED)
        _wait(lambda: _state(watcher, "good") in over, "no run ended while there was no broker")
        _report("runs have ended without a broker; starting it again")
        broker.start()

    def _conclude(self, gateway: UpProcess, watcher: Watcher, sender: RequestSender) -> list[str]:
        """Wait for the answers, end the gateway, and print the table; return what is wrong."""
        from outlast.demo.gateway.cases import describe_answers, describe_attempts, find_wrong

        ids = [case.id for case in self._cases]
        with suppress(OutlastError):  # what is not answered is shown in the table
            _wait(lambda: all(map(sender.answers, ids)), "not all requests were answered")
        _report("outlast gateway drain: the gateway takes no more requests, and ends")
        code = self._drain(gateway)
        wrong = [] if code == 0 else ["the drained gateway did not end with exit code 0, but: %s" % code]
        answers = {id: sender.answers(id) for id in ids}
        requests = watcher.requests()
        click.echo()
        _print_row("request", "answer", "what happened", bold=True)
        for case in self._cases:
            request, found = requests.get(case.id), answers[case.id]
            attempts = watcher.attempts(request.run) if request is not None and request.run else ()
            _print_row(case.id, describe_answers(found), describe_attempts(request, attempts))
            wrong += find_wrong(case, found, attempts)
        _print_counts(answers)
        if not wrong:
            same = "The models are those of undisturbed trainings, bit for bit."
            click.echo(click.style(same, fg="green", bold=True))
        click.echo()
        return wrong

    def _drain(self, gateway: UpProcess) -> int | None:
        """Drain the gateway; return its exit code, None if it does not end."""
        subprocess.run(
            [sys.executable, "-m", "outlast", "gateway", "drain", str(self._root)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            timeout=LONGEST,
            check=False,
        )
        return gateway.wait()


def _state(watcher: Watcher, id: str) -> RequestState | None:
    request = watcher.requests().get(id)
    return request.state if request is not None else None


def _wait(condition: Callable[[], Any], otherwise: str) -> Any:
    """Wait until the condition returns something true, and return that. Raise OutlastError."""
    until = time.monotonic() + LONGEST
    while not (found := condition()):
        if time.monotonic() >= until:
            raise OutlastError(
                "%s within %d s; this machine may be too busy, try again" % (otherwise, LONGEST)
            )
        time.sleep(POLL_SECONDS)
    return found


def _print_counts(answers: Mapping[str, Sequence[Answer]]) -> None:
    answered, doubled = sum(map(bool, answers.values())), sum(len(each) > 1 for each in answers.values())
    numbers = counted(len(answers), "request"), counted(answered, "answer"), len(answers) - answered, doubled
    click.echo("\n%s, %s, %d unanswered, %d doubled" % numbers)
    if doubled:
        click.echo(textwrap.fill(TWICE, WIDTH))


def _print_row(first: str, second: str, third: str, bold: bool = False) -> None:
    indent = " " * (FIRST + SECOND + 4)
    head = "%-*s  %-*s  " % (FIRST, first, SECOND, second)
    text = textwrap.fill(head + third, WIDTH, subsequent_indent=indent, break_on_hyphens=False)
    click.echo(click.style(text, bold=True) if bold else text)


#: Lines of the gateway come from another thread.
_printing = threading.Lock()


def _report(text: str) -> None:
    """Print what the demo does."""
    lines = textwrap.wrap(text, WIDTH, initial_indent="demo: ", subsequent_indent=" " * 6)
    coloured = on_terminal() and has_colours()
    with _printing:
        for line in lines:
            head, rest = line[:6], line[6:]
            styled = click.style(head, fg="magenta", bold=True) + click.style(rest, bold=True)
            print(styled if coloured else line, flush=True)


def _hand_on(line: str) -> None:
    """Print a line of the gateway."""
    with _printing:
        print(textwrap.fill(line, WIDTH, subsequent_indent=" " * 9), flush=True)

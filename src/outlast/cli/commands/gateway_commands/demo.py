"""`outlast gateway demo`: five requests, and five answers in spite of kills, live."""

from __future__ import annotations

import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outlast.cli import FAILED, INTERRUPTED
from outlast.cli.common import on_terminal
from outlast.cli.gateway_common import require_client_library
from outlast.cli.safe_output import has_colours
from outlast.errors import OutlastError

if TYPE_CHECKING:
    from outlast.demo.demo_application import WebApplication
    from outlast.demo.gateway.rabbitmq import DemoBroker
    from outlast.demo.gateway.sender import RequestSender
    from outlast.demo.gateway.up_process import UpProcess
    from outlast.demo.gateway.watcher import Watcher
    from outlast.demo.setup import DemoSetup
    from outlast.gateway.requester.client_answer import Answer

#: Seconds until something that the demo waits for must have happened, and between two looks.
LONGEST, POLL_SECONDS = 20.0, 0.2
#: Columns of the output.
WIDTH = 80
#: CPUs of each of the two hosts: all jobs run at the same time.
CPUS = 2
#: Megabytes of one batch of the request that needs more memory than its job has at first.
LARGE_BATCH = 500

INTRODUCTION = """\
A web application sends five training requests to a RabbitMQ broker. A gateway
takes them, runs them on a simulated cluster of two hosts and sends the answers.
On the way the gateway, the broker and one job are killed without warning. Every
request must get one answer. It takes about a minute.
"""
NEXT = """\
What to try next:
  outlast gateway init lab          # a gateway of your own, to edit
  outlast gateway check lab         # lists all that will not work
  outlast gateway up lab            # takes requests, until Ctrl-C
  outlast gateway send lab --template pages --wait     # a request, as a client
  outlast gateway status lab        # the connection, and what waits
  docs/tutorial-gateway.md          # all of that, step by step
"""


@dataclass(frozen=True)
class _Case:
    """One of the five requests: its body, and the answer that it must get."""

    id: str
    body: bytes
    #: The failure's code; empty: a result.
    code: str
    epochs: int = 0


def _cases() -> tuple[_Case, ...]:
    from outlast.demo.gateway.gateway_files import INPUT, TEMPLATE
    from outlast.gateway.requester.client_request import training_body

    def body(**parameters: int) -> bytes:
        return training_body(TEMPLATE, parameters=parameters, inputs={"points": INPUT}, resources={})

    return (
        _Case("good", body(epochs=60), "", 60),
        _Case("memory", body(epochs=40, batch_mb=LARGE_BATCH), "", 40),
        _Case("malformed", body(epochs=5)[:-9], "invalid_request"),
        _Case("cancelled", body(epochs=10000), "cancelled"),
        _Case("killed", body(epochs=100), "", 100),
    )


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
    if not failures:
        click.echo(NEXT.rstrip())
    context.exit(FAILED if failures else 0)


class _Demo:
    """The demo, from the start of the broker to the table."""

    def __init__(self, place: DemoSetup, script: Path) -> None:
        self._place = place
        self._script = script
        self._cases = _cases()
        self._root = place.root / "gateway"
        #: What was done to the requests, by id.
        self._happened: dict[str, str] = {}

    def run(self) -> list[str]:
        """Play all of it; return what went wrong, in sentences."""
        from outlast.demo.demo_application import WebApplication
        from outlast.demo.gateway.gateway_files import ANSWERS, INPUT, make_points, write_gateway
        from outlast.demo.gateway.rabbitmq import DemoBroker
        from outlast.demo.setup import HOSTS

        import json

        points = {INPUT: json.dumps(make_points()).encode()}
        broker = DemoBroker(self._script, self._place.root / "broker")
        _report("starting a RabbitMQ broker (and installing it, if it is missing)")
        try:
            broker.start()
            broker.create_queue(ANSWERS)
            with WebApplication(points) as application:
                write_gateway(self._root, broker.port, application, dict.fromkeys(HOSTS, CPUS))
                return self._play(broker, application)
        finally:
            broker.stop()

    def _play(self, broker: DemoBroker, application: WebApplication) -> list[str]:
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
            _wait(lambda: broker.has_consumer(REQUESTS), "the gateway takes no requests")
            with RequestSender(broker.port, USER, PASSWORD, REQUESTS, ANSWERS) as sender:
                self._disturb(broker, gateway, watcher, sender)
                return self._conclude(gateway, watcher, sender)
        finally:
            gateway.kill()

    def _disturb(
        self, broker: DemoBroker, gateway: UpProcess, watcher: Watcher, sender: RequestSender
    ) -> None:
        """Send the five requests, and kill what takes part in answering them."""
        from outlast.gateway.requester.client_request import control_body
        from outlast.gateway.requests import RequestState

        _report("the application sends five requests")
        for case in self._cases:
            sender.send(case.id, case.body)
        _wait(lambda: sender.all_sent, "the broker does not take the requests")
        _wait(lambda: _states(watcher).get("killed") == RequestState.RUNNING, "no job was started")

        _report("killing the gateway (SIGKILL); its jobs run on")
        gateway.kill()
        _report("starting the gateway again")
        gateway.start()

        run = watcher.requests()["killed"].run
        attempt, step = _wait(lambda: watcher.attempt_beyond_checkpoint(run), "no job has saved")
        _report("killing the job of the request `killed` without warning, at epoch %d" % step)
        self._place.scheduler.kill(attempt.token)

        _wait(lambda: _states(watcher).get("cancelled") == RequestState.RUNNING, "no job was started")
        _report("the application cancels the request `cancelled`, by a message")
        sender.send("cancel-1", control_body("cancel", b"cancelled"), wants_answer=False)
        _wait(lambda: sender.all_sent, "the broker does not take the message")

        _report("killing the broker (kill -9) while runs end")
        broker.kill()
        over = (RequestState.ENDED, RequestState.ANSWERED)
        _wait(lambda: _states(watcher).get("good") in over, "no run ended while there was no broker")
        _report("starting the broker again: what waits is sent")
        broker.start()

    def _conclude(self, gateway: UpProcess, watcher: Watcher, sender: RequestSender) -> list[str]:
        """Wait for the answers, end the gateway, and print the table; return what is wrong."""
        ids = [case.id for case in self._cases]
        try:
            _wait(lambda: all(map(sender.answers, ids)), "")
        except OutlastError:
            pass  # shown as unanswered in the table
        _report("no more requests: outlast gateway drain, and the gateway ends by itself")
        code = self._drain(gateway)
        failures = [] if code == 0 else ["the drained gateway did not end with exit code 0: %s" % code]
        answers = {case.id: sender.answers(case.id) for case in self._cases}
        click.echo()
        _print_row(("request", "answer", "what happened"), bold=True)
        for case in self._cases:
            row = (case.id, _describe(answers[case.id]), self._explain(case, watcher))
            _print_row(row)
            failures += _find_wrong(case, answers[case.id])
        return failures + _count(answers)

    def _drain(self, gateway: UpProcess) -> int | None:
        import subprocess
        import sys

        subprocess.run(
            [sys.executable, "-m", "outlast", "gateway", "drain", str(self._root)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LONGEST,
            check=False,
        )
        return gateway.wait()

    def _explain(self, case: _Case, watcher: Watcher) -> str:
        """Return what happened to a request, from the record and the journal."""
        from outlast.text import counted
        from outlast.units import show_size

        request = watcher.requests().get(case.id)
        if request is None or not request.run:
            return "the body is cut in the middle; no job was started"
        attempts = watcher.attempts(request.run)
        parts = [counted(len(attempts), "job")]
        for before, after in zip(attempts, attempts[1:], strict=False):
            outcome = before.outcome.value if before.outcome else "unknown"
            text = "%s, then resumed" % outcome
            if outcome == "out-of-memory":
                text = "%s, then %s" % (outcome, show_size(after.memory or 0))
            if after.account.resumed is not None and after.account.resumed:
                text += " at epoch %s" % after.account.resumed
            parts.append(text)
        if request.cancel:
            parts.append("ended by the message")
        return ": ".join([parts[0], ", ".join(parts[1:])]) if parts[1:] else parts[0]


def _states(watcher: Watcher) -> dict[str, Any]:
    return {id: request.state for id, request in watcher.requests().items()}


def _describe(answers: Any) -> str:
    if not answers:
        return "NONE"
    answer: Answer = answers[0]
    text = "result" if answer.kind == "result" else "failure %s" % answer.text("code")
    return text if len(answers) == 1 else "%s (%d times)" % (text, len(answers))


def _find_wrong(case: _Case, answers: Any) -> list[str]:
    """Return what is wrong with the answers to a request."""
    import json

    from outlast.demo.gateway.gateway_files import undisturbed_result

    if not answers:
        return ["the request %s was not answered" % case.id]
    if len({json.dumps(dict(answer.facts), sort_keys=True) for answer in answers}) > 1:
        return ["the request %s got different answers" % case.id]
    answer: Answer = answers[0]
    if answer.text("code") != case.code:
        return ["the request %s got %s" % (case.id, _describe(answers))]
    if not case.code:
        result = json.loads(answer.files[0].content or b"null")
        if result != undisturbed_result(case.epochs):
            return ["the result of %s is not that of an undisturbed training" % case.id]
    return []


def _count(answers: dict[str, Any]) -> list[str]:
    """Print the counts; return nothing, since unanswered requests were found before."""
    from outlast.text import counted

    unanswered = sum(not each for each in answers.values())
    doubled = sum(len(each) > 1 for each in answers.values())
    click.echo(
        "\n%s, %s, %d unanswered, %d doubled"
        % (
            counted(len(answers), "request"),
            counted(len(answers) - unanswered, "answer"),
            unanswered,
            doubled,
        )
    )
    if doubled:
        text = (
            "An answer comes twice if gateway or broker are killed after the broker has stored it and before "
            "the gateway has recorded that. Both are the same; applications ignore the second one."
        )
        click.echo(textwrap.fill(text, WIDTH))
    click.echo("The models are the same as without any kill, bit for bit.\n" if not unanswered else "")
    return []


def _wait(condition: Callable[[], Any], otherwise: str) -> Any:
    """Wait until the condition returns something true, and return that. Raise OutlastError."""
    until = time.monotonic() + LONGEST
    while not (found := condition()):
        if time.monotonic() >= until:
            raise OutlastError("%s within %d s" % (otherwise, LONGEST))
        time.sleep(POLL_SECONDS)
    return found


_printing = threading.Lock()


def _report(text: str) -> None:
    """Print what the demo does."""
    colours = on_terminal() and has_colours()
    lines = textwrap.wrap(text, WIDTH - len("demo: "))
    with _printing:
        for number, line in enumerate(lines):
            head = click.style("demo:", fg="magenta", bold=True) if number == 0 else "     "
            styled = "%s %s" % (head, click.style(line, bold=True))
            print(styled if colours else click.unstyle(styled), flush=True)


def _hand_on(line: str) -> None:
    """Print a line of the gateway."""
    with _printing:
        for part in textwrap.wrap(line, WIDTH, subsequent_indent=" " * 9):
            print(part, flush=True)


def _print_row(cells: tuple[str, str, str], bold: bool = False) -> None:
    first, second, third = cells
    lines = textwrap.wrap(third, WIDTH - 36) or [""]
    text = "%-10s  %-23s  %s" % (first, second, lines[0])
    click.echo(click.style(text, bold=True) if bold else text)
    for line in lines[1:]:
        click.echo(" " * 37 + line)

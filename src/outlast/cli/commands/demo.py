"""`outlast demo`: a training run that survives kills, time limits and a torn checkpoint, live."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outlast.cli import FAILED, INTERRUPTED
from outlast.cli.common import can_move_cursor, on_terminal
from outlast.cli.safe_output import has_colours, unfiltered
from outlast.domain.model import Attempt, JournalEntry, Run, RunState
from outlast.errors import BadInput

if TYPE_CHECKING:
    from outlast.controller.supervisor import Supervisor
    from outlast.demo.compare import Comparison
    from outlast.demo.setup import DemoSetup
    from outlast.demo.trouble import DemoTrouble

#: Seconds after which the disturbed training run is given up.
LONGEST = 300.0
#: Seconds between polls of an attempt that is about to be killed.
POLL_SECONDS = 0.1
#: Seconds between lines of progress if the output is not a terminal.
LINE_EVERY = 3.0

INTRODUCTION = """\
This demo trains a small network on handwritten digits twice: first without interruption, then on a simulated
cluster of two hosts that ends every job after a few seconds. One job is killed without warning, and one
checkpoint is torn (cut in half). Both training runs must end with the same weights, bit for bit.
It takes about half a minute.
"""
NEXT = """\
What to try next:
  outlast init my-training --example digits   # a copy to edit: params.yaml, train.py
  cd my-training && outlast run               # run it until its outputs are checked
  outlast status --watch                      # in another terminal: the state of every run
  outlast local status                        # the jobs; `outlast local kill JOB` kills one
  outlast explain                             # what happened in each attempt, and why
  outlast report                              # where the time went
"""


@click.command()
@click.option(
    "--keep",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Keep all files in DIR.",
)
@click.option("--epochs", type=click.IntRange(min=1), hidden=True, help="For a shorter demo.")
@click.pass_context
def command(ctx: click.Context, keep: Path | None, epochs: int | None) -> None:
    """Watch a training run survive kills, time limits and a torn checkpoint, in about half a minute.

    Exits with 0 only if all of that happened and the weights are the same as without interruption.
    """
    if importlib.util.find_spec("numpy") is None:
        raise BadInput("the demo needs NumPy, which is not installed; type: pip install numpy")
    from outlast.demo.setup import set_up

    click.echo(INTRODUCTION)
    try:
        with set_up(keep) as place:
            code = _run_demo(place, epochs)
    except KeyboardInterrupt:
        click.echo("\ninterrupted; all processes of the demo are stopped", err=True)
        ctx.exit(INTERRUPTED)
    if keep is not None:
        click.echo("All files are in %s; try `outlast explain -C %s`\n" % (keep, keep / "digits"))
    if code == 0:
        click.echo(NEXT.rstrip())
    ctx.exit(code)


def _run_demo(place: DemoSetup, epochs: int | None) -> int:
    from outlast import spec
    from outlast.cli.commands.report import text
    from outlast.cli.commands.submit import submit_runs
    from outlast.demo import undisturbed
    from outlast.demo.compare import compare
    from outlast.demo.setup import HOSTS, limit_attempts, make_experiment
    from outlast.demo.trouble import DemoTrouble
    from outlast.domain.ledger import book

    experiment = place.experiment
    make_experiment(place.undisturbed, epochs)
    make_experiment(experiment.root, epochs)
    _report("training undisturbed, without interruption")
    progress = _DemoProgress()
    seconds = undisturbed.train(place.undisturbed, spec.read(experiment.root).spec.command, progress.show)
    progress.clear()
    _report("done undisturbed after %.1f s" % seconds)

    limit = limit_attempts(experiment, seconds)
    _report("the same run on %s, with a time limit of %d s per job" % (" and ".join(HOSTS), limit))
    submit_runs(experiment)
    trouble = DemoTrouble(experiment, place.scheduler.kill, place.scheduler.evict, _report)
    run, attempts = _supervise(place, trouble)
    click.echo("\nWhere the time went:\n%s\n" % text(book(run, attempts)))

    wrong = _find_missing(run, trouble)
    if not wrong:
        comparison = compare(place.undisturbed, experiment.result(run.name))
        wrong = list(comparison.differences)
        _print_comparison(comparison, attempts)
    for sentence in wrong:
        click.echo(click.style("demo: FAILED: %s" % sentence, fg="red"), err=True)
    return FAILED if wrong else 0


def _supervise(place: DemoSetup, trouble: DemoTrouble) -> tuple[Run, list[Attempt]]:
    """Supervise as `outlast up` does, with deliberate failures; return the run and its attempts."""
    from outlast.cli.live import Display
    from outlast.controller.supervisor import control

    display = Display(place.experiment)

    def listen(entries: Sequence[JournalEntry]) -> None:
        display.print_entries(entries)
        trouble.on_entries(entries)

    until = time.monotonic() + LONGEST
    with control(place.experiment, "demo", listen) as session, display.showing(session.journal):
        while time.monotonic() < until:
            display.after_pass(session.step())
            if session.done:
                break
            attempt = _current_attempt(session)
            trouble.kill_if_due(attempt)
            if trouble.will_end(attempt):
                time.sleep(POLL_SECONDS)
            else:
                session.wait()
        (run,) = session.journal.runs()
        return run, list(session.journal.attempts(run.name))


def _current_attempt(session: Supervisor) -> Attempt | None:
    return next((session.journal.current(run) for run in session.journal.live().values()), None)


def _find_missing(run: Run, trouble: DemoTrouble) -> list[str]:
    if run.state is not RunState.FINISHED:
        return ["the run is %s: %s" % (run.state.value, run.reason or "not finished within %d s" % LONGEST)]
    missing = []
    if not trouble.killed:
        missing.append("no attempt was killed; this machine may be too busy, try again")
    elif not trouble.noticed:
        missing.append("no attempt noticed that checkpoint %s was torn" % trouble.torn)
    return missing


def _print_comparison(comparison: Comparison, attempts: list[Attempt]) -> None:
    hosts = {attempt.host for attempt in attempts}
    click.echo(
        "Undisturbed, the network reads %.2f %% of the test images right. After %d attempts on %d hosts, one "
        "of them killed, and a torn checkpoint, it reads %.2f %%."
        % (100 * comparison.accuracies[0], len(attempts), len(hosts), 100 * comparison.accuracies[1])
    )
    if not comparison.differences:
        sentence = "All %d weights in %d arrays are the same, bit for bit." % (
            comparison.numbers,
            comparison.arrays,
        )
        click.echo(click.style(sentence, fg="green", bold=True) + "\n")


def _report(text: str) -> None:
    line = "%s %s" % (click.style("demo:", fg="magenta", bold=True), click.style(text, bold=True))
    # Not click.echo, which bypasses the stream that keeps the live display below the lines.
    print(line if on_terminal() and has_colours() else click.unstyle(line), flush=True)


class _DemoProgress:
    """Progress in one line that is overwritten on a terminal, elsewhere in a line from time to time."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def show(self, progress: Mapping[str, Any]) -> None:
        step, total = progress["step"], progress["total"]
        share, accuracy = step / total, progress["metrics"]["accuracy"]
        line = "step %d of %d (%d %%), accuracy %.3f" % (step, total, 100 * share, accuracy)
        if can_move_cursor():
            text = "\r\033[K%-30s %s" % ("█" * round(30 * share), line)
            click.echo(text, nl=False, file=unfiltered(sys.stdout))
        elif time.monotonic() - self._last >= LINE_EVERY:
            self._last = time.monotonic()
            click.echo(line)

    def clear(self) -> None:
        if can_move_cursor():
            click.echo("\r\033[K", nl=False, file=unfiltered(sys.stdout))

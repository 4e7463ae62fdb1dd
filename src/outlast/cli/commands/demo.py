"""`outlast demo`: a training that outlasts kills, limits and a torn checkpoint, live."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outlast.cli import FAILED, INTERRUPTED
from outlast.cli.common import on_terminal
from outlast.domain.model import Attempt, JournalEntry, Run, RunState
from outlast.errors import BadInput

if TYPE_CHECKING:
    from outlast.controller.supervisor import Supervisor
    from outlast.demo.compare import Comparison
    from outlast.demo.stage import DemoStage
    from outlast.demo.trouble import DemoTrouble

#: Seconds after which the disturbed training is given up.
LONGEST = 300.0
#: Seconds between looks at an attempt that is about to be killed.
GLANCE = 0.1
#: Seconds between lines about progress where they cannot be overwritten.
LINE_EVERY = 3.0

INTRODUCTION = """\
A small network learns to read handwritten digits, twice: first undisturbed, in one go; then on a cluster of
two hosts, rehearsed on this machine, that ends every job after a few seconds. One of the jobs is killed
without warning, and one checkpoint is torn. Both trainings must come to the same weights, bit for bit.
It takes about half a minute.
"""
NEXT = """\
What to try next:
  outlast init my-training --example digits   # the same training, yours to edit: params.yaml, train.py
  cd my-training && outlast run               # attempt after attempt, until the outputs are checked
  outlast status --watch                      # from another terminal: what every run is doing
  outlast local status                        # the jobs; `outlast local kill JOB` makes trouble
  outlast explain                             # attempt by attempt: what happened, what was decided, why
  outlast report                              # where the time went
"""


@click.command()
@click.option(
    "--keep",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Leave everything in DIR, to look at it afterwards.",
)
@click.option("--epochs", type=click.IntRange(min=1), hidden=True, help="For a shorter training.")
@click.pass_context
def command(ctx: click.Context, keep: Path | None, epochs: int | None) -> None:
    """See a training outlast kills, limits and a torn checkpoint, in about half a minute.

    Exits with 0 only if all of that happened and the weights are the same as without it.
    """
    if importlib.util.find_spec("numpy") is None:
        raise BadInput("the demo trains with NumPy, which is not installed; type: pip install numpy")
    from outlast.demo.stage import stage

    click.echo(INTRODUCTION)
    try:
        with stage(keep) as place:
            code = _show(place, epochs)
    except KeyboardInterrupt:
        click.echo("\ninterrupted; all that the demo had started is ended", err=True)
        ctx.exit(INTERRUPTED)
    if keep is not None:
        click.echo("Everything is in %s: try `outlast explain -C %s`\n" % (keep, keep / "digits"))
    if code == 0:
        click.echo(NEXT.rstrip())
    ctx.exit(code)


def _show(place: DemoStage, epochs: int | None) -> int:
    from outlast import spec
    from outlast.cli.commands.report import text
    from outlast.cli.commands.submit import hand_over
    from outlast.demo import undisturbed
    from outlast.demo.compare import compare
    from outlast.demo.stage import HOSTS, limit_attempts, make_experiment
    from outlast.demo.trouble import DemoTrouble
    from outlast.domain.ledger import book

    experiment = place.experiment
    make_experiment(place.undisturbed, epochs)
    make_experiment(experiment.root, epochs)
    _say("training undisturbed, in one go")
    progress = _DemoProgress()
    seconds = undisturbed.train(place.undisturbed, spec.read(experiment.root).spec.command, progress.show)
    progress.clear()
    _say("done undisturbed after %.1f s" % seconds)

    limit = limit_attempts(experiment, seconds)
    _say("the same training on %s, with a limit of %d s for each job" % (" and ".join(HOSTS), limit))
    hand_over(experiment)
    trouble = DemoTrouble(experiment, place.scheduler.kill, _say)
    run, attempts = _supervise(place, trouble)
    click.echo("\nWhere the time went:\n%s\n" % text(book(run, attempts)))

    wrong = _what_is_missing(run, trouble)
    if not wrong:
        comparison = compare(place.undisturbed, experiment.result(run.name))
        wrong = list(comparison.differences)
        _conclude(comparison, attempts)
    for sentence in wrong:
        click.echo(click.style("demo: FAILED: %s" % sentence, fg="red"), err=True)
    return FAILED if wrong else 0


def _supervise(place: DemoStage, trouble: DemoTrouble) -> tuple[Run, list[Attempt]]:
    """What `outlast up` does, with trouble in between."""
    from outlast.cli.live import Display
    from outlast.controller.supervisor import control

    display = Display(place.experiment)

    def listen(entries: Sequence[JournalEntry]) -> None:
        display.entries(entries)
        trouble.on_entries(entries)

    until = time.monotonic() + LONGEST
    with control(place.experiment, "demo", listen) as session, display.showing(session.journal):
        while time.monotonic() < until:
            display.passed(session.step())
            if session.done:
                break
            attempt = _current(session)
            trouble.kill_if_due(attempt)
            if trouble.will_kill(attempt):
                time.sleep(GLANCE)
            else:
                session.wait()
        (run,) = session.journal.runs()
        return run, list(session.journal.attempts(run.name))


def _current(session: Supervisor) -> Attempt | None:
    return next((session.journal.current(run) for run in session.journal.live().values()), None)


def _what_is_missing(run: Run, trouble: DemoTrouble) -> list[str]:
    if run.state is not RunState.FINISHED:
        return ["the run is %s: %s" % (run.state.value, run.reason or "not finished within %d s" % LONGEST)]
    missing = []
    if not trouble.killed:
        missing.append("no attempt was killed; this machine may be busy, try again")
    elif not trouble.noticed:
        missing.append("no attempt noticed that checkpoint %s was torn" % trouble.torn)
    return missing


def _conclude(comparison: Comparison, attempts: list[Attempt]) -> None:
    hosts = {attempt.host for attempt in attempts}
    click.echo(
        "Undisturbed, it reads %.2f %% of the test images right; after %d attempts on %d hosts, one of them "
        "killed, and with a checkpoint torn, %.2f %%."
        % (100 * comparison.accuracies[0], len(attempts), len(hosts), 100 * comparison.accuracies[1])
    )
    if not comparison.differences:
        sentence = "All %d weights in %d arrays are the same, bit for bit." % (
            comparison.numbers,
            comparison.arrays,
        )
        click.echo(click.style(sentence, fg="green", bold=True) + "\n")


def _say(text: str) -> None:
    line = "%s %s" % (click.style("demo:", fg="magenta", bold=True), click.style(text, bold=True))
    # Not click.echo: it writes past the stream that keeps the live display below the lines.
    print(line if on_terminal() else click.unstyle(line), flush=True)


class _DemoProgress:
    """One line that is overwritten on a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def show(self, said: Mapping[str, Any]) -> None:
        step, total = said["step"], said["total"]
        share, accuracy = step / total, said["metrics"]["accuracy"]
        line = "step %d of %d (%d %%), accuracy %.3f" % (step, total, 100 * share, accuracy)
        if on_terminal():
            click.echo("\r\033[K%-30s %s" % ("█" * round(30 * share), line), nl=False)
        elif time.monotonic() - self._last >= LINE_EVERY:
            self._last = time.monotonic()
            click.echo(line)

    def clear(self) -> None:
        if on_terminal():
            click.echo("\r\033[K", nl=False)

"""`outlast status`: the state of every run. Imports little: cron jobs and shell prompts call it."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from outlast.cli.common import (
    add_colour,
    can_move_cursor,
    directory_argument,
    experiment_at,
    how_to_resume,
    join_names,
    json_option,
    open_journal,
    show_argument,
    show_time,
    show_waiting_requests,
    table,
    wrap_line,
    write_json,
)
from outlast.cli.safe_output import unfiltered
from outlast.controller.inbox import Inbox
from outlast.domain.model import Attempt, AttemptState, Outcome, Run, RunState
from outlast.exchange.attempt_log import log_directory, read_attempt
from outlast.exchange.experiment import Experiment
from outlast.journal.journal import Journal
from outlast.journal.lease import describe, living_holder
from outlast.text import counted, printable

#: Clears the screen and moves the cursor to its top.
CLEAR = "\033[2J\033[1;1H"
#: Runs shown when there are many; `--all` shows the rest.
SHOWN = 30
#: Lines that the detail of a run may need on a narrow terminal.
MOST_LINES = 12


@click.command()
@directory_argument
@json_option
@click.option("--all", "everything", is_flag=True, help="Show all runs.")
@click.option("--watch", is_flag=True, help="Refresh every two seconds until all runs have ended.")
def command(directory: Path, as_json: bool, everything: bool, watch: bool) -> None:
    """Show the state of every run."""
    experiment = experiment_at(directory)
    while True:
        journal = open_journal(experiment)
        try:
            if as_json:
                write_json(_as_json(experiment, journal))
            else:
                if watch and can_move_cursor():
                    click.echo(CLEAR, nl=False, file=unfiltered(sys.stdout))
                click.echo(_text(experiment, journal, everything, directory))
            live = _has_live_runs(journal.counts())
        finally:
            journal.close()
        if not watch or not live:
            return
        time.sleep(2.0)


def _as_json(experiment: Experiment, journal: Journal) -> dict[str, Any]:
    holder = living_holder(journal)
    return {
        "experiment": str(experiment.root),
        "counts": journal.counts(),
        "controller": holder or None,
        "alike": [
            {"runs": list(runs), "detail": max(runs.values(), key=lambda one: one.at).detail}
            for runs in journal.alike_failures().values()
            if len(runs) > 1
        ],
        "runs": [_run_as_json(experiment, journal, run) for run in journal.runs()],
    }


def _run_as_json(experiment: Experiment, journal: Journal, run: Run) -> dict[str, Any]:
    attempt = journal.attempt(run.current) if run.current else None
    return {
        "run": run.name,
        "state": run.state.value,
        "params": dict(run.params),
        "attempts": run.attempts,
        "reason": run.reason,
        "step": _step(experiment, run, attempt),
        "outcome": run.last.outcome.value if run.last else None,
        "attempt": attempt.state.value if attempt else None,
        "job": attempt.job if attempt else None,
        "host": attempt.host if attempt else None,
        "blocked": _blocked(journal, run, attempt),
    }


def _blocked(journal: Journal, run: Run, attempt: Attempt | None) -> str | None:
    """Return why its files keep the run from continuing; None if they do not."""
    if attempt is None and run.state is RunState.ACCEPTED and run.accepted:
        attempt = journal.attempt(run.accepted)
    return attempt.blocked or None if attempt else None


def _text(experiment: Experiment, journal: Journal, everything: bool, directory: Path) -> str:
    counts = journal.counts()
    total = sum(counts.values())
    lines = [
        "%s: %s"
        % (experiment.root.name, ", ".join("%d %s" % (n, add_colour(s)) for s, n in sorted(counts.items()))),
        "",
    ]
    runs = journal.runs() if everything or total <= SHOWN else journal.most_relevant_runs(SHOWN)
    rows = [_row(experiment, journal, run) for run in runs]
    lines.append(
        table(
            ("RUN", "STATE", "ATTEMPT", "STEP", "SINCE", "DETAIL"), rows, right=(2, 3), most_lines=MOST_LINES
        )
    )
    if len(rows) < total:
        lines.append("… and %d more; --all shows them" % (total - len(rows)))
    lines += ["", *_describe_alike(journal, directory)]
    lines += [_describe_supervision(experiment, journal, counts, directory)]
    return "\n".join(lines).rstrip()


def _describe_alike(journal: Journal, directory: Path) -> list[str]:
    """Return a line for each failure that runs have in common, and how to start runs that are held back."""
    lines = []
    for runs in journal.alike_failures().values():
        if len(runs) > 1:
            last = max(runs.values(), key=lambda one: one.at)
            text = "%d runs failed alike: %s: %s" % (
                len(runs),
                join_names(list(runs)),
                printable(last.detail),
            )
            lines.append(wrap_line(text, 2))
    held_back = journal.counts().get(RunState.HELD_BACK.value, 0)
    if held_back:
        text = "%s held back: %s" % (counted(held_back, "run"), how_to_resume(directory))
        lines.append(wrap_line(text, 2))
    return lines


def _row(experiment: Experiment, journal: Journal, run: Run) -> tuple[str, ...]:
    attempt = journal.attempt(run.current) if run.current else None
    state = attempt.state.value if attempt else run.state.value
    since = (attempt.started or attempt.queued or attempt.intended) if attempt else None
    if since is None:
        since = run.last.at if run.last else run.added
    step = _step(experiment, run, attempt)
    return (
        run.name,
        add_colour(state),
        str(run.attempts),
        "-" if step is None else str(step),
        show_time(since),
        _detail(experiment, journal, run, attempt),
    )


def _step(experiment: Experiment, run: Run, attempt: Attempt | None) -> int | None:
    """Return the highest saved step, also of the running attempt; None if nothing is saved."""
    if attempt is None or attempt.state is not AttemptState.RUNNING:
        return run.best_step
    report = read_attempt(log_directory(experiment.exchange_of(attempt)))
    steps = [step for step in (run.best_step, report.step if report else None) if step is not None]
    return max(steps, default=None)


def _detail(experiment: Experiment, journal: Journal, run: Run, attempt: Attempt | None) -> str:
    if attempt is None:
        if run.state is RunState.HELD_BACK:
            return "held back: others failed alike"
        if run.state.over or run.last is None:
            return printable(run.reason)
        if run.last.outcome is Outcome.FINISHED:
            blocked = _blocked(journal, run, None)
            if blocked:
                return "cannot publish its results: %s" % printable(blocked)
            return "publishing its results"
        return "between attempts: %s" % printable(run.last.detail)
    if attempt.blocked:
        return "cannot be settled since %s: %s" % (
            show_time(attempt.blocked_since),
            printable(attempt.blocked),
        )
    if attempt.missed is not None:
        return "not listed by the scheduler since %s" % show_time(attempt.missed)
    if attempt.state is not AttemptState.RUNNING or attempt.waits:
        return printable(attempt.waits) or attempt.reason
    from outlast.cli.live import show_progress

    return ", ".join(filter(None, ("on %s" % attempt.host, show_progress(experiment, attempt))))


def _describe_supervision(
    experiment: Experiment, journal: Journal, counts: Mapping[str, int], directory: Path
) -> str:
    """Return who supervises the experiment, or what to type; empty if all runs have ended."""
    lines = []
    holder = living_holder(journal)
    waiting = len(Inbox(experiment.inbox).names())
    if waiting:
        lines.append("%s to be processed" % show_waiting_requests(waiting))
    if holder:
        lines.append(describe(holder))
    elif waiting or _has_live_runs(counts):
        place = show_argument(directory)
        if _is_chained(journal):
            lines.append("Chains need no supervision. Run `outlast tick%s` to update this view." % place)
        else:
            text = "Not supervised. Run `outlast up%s` (or `outlast tick%s` from cron) to continue."
            lines.append(text % (place, place))
    return "\n".join(lines)


def _is_chained(journal: Journal) -> bool:
    """Return True if all runs that have not ended were submitted as chains."""
    # Reading all runs takes longer than the rest of this command, and one run without a chain decides it.
    for run in journal.most_relevant_runs(SHOWN):
        attempt = journal.attempt(run.current) if run.current else None
        if not run.state.over and (attempt is None or attempt.jobs <= 1):
            return False
    attempts = [journal.current(run) for run in journal.live().values()]
    return bool(attempts) and all(attempt is not None and attempt.jobs > 1 for attempt in attempts)


def _has_live_runs(counts: Mapping[str, int]) -> bool:
    return any(not RunState(state).over and state != RunState.HELD_BACK.value for state in counts)

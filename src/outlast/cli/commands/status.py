"""`outlast status`: the state of every run. Imports little: cron jobs and shell prompts call it."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outlast.cli import current_state
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
from outlast.cli.current_state import CurrentState
from outlast.cli.safe_output import unfiltered
from outlast.controller.waiting_requests import waiting_requests
from outlast.domain import untrusted
from outlast.domain.model import Attempt, AttemptState, Run, RunState, Spec
from outlast.exchange.experiment import Experiment
from outlast.journal.journal import Journal
from outlast.journal.lease import describe, living_holder
from outlast.text import counted, printable

if TYPE_CHECKING:
    from outlast.domain.observation import JobView
    from outlast.exchange.attempt_log import Glance

#: Clears the screen and moves the cursor to its top.
CLEAR = "\033[2J\033[1;1H"
#: Seconds for the scheduler to respond to `--refresh`.
REFRESH_TIMEOUT = 10.0
#: Runs shown when there are many; `--all` shows the rest.
SHOWN = 30
#: Metrics of a run in JSON.
MOST_METRICS = 20
#: Lines that the detail of a run may need on a narrow terminal.
MOST_LINES = 12


@click.command()
@directory_argument
@json_option
@click.option("--all", "everything", is_flag=True, help="Show all runs.")
@click.option("--watch", is_flag=True, help="Refresh every two seconds until all runs have ended.")
@click.option("--refresh", is_flag=True, help="Ask the scheduler too. Changes nothing.")
def command(directory: Path, as_json: bool, everything: bool, watch: bool, refresh: bool) -> None:
    """Show the state of every run, by the journal and by what the jobs have logged since."""
    experiment = experiment_at(directory)
    while True:
        journal = open_journal(experiment)
        try:
            sight = _Sight(experiment, journal, _poll(experiment, journal) if refresh else None)
            if as_json:
                write_json(_as_json(sight))
            else:
                if watch and can_move_cursor():
                    click.echo(CLEAR, nl=False, file=unfiltered(sys.stdout))
                click.echo(_text(sight, everything, directory))
            live = _has_live_runs(journal.counts())
        finally:
            journal.close()
        if not watch or not live:
            return
        time.sleep(2.0)


class _Sight:
    """What can be seen of an experiment now: its journal, its logs and, if asked, its scheduler."""

    def __init__(self, experiment: Experiment, journal: Journal, views: Mapping[str, JobView] | None) -> None:
        self.experiment = experiment
        self.journal = journal
        self._views = views
        self.holder = living_holder(journal)
        self._now = time.time()
        # For every row alike; reading them again for each costs more than the rest of the command.
        self.counts = journal.counts()
        self._newest_spec = journal.newest_spec()
        self._specs: dict[int, Spec] = {}

    def spec(self, run: Run) -> Spec:
        if run.spec not in self._specs:
            self._specs[run.spec] = self.journal.spec(run.spec)
        return self._specs[run.spec]

    def attempt(self, run: Run) -> Attempt | None:
        return self.journal.attempt(run.current) if run.current else None

    def glance(self, attempt: Attempt | None) -> Glance | None:
        if attempt is None or attempt.state is AttemptState.INTENDED:
            return None
        from outlast.exchange.attempt_log import glance

        return glance(self.experiment.exchange_of(attempt))

    def state(self, run: Run, attempt: Attempt | None, logged: Glance | None) -> CurrentState:
        if attempt is not None:
            return current_state.of_attempt(run, attempt, logged, self._views, bool(self.holder), self._now)
        blocked = _blocked(self.journal, run, None)
        if blocked:
            text = "cannot publish its results: %s" % printable(blocked)
            return CurrentState(run.state.value, text, run.last.at if run.last else run.added)
        if run.state.over or run.state is RunState.HELD_BACK:
            now = current_state.of_waiting(run, None, 0, supervised=True)
            # Without an attempt, only the entries show when it was cancelled or held back.
            changed = self.journal.last_change(run.name) if run.last is None else None
            return now if changed is None else replace(now, since=changed)
        active = self.counts.get(RunState.ACTIVE.value, 0)
        return current_state.of_waiting(run, self._newest_spec, active, bool(self.holder))


def _poll(experiment: Experiment, journal: Journal) -> Mapping[str, JobView] | None:
    """Return the jobs that the scheduler lists; None, with a message, if it does not respond."""
    from outlast.schedulers import connect
    from outlast.schedulers.base import JobRef, SchedulerUnavailable

    spec = journal.newest_spec()
    current = [journal.current(run) for run in journal.live().values()]
    refs = [JobRef(one.token, one.job, one.intended) for one in current if one is not None]
    if spec is None or not refs:
        return {}
    scheduler = connect(spec, experiment.identity, experiment.params)
    scheduler.timeout = min(REFRESH_TIMEOUT, scheduler.timeout)
    try:
        return scheduler.poll(refs)
    except SchedulerUnavailable as error:
        click.echo("the scheduler does not respond: %s; this is what the logs show" % error, err=True)
        return None


def _as_json(sight: _Sight) -> dict[str, Any]:
    return {
        "experiment": str(sight.experiment.root),
        "counts": sight.counts,
        "controller": sight.holder or None,
        "alike": [
            {"runs": list(runs), "detail": max(runs.values(), key=lambda one: one.at).detail}
            for runs in sight.journal.alike_failures().values()
            if len(runs) > 1
        ],
        "runs": [_run_as_json(sight, run) for run in sight.journal.runs()],
    }


def _run_as_json(sight: _Sight, run: Run) -> dict[str, Any]:
    from outlast.exchange.attempt_log import progress_of

    attempt = sight.attempt(run)
    logged = sight.glance(attempt)
    now = sight.state(run, attempt, logged)
    spec = sight.spec(run)
    progress = progress_of(sight.experiment.exchange_of(attempt)) if attempt and logged else None
    return {
        "run": run.name,
        "state": run.state.value,
        "params": dict(run.params),
        "attempts": run.attempts,
        "reason": run.reason,
        "step": _step(run, logged),
        "outcome": run.last.outcome.value if run.last else None,
        "attempt": attempt.state.value if attempt else None,
        "job": attempt.job if attempt else None,
        "host": (attempt.host or (logged.host if logged else "")) if attempt else None,
        "blocked": _blocked(sight.journal, run, attempt),
        "now": {"state": now.word, "detail": now.detail, "since": now.since},
        "cluster": spec.cluster,
        "cpus": spec.resources.cpus,
        "gpus": spec.resources.gpus,
        "added": run.added,
        "queued": attempt.queued if attempt else None,
        "started": attempt.started if attempt else None,
        "last_logged": logged.last_logged if logged else None,
        "progress": _progress(progress),
    }


def _progress(progress: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the newest progress that the training reports: step, total and metrics."""
    if progress is None:
        return None
    metrics = progress.get("metrics")
    return {
        "step": untrusted.integer(progress.get("step")),
        "total": untrusted.integer(progress.get("total")),
        "at": untrusted.seconds(progress.get("at")),
        "metrics": {
            untrusted.text(name, 100): _metric(value)
            for name, value in (list(metrics.items())[:MOST_METRICS] if isinstance(metrics, dict) else ())
        },
    }


def _metric(value: object) -> float | int | None:
    """Return the value of a metric; None if JSON has no such number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return untrusted.integer(value, -(2**63))


def _blocked(journal: Journal, run: Run, attempt: Attempt | None) -> str | None:
    """Return why its files keep the run from continuing; None if they do not."""
    if attempt is None and run.state is RunState.ACCEPTED and run.accepted:
        attempt = journal.attempt(run.accepted)
    return attempt.blocked or None if attempt else None


def _text(sight: _Sight, everything: bool, directory: Path) -> str:
    experiment, journal = sight.experiment, sight.journal
    counts = sight.counts
    total = sum(counts.values())
    if not total:
        waiting = _describe_supervision(sight, counts, directory)
        return waiting or "%s: no runs yet; start with `outlast run`" % experiment.root.name
    lines = [
        "%s: %s"
        % (experiment.root.name, ", ".join("%d %s" % (n, add_colour(s)) for s, n in sorted(counts.items()))),
        "",
    ]
    runs = journal.runs() if everything or total <= SHOWN else journal.most_relevant_runs(SHOWN)
    rows = [_row(sight, run) for run in runs]
    lines.append(
        table(
            ("RUN", "STATE", "ATTEMPT", "STEP", "SINCE", "DETAIL"), rows, right=(2, 3), most_lines=MOST_LINES
        )
    )
    if len(rows) < total:
        lines.append("… and %d more; --all shows them" % (total - len(rows)))
    lines += ["", *_describe_alike(journal, directory)]
    lines += [_describe_supervision(sight, counts, directory)]
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


def _row(sight: _Sight, run: Run) -> tuple[str, ...]:
    attempt = sight.attempt(run)
    logged = sight.glance(attempt)
    now = sight.state(run, attempt, logged)
    step = _step(run, logged)
    return (
        run.name,
        add_colour(now.word),
        str(run.attempts),
        "-" if step is None else str(step),
        show_time(now.since),
        _detail(sight.experiment, attempt, now),
    )


def _step(run: Run, logged: Glance | None) -> int | None:
    """Return the highest saved step, also of the running attempt; None if nothing is saved."""
    steps = [step for step in (run.best_step, logged.step if logged else None) if step is not None]
    return max(steps, default=None)


def _detail(experiment: Experiment, attempt: Attempt | None, now: CurrentState) -> str:
    if attempt is None or not now.running:
        return now.detail
    from outlast.cli.training_progress import show_progress

    return ", ".join(filter(None, (now.detail, show_progress(experiment, attempt))))


def _describe_supervision(sight: _Sight, counts: Mapping[str, int], directory: Path) -> str:
    """Return who supervises the experiment, or what to type; empty if all runs have ended."""
    lines = []
    journal, holder = sight.journal, sight.holder
    waiting = len(waiting_requests(sight.experiment.inbox))
    if waiting:
        lines.append("%s to be processed" % show_waiting_requests(waiting))
    if holder:
        lines.append(wrap_line(describe(holder), 2))
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

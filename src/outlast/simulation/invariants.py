"""The promises, as checks of the result of a schedule against what really happened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import sqrt

from outlast.domain.engine import WAITS_AGAIN
from outlast.domain.fold import apply
from outlast.domain.model import ATTEMPT_KINDS, Attempt, Cause, EntryKind, Outcome, Phase, Run, RunState
from outlast.domain.observation import JobPhase, Report
from outlast.domain.policy import CLUSTER_PATIENCE
from outlast.simulation.history import History, Violation
from outlast.simulation.ledger_checks import ledger_closes
from outlast.simulation.scenario import BUG, WRONG, Nature
from outlast.simulation.simulated_job import SimulatedJob


def violations(history: History) -> Iterator[Violation]:
    """Yield the promises that a schedule broke."""
    yield from _fold_agrees(history)
    for run in history.runs.values():
        attempts = history.attempts_of(run.name)
        for promise, check in _CHECKS:
            for text in check(history, run, attempts):
                yield Violation(promise, run.name, text)


def _fold_agrees(history: History) -> Iterator[Violation]:
    runs: dict[str, Run] = {}
    attempts: dict[str, Attempt] = {}
    for entry in history.entries:
        token = entry.token if entry.kind in ATTEMPT_KINDS else None
        run, attempt = apply(runs.get(entry.run), attempts.get(token) if token else None, entry)
        runs[run.name] = run
        if attempt is not None:
            attempts[attempt.token] = attempt
    if runs != history.runs or attempts != history.attempts:
        yield Violation("fold", "", "folding the entries again does not give the records")


def _is_over(history: History, run: Run, attempts: Sequence[Attempt]) -> Iterator[str]:
    if not run.state.over:
        yield "still %s" % run.state.value
    elif not run.reason:
        yield "%s without a reason" % run.state.value
    if [attempt.number for attempt in attempts] != list(range(1, run.attempts + 1)):
        yield "its attempts are not numbered one by one"


def _nothing_left(history: History, run: Run, attempts: Sequence[Attempt]) -> Iterator[str]:
    """Find jobs that are queued, running or held for a run that is over."""
    for attempt in attempts:
        job = history.jobs.get(attempt.token)
        if job is not None and job.phase is not JobPhase.ENDED and not job.hidden_for_good:
            yield "the job of attempt %d was left %s" % (attempt.number, job.phase.value)


def _last_report_counts(history: History, run: Run, attempts: Sequence[Attempt]) -> Iterator[str]:
    """Find attempts whose outcome is not the one that the last start of the job logged in time."""
    if history.scenario.weather.clock_jumps:
        return
    for attempt in attempts:
        logs, job = history.exchange.logs(attempt.token), history.jobs.get(attempt.token)
        if job is None or job.was_missing or not logs or logs[-1].cut_off or attempt.ended != job.ended:
            continue
        logged = logs[-1].outcome
        arrived = history.exchange.arrives_within(attempt.token, history.scenario.patience.files)
        cancelled = attempt.cancel_sent is not None or attempt.outcome is Outcome.CANCELLED
        if logged is not None and arrived and not cancelled and attempt.outcome is not logged:
            yield "attempt %d logged %s, and ended as %s" % (attempt.number, logged.value, attempt.outcome)


def _sent_although_held(history: History, run: Run, attempts: Sequence[Attempt]) -> Iterator[str]:
    """Find runs that are submitted again although the scheduler holds every job for good."""
    refused = [a for a in _since_retry(history, run, attempts) if a.outcome is Outcome.REJECTED and a.queued]
    if history.truths[run.name].held_for_good and len(refused) > 1:
        yield "%d jobs were sent although the first was held for good" % len(refused)


def _one_result(history: History, run: Run, attempts: Sequence[Attempt]) -> Iterator[str]:
    accepted = [
        entry for entry in history.entries if entry.run == run.name and entry.kind is EntryKind.ACCEPTED
    ]
    if len(accepted) > 1:
        yield "%d results were accepted" % len(accepted)
    published, steps = history.exchange.published.get(run.name, (None, 0))
    if run.state is RunState.FINISHED and (published is None or published != run.accepted):
        yield "finished with %s accepted and %s published" % (run.accepted, published)
    if run.state is not RunState.FINISHED and published is not None:
        yield "%s, although results were published" % run.state.value
    if published is not None and steps != history.truths[run.name].training.steps:
        yield "the result has %s steps" % steps


# Promise 6.


def _patience(history: History, run: Run, attempts: Sequence[Attempt]) -> Iterator[str]:
    truth = history.truths[run.name]
    nature = truth.training.nature
    since = _since_retry(history, run, attempts)
    if nature is Nature.HEALTHY:
        if run.state is RunState.FAILED and not _given_up_rightly(history, run, attempts, since):
            yield "failed although only the cluster caused it: %s" % run.reason
        return
    if run.state is RunState.FINISHED:
        yield "finished although it is %s" % nature.value
    if nature is Nature.HOPELESS:
        over_time = [a for a in since if _logged(history, a, (Outcome.OVER_TIME,))]
        limits = history.scenario.spec.limits
        if len(over_time) > (limits.without_progress if limits.start_over else 1):
            yield "%d attempts reached the limit without progress" % len(over_time)
        return
    error = BUG if nature is Nature.BUGGY else WRONG
    outcomes = (truth.training.bug_outcome, Outcome.WRONG_OUTPUT)
    failed = [a for a in since if _logged(history, a, outcomes, error)]
    # Progress in between, and a failure of another kind, reset the count.
    resets = truth.flukes + sum(_progressed_otherwise(history, a, error) for a in since)
    # With more memory, it is not the same.
    resets += len({attempt.memory for attempt in since} - {None})
    if len(failed) > 2 + resets:
        yield "%d attempts failed in the same way" % len(failed)
    is_explained = run.state is not RunState.FAILED or error in run.reason
    if not is_explained and not _given_up_rightly(history, run, attempts, since):
        yield "the reason does not contain the error of the training: %s" % run.reason


def _since_retry(history: History, run: Run, attempts: Sequence[Attempt]) -> list[Attempt]:
    before = last = 0
    for entry in history.entries:
        if entry.run == run.name and entry.kind is EntryKind.INTENDED:
            last = entry.data["number"]
        elif entry.run == run.name and entry.kind is EntryKind.RETRIED:
            before = last
    return [attempt for attempt in attempts if attempt.number > before]


def _logged(history: History, attempt: Attempt, outcomes: Sequence[Outcome], error: str = "") -> bool:
    """Return True if the controller read a report with such an end, and recorded it as the outcome."""
    report = history.exchange.last_reports.get(attempt.token)
    if report is None or report.logged_outcome not in outcomes:
        return False
    return attempt.outcome is report.logged_outcome and error in report.detail


def _progressed_otherwise(history: History, attempt: Attempt, error: str) -> bool:
    report = history.exchange.last_reports.get(attempt.token)
    return report is not None and report.progressed and error not in report.detail


def _given_up_rightly(
    history: History, run: Run, attempts: Sequence[Attempt], since: Sequence[Attempt]
) -> bool:
    """Return True if a limit was really reached, as far as the controller could know."""
    limits = history.scenario.spec.limits
    ended = max(
        entry.at for entry in history.entries if entry.run == run.name and entry.kind is EntryKind.FAILED
    )
    truth = history.truths[run.name]
    if truth.refused or truth.held_for_good or ended - run.since > limits.total:
        return True
    if run.blocked_since is not None:  # files failed again and again, for as long as the controller waits
        return True
    if sum(_held_a_slot(history.jobs, attempt) for attempt in since) >= limits.attempts:
        return True
    if run.last is not None and run.last.unsaved and not limits.start_over:
        return not any(leg.saves for a in attempts for leg in history.exchange.logs(a.token))
    own, any_cause = _without_progress(history.exchange.last_reports, history.jobs, attempts)
    return own >= limits.without_progress or any_cause >= CLUSTER_PATIENCE * limits.without_progress


def _held_a_slot(jobs: Mapping[str, SimulatedJob], attempt: Attempt) -> bool:
    job = jobs.get(attempt.token)
    return job is not None and job.starts > 0


def _without_progress(
    last_reports: Mapping[str, Report], jobs: Mapping[str, SimulatedJob], attempts: Sequence[Attempt]
) -> tuple[int, int]:
    """Count, in a row and without progress: attempts not ended by the cluster, and starts that computed."""
    best: int | None = None
    own = starts = 0
    for attempt in attempts:
        report = last_reports.get(attempt.token)
        if report is None:
            continue
        saves = [save.step for leg in report.legs for save in leg.saves]
        steps = [step for step in saves if step is not None]
        computed = sum(any(phase is Phase.COMPUTE for phase, _ in leg.spans) for leg in report.legs)
        progressed = max(steps) > (best or 0) if steps else bool(saves)
        best = max([best or 0, *steps])
        if progressed:
            own = starts = 0
        elif computed:
            starts += computed
            own += jobs[attempt.token].cause in (Cause.TRAINING, Cause.LIMIT)
    return own, starts


def _stops_without_progress(history: History, run: Run, attempts: Sequence[Attempt]) -> Iterator[str]:
    """Find attempts after too many starts without progress; not if torn checkpoints hide progress."""
    most = CLUSTER_PATIENCE * history.scenario.spec.limits.without_progress
    since = _since_retry(history, run, attempts)
    for number in range(1, len(since)):
        _, starts = _without_progress(history.exchange.last_reports, history.jobs, since[:number])
        if starts >= most and not history.scenario.weather.torn:
            yield "%d starts in a row made no progress, and another attempt followed" % starts
            return


def _notes_are_few(history: History, run: Run, attempts: Sequence[Attempt]) -> Iterator[str]:
    """Find jobs whose reasons to wait were recorded too often."""
    if history.scenario.weather.clock_jumps:
        return
    recorded: dict[str, list[float]] = {}
    for entry in history.entries:
        if entry.run == run.name and entry.kind is EntryKind.WAITS:
            recorded.setdefault(entry.token or "", []).append(entry.at)
    for token, times in recorded.items():
        job = history.jobs[token]
        most = 3 + 2 * (job.holds + job.starts) + 2 * sqrt((times[-1] - times[0]) / WAITS_AGAIN)
        if len(times) > most:
            yield "why %s waits was recorded %d times" % (token, len(times))


_CHECKS = (
    ("1", _is_over),
    ("1", _sent_although_held),
    ("1", _nothing_left),
    ("1", _notes_are_few),
    ("2", _one_result),
    ("2", _last_report_counts),
    ("5", ledger_closes),
    ("6", _patience),
    ("6", _stops_without_progress),
)

"""The promises, as checks on what a schedule left behind, against what was true."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from outlast.fold import apply
from outlast.ledger import Booking, Use, book
from outlast.model import ATTEMPT_KINDS, Attempt, AttemptState, Cause, Entry, Kind, Outcome, Run, RunState
from outlast.observation import JobPhase, Report
from outlast.policy import CLUSTER_PATIENCE
from outlast.simulation.cluster import Job
from outlast.simulation.exchange import SimulatedExchange
from outlast.simulation.node import RunTruth
from outlast.simulation.scenario import BUG, WRONG, Nature, Scenario


@dataclass(frozen=True)
class Violation:
    """`promise` is its number in docs/promises.md, or "fold"."""

    promise: str
    run: str
    text: str

    def __str__(self) -> str:
        return "promise %s, %s: %s" % (self.promise, self.run or "all runs", self.text)


@dataclass
class History:
    """A schedule that is over: what the journal says, and what was true."""

    scenario: Scenario
    entries: list[Entry]
    runs: dict[str, Run]
    attempts: dict[str, Attempt]
    truths: dict[str, RunTruth]
    jobs: dict[str, Job]
    exchange: SimulatedExchange
    violations: list[Violation]
    passes: int
    deaths: int

    def attempts_of(self, run: str) -> list[Attempt]:
        return [attempt for attempt in self.attempts.values() if attempt.run == run]


def violations(history: History) -> Iterator[Violation]:
    yield from _fold_agrees(history)
    for run in history.runs.values():
        attempts = history.attempts_of(run.name)
        for promise, check in (("1", _is_over), ("2", _one_result), ("5", _ledger_closes), ("6", _patience)):
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
        yield Violation("fold", "", "the entries, folded again, give something else than the records")


def _is_over(history: History, run: Run, attempts: Sequence[Attempt]) -> Iterator[str]:
    if not run.state.over:
        yield "still %s" % run.state.value
    elif not run.reason:
        yield "%s without a reason" % run.state.value
    if [attempt.number for attempt in attempts] != list(range(1, run.attempts + 1)):
        yield "its attempts are not numbered one by one"


def _one_result(history: History, run: Run, attempts: Sequence[Attempt]) -> Iterator[str]:
    accepted = [entry for entry in history.entries if entry.run == run.name and entry.kind is Kind.ACCEPTED]
    if len(accepted) > 1:
        yield "%d results were accepted" % len(accepted)
    published = history.exchange.published.get(run.name)
    if run.state is RunState.FINISHED and (published is None or published != run.accepted):
        yield "finished with %s accepted and %s published" % (run.accepted, published)
    if run.state is not RunState.FINISHED and published is not None:
        yield "%s, although results were published" % run.state.value
    if published is not None:
        steps = history.exchange.delivered.get(published)
        if steps != history.truths[run.name].training.steps:
            yield "the result has %s steps" % steps


# Promise 5.


def _ledger_closes(history: History, run: Run, attempts: Sequence[Attempt]) -> Iterator[str]:
    over = [attempt for attempt in attempts if attempt.state is AttemptState.ENDED]
    bookings = book(run, attempts)
    if len(bookings) != len(over):
        yield "%d bookings for %d attempts" % (len(bookings), len(over))
        return
    for attempt, booking in zip(over, bookings, strict=True):
        booked = sum(booking.uses.values())
        held = float(attempt.account.get("slot") or 0.0) + attempt.twin_slot
        if abs(booked - held) > 1.0 or abs(booking.slot - held) > 1.0:
            yield "attempt %d: %.1f s booked of %.1f s" % (attempt.number, booked, held)
        if min(booking.uses.values(), default=0.0) < -1e-6:
            yield "attempt %d: less than nothing was booked" % attempt.number
        yield from _slot_is_true(history, attempt, held)
    if run.state is RunState.FINISHED:
        yield from _useful_is_true(history, run, over, bookings)


def _slot_is_true(history: History, attempt: Attempt, held: float) -> Iterator[str]:
    """Where the cluster told how long the job was on, that is what is booked."""
    job = history.jobs.get(attempt.token)
    if job is None or job.started is None or job.ended is None or job.phase is not JobPhase.ENDED:
        return
    elapsed = job.ended - job.started
    told_at_end = attempt.ended == job.ended
    told_later = attempt.outcome is Outcome.LOST and job.hidden == float("inf")
    if (told_at_end or told_later) and abs(held - elapsed) > 1.0:
        yield "attempt %d: %.1f s instead of the %.1f s it held a slot" % (attempt.number, held, elapsed)


def _useful_is_true(
    history: History, run: Run, attempts: Sequence[Attempt], bookings: Sequence[Booking]
) -> Iterator[str]:
    """Follow the result back through the checkpoints it came from, and compare with what was booked."""
    training = history.truths[run.name].training
    kept = _truly_kept(history, run)
    exact = training.tells_steps and all(_log_is_whole(history, attempt) for attempt in attempts)
    for attempt, booking in zip(attempts, bookings, strict=True):
        steps, saves = kept.get(attempt.token, (0, 0))
        net = steps * training.step_seconds
        gross = net + saves * training.save_seconds + (training.load_seconds if steps else 0.0)
        booked = booking.uses.get(Use.USEFUL, 0.0) + booking.uses.get(Use.SAVING, 0.0)
        if booked < net - 0.1 and _saves_are_known(history, attempt):
            yield "attempt %d: %.1f s booked as useful, %.1f s were" % (attempt.number, booked, net)
        if exact and abs(booked - gross) > 1.0:
            yield "attempt %d: %.1f s booked as useful or saving, %.1f s were" % (
                attempt.number,
                booked,
                gross,
            )


def _truly_kept(history: History, run: Run) -> dict[str, tuple[int, int]]:
    """By attempt: how many of its steps are in the result, and how many saves that took."""
    training = history.truths[run.name].training
    kept: dict[str, tuple[int, int]] = {}
    token, until = run.accepted or "", training.steps
    while token:
        log = history.exchange.log(token)
        assert log is not None
        resumed = log.resumed or 0
        saves = sum(step <= until for _, step in log.saves)
        kept[token] = (until - resumed, saves)
        token, until = log.resumed_from, resumed
    return kept


def _saves_are_known(history: History, attempt: Attempt) -> bool:
    """The journal holds every save that the attempt made."""
    log = history.exchange.log(attempt.token)
    if log is None:
        return True
    known = len(attempt.account.get("saves", ()))
    return len(log.saves) <= known or (known > 0 and attempt.outcome is not Outcome.LOST and known == 20)


def _log_is_whole(history: History, attempt: Attempt) -> bool:
    log = history.exchange.log(attempt.token)
    if log is None or log.compute_began is None:
        return True
    heard = history.exchange.handed.get(attempt.token)
    return (
        heard is not None
        and heard.computed
        and (heard.loaded or log.loaded is None)
        and _saves_are_known(history, attempt)
    )


# Promise 6.


def _patience(history: History, run: Run, attempts: Sequence[Attempt]) -> Iterator[str]:
    truth = history.truths[run.name]
    nature = truth.training.nature
    since = _since_retry(history, run, attempts)
    if nature is Nature.HEALTHY:
        if run.state is RunState.FAILED and not _given_up_rightly(history, run, attempts, since):
            yield "failed although only the cluster was to blame: %s" % run.reason
        return
    if run.state is RunState.FINISHED:
        yield "finished although it is %s" % nature.value
    if nature is Nature.HOPELESS:
        over_time = [a for a in since if _told(history, a, (Outcome.OVER_TIME,))]
        if len(over_time) > history.scenario.spec.limits.without_progress:
            yield "%d attempts reached the limit without progress" % len(over_time)
        return
    said = BUG if nature is Nature.BUGGY else WRONG
    outcomes = (truth.training.bug_outcome, Outcome.WRONG_OUTPUT)
    failed = [a for a in since if _told(history, a, outcomes, said)]
    # Progress in between, and a failure of another kind, begin the count anew.
    anew = truth.flukes + sum(_progressed_otherwise(history, a, said) for a in since)
    if len(failed) > 2 + anew:
        yield "%d attempts failed in the same way" % len(failed)
    told = run.state is not RunState.FAILED or said in run.reason
    if not told and not _given_up_rightly(history, run, attempts, since):
        yield "the reason does not say what is wrong with the training: %s" % run.reason


def _since_retry(history: History, run: Run, attempts: Sequence[Attempt]) -> list[Attempt]:
    before = last = 0
    for entry in history.entries:
        if entry.run == run.name and entry.kind is Kind.INTENDED:
            last = entry.data["number"]
        elif entry.run == run.name and entry.kind is Kind.RETRIED:
            before = last
    return [attempt for attempt in attempts if attempt.number > before]


def _told(history: History, attempt: Attempt, outcomes: Sequence[Outcome], said: str = "") -> bool:
    """The controller was told that the training ended like this, and was not about to cancel it."""
    report = history.exchange.handed.get(attempt.token)
    if report is None or report.outcome not in outcomes or attempt.outcome is Outcome.CANCELLED:
        return False
    return attempt.outcome is not Outcome.LOST and said in report.detail


def _progressed_otherwise(history: History, attempt: Attempt, said: str) -> bool:
    report = history.exchange.handed.get(attempt.token)
    return report is not None and report.changed and said not in report.detail


def _given_up_rightly(
    history: History, run: Run, attempts: Sequence[Attempt], since: Sequence[Attempt]
) -> bool:
    """A limit was truly reached, by what is true and what the controller could know of it."""
    limits = history.scenario.spec.limits
    ended = max(entry.at for entry in history.entries if entry.run == run.name and entry.kind is Kind.FAILED)
    if history.truths[run.name].refused or ended - run.since > limits.total:
        return True
    if sum(_held_a_slot(history.jobs, attempt) for attempt in since) >= limits.attempts:
        return True
    own, any_cause = _without_progress(history.exchange.handed, history.jobs, attempts)
    return own >= limits.without_progress or any_cause >= CLUSTER_PATIENCE * limits.without_progress


def _held_a_slot(jobs: Mapping[str, Job], attempt: Attempt) -> bool:
    job = jobs.get(attempt.token)
    return job is not None and job.started is not None


def _without_progress(
    handed: Mapping[str, Report], jobs: Mapping[str, Job], attempts: Sequence[Attempt]
) -> tuple[int, int]:
    """Attempts in a row that computed and saved nothing new: not ended by the cluster, and all."""
    best: int | None = None
    own = any_cause = 0
    for attempt in attempts:
        report = handed.get(attempt.token)
        if report is None:
            continue
        step = report.step
        if step is None:
            progressed = report.changed
        else:
            progressed = best is None or step > best
            best = max(step, best or 0)
        if progressed:
            own = any_cause = 0
        elif report.computed:
            any_cause += 1
            own += jobs[attempt.token].cause is not Cause.CLUSTER
    return own, any_cause

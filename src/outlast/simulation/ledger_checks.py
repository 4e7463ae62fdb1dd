"""Promise 5: the ledger closes, and the time that it books as useful really was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from outlast.domain.ledger import Booking, Use, book
from outlast.domain.model import Attempt, AttemptState, Outcome, Phase, Run, RunState
from outlast.domain.observation import JobPhase
from outlast.exchange.attempt_log import MOST_SAVES
from outlast.simulation.history import History
from outlast.simulation.simulated_checkpoints import LegKey
from outlast.simulation.simulated_job import NEVER


def ledger_closes(history: History, run: Run, attempts: Sequence[Attempt]) -> Iterator[str]:
    """Yield what is wrong with the bookings of a run."""
    over = [attempt for attempt in attempts if attempt.state is AttemptState.ENDED]
    bookings = book(run, attempts)
    if len(bookings) != len(over):
        yield "%d bookings for %d attempts" % (len(bookings), len(over))
        return
    for attempt, booking in zip(over, bookings, strict=True):
        booked = sum(booking.uses.values())
        held = attempt.account.slot_seconds + attempt.twin_slot
        if abs(booked - held) > 1.0 or abs(booking.slot - held) > 1.0:
            yield "attempt %d: %.1f s booked of %.1f s" % (attempt.number, booked, held)
        if min(booking.uses.values(), default=0.0) < -1e-6:
            yield "attempt %d: a negative time was booked" % attempt.number
        yield from _slot_is_true(history, attempt, held)
    if run.state is RunState.FINISHED:
        yield from _useful_is_true(history, run, over, bookings)


def _slot_is_true(history: History, attempt: Attempt, held: float) -> Iterator[str]:
    """Compare the booked slot time with the job's, if the cluster reported it."""
    job = history.jobs.get(attempt.token)
    if job is None or not job.starts or job.phase is not JobPhase.ENDED:
        return
    reported_at_end = attempt.ended == job.ended
    cut_off = any(log.cut_off for log in history.exchange.logs(attempt.token))
    again = job.make_view(history.scenario.counts_returns).restarts > attempt.restarts
    reappeared = attempt.outcome is Outcome.LOST or attempt.twin_slot > 0 or again
    reported_later = reappeared and job.hidden == NEVER and not cut_off
    if (reported_at_end or reported_later) and abs(held - job.slot) > 1.0:
        yield "attempt %d: %.1f s instead of the %.1f s it held a slot" % (attempt.number, held, job.slot)


def _useful_is_true(
    history: History, run: Run, attempts: Sequence[Attempt], bookings: Sequence[Booking]
) -> Iterator[str]:
    """Follow the result back through its checkpoints, and compare the useful time with the bookings."""
    training = history.truths[run.name].training
    kept = _kept_steps(history, run)
    exact = training.reports_steps and all(_log_is_complete(history, attempt) for attempt in attempts)
    for attempt, booking in zip(attempts, bookings, strict=True):
        net = gross = 0.0
        for number, log in enumerate(history.exchange.logs(attempt.token), start=1):
            steps, saves = kept.get((attempt.token, number), (0, 0))
            seconds = steps * training.step_seconds
            # Work after the scheduler lost contact with the leg is not in the slot time.
            net += 0.0 if log.cut_off else seconds
            gross += seconds + saves * training.save_seconds + (training.load_seconds if steps else 0.0)
        booked = booking.uses.get(Use.USEFUL, 0.0) + booking.uses.get(Use.SAVING, 0.0)
        if booked < net - 0.1 and _saves_are_known(history, attempt):
            yield "attempt %d: %.1f s booked as useful, %.1f s were" % (attempt.number, booked, net)
        if exact and abs(booked - gross) > 1.0:
            yield "attempt %d: %.1f s booked as useful or saving, %.1f s were" % (
                attempt.number,
                booked,
                gross,
            )


def _kept_steps(history: History, run: Run) -> dict[LegKey, tuple[int, int]]:
    """Return, by leg, the number of its steps that are in the result, and of the saves for them."""
    kept: dict[LegKey, tuple[int, int]] = {}
    token = run.accepted or ""
    leg: LegKey | None = (token, len(history.exchange.logs(token)))
    until = history.truths[run.name].training.steps
    while leg is not None:
        log = history.exchange.logs(leg[0])[leg[1] - 1]
        resumed = log.resumed or 0
        saves = sum(step <= until for _, step in log.saves)
        kept[leg] = (until - resumed, saves)
        leg, until = log.resumed_from, resumed
    return kept


def _saves_are_known(history: History, attempt: Attempt) -> bool:
    """Return True if the controller knows all saves of the attempt, or as many as a report keeps."""
    report = history.exchange.last_reports.get(attempt.token)
    legs = report.legs if report is not None else ()
    for number, log in enumerate(history.exchange.logs(attempt.token)):
        known = len(legs[number].saves) if number < len(legs) else 0
        if len(log.saves) > known and (known < MOST_SAVES or attempt.outcome is Outcome.LOST):
            return False
    return True


def _log_is_complete(history: History, attempt: Attempt) -> bool:
    """Return True if the controller knows everything that the attempt logged."""
    logs = history.exchange.logs(attempt.token)
    report = history.exchange.last_reports.get(attempt.token)
    legs = report.legs if report is not None else ()
    for number, log in enumerate(logs):
        if log.cut_off:
            return False
        if log.compute_began is None:
            continue
        if number >= len(legs) or all(phase is not Phase.COMPUTE for phase, _ in legs[number].spans):
            return False
        if log.loaded is not None and not legs[number].loaded:
            return False
    return _saves_are_known(history, attempt)

"""The legs of an attempt: a scheduler may start the same job again, and several jobs may carry one order.

Slurm requeues, Grid Engine reschedules, HTCondor starts an evicted job elsewhere, and the jobs of a chain
follow one another. Each start works on a leg of its own: the first in the exchange directory itself, the n-th
in `leg-n` below it, with its own claim, event log and outputs. Who claims the next leg has taken the attempt
over from whoever had the one before, and that one ends itself as soon as it notices.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Iterator

from outlast.node import claim, earlier_starts, jsonl
from outlast.node.claim import Claim
from outlast.node.failure_streak import FailureStreak
from outlast.node.order import WorkOrder
from outlast.node.protocol import Outcome
from outlast.node.pulse import HEARTBEAT_INTERVAL

#: A job that is started more often than this gets nowhere.
MAX_LEGS = 1000
_TAIL = 65536
#: A leg that has written nothing for this many seconds is not at work any more.
_SILENT = 1.5 * HEARTBEAT_INTERVAL
#: Seconds between two looks at a leg that may be saving.
_GLANCE = 0.2


class NotClaimed(Exception):
    """This start of the job has nothing to do; the message says why."""


@dataclass(frozen=True)
class Leg:
    number: int
    directory: str

    @property
    def claim_path(self) -> str:
        return os.path.join(self.directory, "claim.json")

    @property
    def events_path(self) -> str:
        return os.path.join(self.directory, "events.jsonl")

    @property
    def progress_path(self) -> str:
        return os.path.join(self.directory, "progress.jsonl")

    @property
    def fetching_path(self) -> str:
        """How far the data has got that the attempt waits for; gone once it is there."""
        return os.path.join(self.directory, "fetching.json")

    @property
    def delivery_path(self) -> str:
        """The directory of delivered outputs; it appears whole, by a rename."""
        return os.path.join(self.directory, "output")


def possible_legs(exchange: str) -> Iterator[Leg]:
    """All that there could be, in order."""
    yield Leg(1, exchange)
    for number in range(2, MAX_LEGS + 1):
        yield Leg(number, os.path.join(exchange, f"leg-{number}"))


def claimed(exchange: str) -> list[tuple[Leg, Claim]]:
    """Those that somebody holds, a fence included. Raises OSError where that cannot be told."""
    found = []
    for leg in possible_legs(exchange):
        holder = claim.read(leg.claim_path)
        if holder is None:
            break
        found.append((leg, holder))
    return found


def claim_next(order: WorkOrder, job: str, host: str) -> tuple[WorkOrder, Leg]:
    """Claim the next leg: the order as this start of the job is to carry it out. Raises NotOurs, OSError."""
    failures = FailureStreak()
    for leg in possible_legs(order.exchange):
        _make(leg)
        if claim.acquire(leg.claim_path, order.token, job, host):
            return _order_of(order, leg), leg
        holder = claim.read(leg.claim_path) or Claim()
        if holder.fenced:
            raise NotClaimed(f"was given up by {holder.by}")
        if order.jobs == 1 and (not job or holder.job != job):
            whose = f"belongs to job {holder.job} on {holder.host}" if holder.host else "is taken"
            raise NotClaimed(whose)
        if not order.sandbox:  # there, nobody else can be at work on what came along
            _let_it_end(leg, order.grace)
        failures = _count(failures, leg)
        over = _why_over(order, leg, failures)
        if over:
            raise NotClaimed(over)
    raise NotClaimed(f"was started {MAX_LEGS} times")


def _make(leg: Leg) -> None:
    if leg.number > 1:  # the exchange directory itself is the controller's to make
        os.makedirs(leg.directory, exist_ok=True)


def is_superseded(order: WorkOrder, leg: Leg) -> bool:
    """Somebody has claimed the next leg, or fenced it."""
    return os.path.exists(os.path.join(order.exchange, f"leg-{leg.number + 1}", "claim.json"))


def fence(exchange: str, by: str) -> None:
    """No start of the job can claim a leg any more, and one that is under way ends itself."""
    for leg in possible_legs(exchange):
        _make(leg)
        if claim.fence(leg.claim_path, by):
            return


def earlier_tokens(order: WorkOrder, leg: Leg) -> list[str]:
    """What the processes of earlier legs have in their environment."""
    return [_token(order.token.partition(".")[0], number) for number in range(1, leg.number)]


def _order_of(order: WorkOrder, leg: Leg) -> WorkOrder:
    if leg.number == 1:
        return order
    earlier = order.scratch if leg.number == 2 else f"{order.scratch}.{leg.number - 1}"
    return replace(
        order,
        token=_token(order.token, leg.number),
        scratch=f"{order.scratch}.{leg.number}",
        previous_scratch=earlier,
        saving=earlier_starts.add_earlier_starts(
            order.saving, (one.events_path for one in islice(possible_legs(order.exchange), leg.number - 1))
        ),
    )


def _token(token: str, number: int) -> str:
    """A leg is an attempt of its own where two must not be mistaken for one: checkpoints, processes."""
    return token if number == 1 else f"{token}.{number}"


def _let_it_end(leg: Leg, grace: float) -> None:
    """Until a leg has had its last word or is silent: some schedulers start the next one while the one before
    has yet to be told to stop, and what it saves then is worth waiting for."""
    until = time.monotonic() + grace + _SILENT
    while not _end(leg) and time.monotonic() < until:
        try:
            since = time.time() - os.stat(leg.events_path).st_mtime
        except OSError:
            return  # nobody can tell
        if not 0 <= since < _SILENT:
            return
        time.sleep(_GLANCE)


def nothing_left(order: WorkOrder, leg: Leg) -> str:
    """Why no later leg than this one, which has ended, has anything to do; empty if one has."""
    failures = FailureStreak()
    for one in islice(possible_legs(order.exchange), leg.number):
        failures = _count(failures, one)
    return _why_over(order, leg, failures)


def _why_over(order: WorkOrder, last: Leg, failures: FailureStreak) -> str:
    if _end(last).get("outcome") == Outcome.FINISHED.value:
        return "has finished"
    # Of a job that is started again, and no chain, the controller decides that.
    return "has failed twice in the same way" if order.jobs > 1 and failures.hopeless else ""


def _count(failures: FailureStreak, leg: Leg) -> FailureStreak:
    end = _end(leg)
    return failures.after(
        _outcome(end),
        end.get("signature"),
        progressed=bool(end.get("progressed")) or _changed(leg),
        signal=end.get("signal"),
    )


def _outcome(end: dict[str, Any]) -> Outcome | None:
    try:
        return Outcome(end.get("outcome"))
    except ValueError:
        return None  # killed, or of another version


def _end(leg: Leg) -> dict[str, Any]:
    """The last line of a leg's event log, if it tells how the leg ended."""
    last = next(_last_lines(leg), {})
    return last if last.get("event") == "end" else {}


def _changed(leg: Leg) -> bool:
    """Something new was in the checkpoint directory, as far as the end of the log tells."""
    return any(line.get("event") == "changed" for line in _last_lines(leg))


def _last_lines(leg: Leg) -> Iterator[dict[str, Any]]:
    """The last one first, without those that a kill has torn."""
    log = jsonl.read(leg.events_path, 0, _TAIL)
    return log.last_lines() if log is not None else iter(())

"""The legs of an attempt: each start of a job that works on it is one leg.

Slurm requeues, Grid Engine reschedules, HTCondor starts an evicted job elsewhere, and the jobs of a chain
follow one another. The first leg uses the exchange directory itself, the n-th the directory `leg-n` below it,
each with its own claim, event log and outputs. A job that claims the next leg takes the attempt over; the job
of the leg before ends itself as soon as it notices.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Iterator

from outlast.node import claim, earlier_starts, jsonl
from outlast.node.claim import Claim
from outlast.node.failure_streak import FailureStreak
from outlast.node.protocol import Outcome, parse_outcome
from outlast.node.pulse import HEARTBEAT_INTERVAL

if TYPE_CHECKING:  # `status` imports this module, and no orders
    from outlast.node.order import WorkOrder

#: A job that is started more often than this makes no progress.
MAX_LEGS = 1000
#: More than the last line has: its list of delivered files is limited.
_TAIL_BYTES = 512 * 1024
#: A leg that has logged nothing for this many seconds is no longer running.
_DEAD_AFTER = 1.5 * HEARTBEAT_INTERVAL
#: Seconds between two checks of a leg that may be saving.
_POLL_INTERVAL = 0.2


class NotClaimed(Exception):
    """This start of the job has nothing to do; the message is the reason."""


@dataclass(frozen=True)
class Leg:
    """A leg and the paths of its files."""

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
        """The state of the data transfer that the attempt waits for; removed when all data is staged."""
        return os.path.join(self.directory, "fetching.json")

    @property
    def delivery_path(self) -> str:
        """The directory of delivered outputs; it appears complete, by a rename."""
        return os.path.join(self.directory, "output")


def possible_legs(exchange: str) -> Iterator[Leg]:
    """Yield every leg that an attempt can have, in order, whether claimed or not."""
    yield Leg(1, exchange)
    for number in range(2, MAX_LEGS + 1):
        yield Leg(number, os.path.join(exchange, f"leg-{number}"))


def claimed(exchange: str) -> list[tuple[Leg, Claim]]:
    """Return the claimed legs with their claims; a fence is the last of them. Raises OSError."""
    found = []
    for leg in possible_legs(exchange):
        holder = claim.read(leg.claim_path)
        if holder is None:
            break
        found.append((leg, holder))
    return found


def claim_next(order: WorkOrder, job: str, host: str) -> tuple[WorkOrder, Leg]:
    """Claim the next leg. Return the order adapted to it, and the leg. Raises NotClaimed or OSError."""
    failures = FailureStreak()
    go_back: int | None = None
    for leg in possible_legs(order.exchange):
        _make_directory(leg)
        if claim.acquire(leg.claim_path, order.token, job, host):
            return _adapt_order(order, leg, go_back), leg
        holder = claim.read(leg.claim_path) or Claim()
        if holder.fenced:
            raise NotClaimed(f"was given up by {holder.by}")
        if order.jobs == 1 and (not job or holder.job != job):
            other = f"job {holder.job} on {holder.host}" if holder.host else "another job"
            raise NotClaimed(f"belongs to {other}")
        if not order.sandbox:  # no other job can work on the files in a sandbox
            _wait_for_end(leg, order.grace)
        failures = _count(failures, leg)
        go_back = _go_back(leg, failures)
        over = _why_over(order, leg, failures)
        if over:
            raise NotClaimed(over)
    raise NotClaimed(f"was started {MAX_LEGS} times")


def _make_directory(leg: Leg) -> None:
    if leg.number > 1:  # the controller creates the exchange directory itself
        os.makedirs(leg.directory, exist_ok=True)


def is_superseded(order: WorkOrder, leg: Leg) -> bool:
    """Return True if the next leg is claimed or fenced."""
    return os.path.exists(os.path.join(order.exchange, f"leg-{leg.number + 1}", "claim.json"))


def fence(exchange: str, by: str) -> None:
    """Prevent every further claim; a leg that is running ends itself. Raises OSError."""
    for leg in possible_legs(exchange):
        try:
            _make_directory(leg)
        except FileExistsError:
            return  # another file has the name of its directory: no start can claim the leg either
        if claim.fence(leg.claim_path, by):
            return


def earlier_tokens(order: WorkOrder, leg: Leg) -> list[str]:
    """Return the tokens that processes of earlier legs have in their environment."""
    return [_token(order.token.partition(".")[0], number) for number in range(1, leg.number)]


def _go_back(last: Leg, failures: FailureStreak) -> int | None:
    """Return the snapshot before which the next leg starts; None: it starts from the checkpoints as they are.

    The controller decides in the same way between two attempts.
    """
    end = _end(last)
    number = end.get("go_back")
    return number if isinstance(number, int) and (failures.is_hopeless or end.get("unsure")) else None


def _adapt_order(order: WorkOrder, leg: Leg, go_back: int | None) -> WorkOrder:
    if leg.number == 1:
        return order
    earlier = order.scratch if leg.number == 2 else f"{order.scratch}.{leg.number - 1}"
    return replace(
        order,
        token=_token(order.token, leg.number),
        scratch=f"{order.scratch}.{leg.number}",
        previous_scratch=earlier,
        start_before=go_back,
        saving=earlier_starts.add_earlier_starts(
            order.saving, (one.events_path for one in islice(possible_legs(order.exchange), leg.number - 1))
        ),
    )


def _token(token: str, number: int) -> str:
    """Return the token of a leg, which distinguishes its checkpoints and processes from other legs'."""
    return token if number == 1 else f"{token}.{number}"


def _wait_for_end(leg: Leg, grace: float) -> None:
    """Wait until a leg has logged its end or is no longer running.

    Some schedulers start the next leg before they stop this one, which may then still save a checkpoint.
    """
    until = time.monotonic() + grace + _DEAD_AFTER
    while not _end(leg) and time.monotonic() < until:
        try:
            since = time.time() - os.stat(leg.events_path).st_mtime
        except OSError:
            return  # its state is unknown
        if not 0 <= since < _DEAD_AFTER:
            return
        time.sleep(_POLL_INTERVAL)


def why_chain_is_over(order: WorkOrder, leg: Leg) -> str:
    """Return why no leg after `leg`, which has ended, has work to do; empty if one has."""
    failures = FailureStreak()
    for one in islice(possible_legs(order.exchange), leg.number):
        failures = _count(failures, one)
    return _why_over(order, leg, failures)


def _why_over(order: WorkOrder, last: Leg, failures: FailureStreak) -> str:
    end = _end(last)
    if end.get("outcome") == Outcome.FINISHED.value:
        return "has finished"
    if end.get("lasting") is True and order.jobs > 1:
        return "has a result that fails its checks"
    # For a job that was started again, and is no chain, the controller decides.
    stops = failures.stops_after(parse_outcome(_end(last).get("outcome")))
    if order.jobs == 1 or not stops or _go_back(last, failures) is not None:
        return ""
    return "has failed twice in the same way"


def _count(failures: FailureStreak, leg: Leg) -> FailureStreak:
    end = _end(leg)
    return failures.after(
        parse_outcome(end.get("outcome")),
        end.get("signature"),
        progressed=bool(end.get("progressed")) or _changed(leg),
        signal=end.get("signal"),
    )


def _end(leg: Leg) -> dict[str, Any]:
    """Return the last line of a leg's event log if it is the event "end", else an empty dict."""
    last = next(_last_lines(leg), {})
    return last if last.get("event") == "end" else {}


def _changed(leg: Leg) -> bool:
    """Return True if the end of the log records a change in the checkpoint directory."""
    return any(line.get("event") == "changed" for line in _last_lines(leg))


def _last_lines(leg: Leg) -> Iterator[dict[str, Any]]:
    """Yield the lines at the end of the log, the last one first; skip torn lines."""
    log = jsonl.read(leg.events_path, 0, _TAIL_BYTES)
    return log.last_lines() if log is not None else iter(())

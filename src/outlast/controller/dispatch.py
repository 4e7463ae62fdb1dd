"""The submission of new attempts.

The intent of each is committed before the scheduler is called, and the result after the call. If the
controller dies in between, the job is searched for by its token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from outlast.controller import crashpoints
from outlast.domain import admission, attempt_end, resource_requests
from outlast.domain.decision import Decision
from outlast.domain.model import EntryKind, JournalEntry, Run, RunState
from outlast.exchange.base import Exchange
from outlast.filesystem import describe_error
from outlast.journal.records import Records
from outlast.schedulers.base import JobRequest, Scheduler, Submission, SubmitStatus
from outlast.schedulers.host_sizes import HostSizes

#: The window of `Scheduler.submit_rate`, in seconds.
MINUTE = 60.0

Append = Callable[[Sequence[JournalEntry]], None]


class Dispatch:
    """Admits and submits new attempts, within the limits of spec and scheduler."""

    def __init__(
        self,
        records: Records,
        scheduler: Scheduler,
        exchange: Exchange,
        clock: Callable[[], float],
        new_batch: Callable[[], str],
        heartbeat: Callable[[], None],
        query_hosts: Callable[[], HostSizes] = HostSizes,
    ) -> None:
        self._records = records
        self._query_hosts = query_hosts
        #: What the largest host has; None: not queried yet.
        self._largest: HostSizes | None = None
        self._scheduler = scheduler
        self._exchange = exchange
        self._clock = clock
        self._new_batch = new_batch
        self._heartbeat = heartbeat
        #: Submissions of the last minute, by token: when, and how many jobs; also of attempts that are over.
        self._sent: dict[str, tuple[float, int]] = {}

    def admit(self, starts: Sequence[Decision], jobs: int) -> Sequence[Decision]:
        """Return the first of `starts` that fit the limits, as chains of `jobs` jobs each."""
        if not starts:
            return starts
        live = self._records.live().values()
        current = [self._records.current(run) for run in live if run.state is RunState.ACTIVE]
        attempts = [attempt for attempt in current if attempt is not None]
        spec, now, scheduler = self._records.newest_spec(), self._clock(), self._scheduler
        self._sent.update({one.token: (one.intended, self._weight(one.jobs)) for one in attempts})
        self._sent = {token: sent for token, sent in self._sent.items() if abs(now - sent[0]) < MINUTE}
        return admission.admit(
            starts,
            (len(attempts), spec.parallel if spec else None),
            (sum(self._weight(one.jobs) for one in attempts), scheduler.most_jobs),
            (sum(sent for _, sent in self._sent.values()), scheduler.submit_rate),
            self._weight(jobs),
        )

    def _weight(self, jobs: int) -> int:
        """Return how many jobs a chain of `jobs` jobs is for the scheduler."""
        return 1 if self._scheduler.chains_in_place else jobs

    def send(self, decisions: Sequence[Decision], jobs: int, append: Append) -> None:
        """Begin an attempt for each decision, as a chain of `jobs` jobs; `append` commits entries."""
        live = self._records.live()
        hosts = self._scheduler.hosts()
        batch = self._new_batch()
        tokens = ["%s-%d" % (batch, index) for index in range(1, len(decisions) + 1)]
        now = self._clock()
        intents = [
            JournalEntry(
                now,
                decision.run,
                EntryKind.INTENDED,
                token,
                {
                    "number": live[decision.run].attempts + 1,
                    **self._plan(live[decision.run], decision),
                    "avoid": list(admission.choose_avoided(decision.data["avoid"], hosts)),
                    **({"jobs": jobs} if jobs > 1 else {}),
                    **({"start_before": before} if (before := decision.data.get("start_before")) else {}),
                },
            )
            for decision, token in zip(decisions, tokens, strict=True)
        ]
        before = {decision.run: live[decision.run] for decision in decisions}
        append(intents)
        self._sent.update(dict.fromkeys(tokens, (now, self._weight(jobs))))
        crashpoints.reach("start.intended")
        requests: list[JobRequest] = []
        submissions: dict[str, Submission] = {}
        blocked: set[str] = set()
        for intent, token in zip(intents, tokens, strict=True):
            self._heartbeat()
            run = before[intent.run]
            attempt = self._records.attempt(token)
            assert attempt is not None
            spec = resource_requests.apply_request(self._records.spec(run.spec), attempt)
            try:
                self._exchange.write_order(run, attempt, spec)
            except OSError as error:
                why = "the files of the job could not be written: %s" % describe_error(error)
                submissions[token] = Submission(SubmitStatus.REJECTED, reason=why, transient=True)
                blocked.add(token)
                continue
            requests.append(self._exchange.request(run, attempt, spec))
        crashpoints.reach("start.ordered")
        results = self._scheduler.submit(requests) if requests else {}
        submissions.update({token: self._fence_rejected(token, result) for token, result in results.items()})
        crashpoints.reach("start.submitted")
        now = self._clock()
        append([_entry(now, intent.run, intent.token or "", submissions, blocked) for intent in intents])
        crashpoints.reach("start.recorded")

    def _plan(self, run: Run, decision: Decision) -> dict[str, Any]:
        """Return the reason for an attempt, and what it requests beyond the resources of its spec."""
        spec = self._records.spec(run.spec)
        growth = resource_requests.next_request(run, spec)
        if growth.request != growth.before:
            if self._largest is None:
                self._heartbeat()
                self._largest = self._query_hosts()
            growth = resource_requests.next_request(run, spec, self._largest.memory, self._largest.disk)
        happened, decided = decision.data["happened"], decision.data["decided"]
        decided = resource_requests.describe(growth, decided)
        return {
            "reason": "; ".join(filter(None, (happened, decided))),
            "decided": decided or happened,
            "cpus": spec.resources.cpus,
            "gpus": spec.resources.gpus,
            **resource_requests.raised(growth, spec),
        }

    def _fence_rejected(self, token: str, result: Submission) -> Submission:
        """Fence a rejected job, because it may exist nevertheless; return UNKNOWN if that is not possible.

        Some schedulers report an error for a job that they have accepted.
        """
        attempt = self._records.attempt(token)
        if result.status is not SubmitStatus.REJECTED or attempt is None:
            return result
        try:
            fenced = self._exchange.fence(attempt)
        except OSError:
            fenced = False  # it is searched for by its token
        return result if fenced else Submission(SubmitStatus.UNKNOWN, reason="rejected: %s" % result.reason)


def _entry(
    now: float, run: str, token: str, submissions: dict[str, Submission], blocked: set[str]
) -> JournalEntry:
    """Return the entry for the result of a submission."""
    unmentioned = Submission(SubmitStatus.UNKNOWN, reason="the scheduler's response does not mention it")
    result = submissions.get(token, unmentioned)
    match result.status:
        case SubmitStatus.ACCEPTED:
            reason = {"reason": result.reason} if result.reason else {}
            return JournalEntry(now, run, EntryKind.QUEUED, token, {"job": result.job, **reason})
        case SubmitStatus.UNKNOWN:
            return JournalEntry(now, run, EntryKind.UNSURE, token, {"reason": result.reason})
        case _:
            data = attempt_end.rejection(result.reason, result.transient, token in blocked)
            return JournalEntry(now, run, EntryKind.ENDED, token, data)

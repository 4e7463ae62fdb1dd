"""New attempts: which there is room for, and how they are sent.

The intent of each is committed before the scheduler is called, and what came of the call after it. In between
nobody knows, and the attempt is looked for by its token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outlast.controller import crashpoints
from outlast.domain import admission, attempt_end
from outlast.domain.decision import Decision
from outlast.domain.model import EntryKind, JournalEntry, RunState
from outlast.exchange.base import Exchange
from outlast.journal.records import Records
from outlast.schedulers.base import JobRequest, Scheduler, Submission, SubmitAnswer

#: The window in seconds that `Scheduler.submit_rate` is about.
MINUTE = 60.0

Append = Callable[[Sequence[JournalEntry]], None]


class Dispatch:
    def __init__(
        self,
        records: Records,
        scheduler: Scheduler,
        exchange: Exchange,
        clock: Callable[[], float],
        new_batch: Callable[[], str],
        beat: Callable[[], None],
    ) -> None:
        self._records = records
        self._scheduler = scheduler
        self._exchange = exchange
        self._clock = clock
        self._new_batch = new_batch
        self._beat = beat
        #: By token: when jobs were sent lately, and how many; also those that are over.
        self._sent: dict[str, tuple[float, int]] = {}

    def admit(self, starts: Sequence[Decision], jobs: int) -> Sequence[Decision]:
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
        """How many jobs of the scheduler's an attempt is that `jobs` jobs carry."""
        return 1 if self._scheduler.chains_in_place else jobs

    def send(self, decisions: Sequence[Decision], jobs: int, append: Append) -> None:
        """Begin an attempt for each, sent as `jobs` jobs; `append` commits entries."""
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
                    "reason": decision.reason,
                    "decided": decision.data["decided"],
                    "avoid": list(admission.choose_avoided(decision.data["avoid"], hosts)),
                    **({"jobs": jobs} if jobs > 1 else {}),
                },
            )
            for decision, token in zip(decisions, tokens, strict=True)
        ]
        before = {decision.run: live[decision.run] for decision in decisions}
        append(intents)
        self._sent.update(dict.fromkeys(tokens, (now, self._weight(jobs))))
        crashpoints.reach("start.intended")
        requests: list[JobRequest] = []
        answers: dict[str, Submission] = {}
        for intent, token in zip(intents, tokens, strict=True):
            self._beat()
            run = before[intent.run]
            attempt = self._records.attempt(token)
            assert attempt is not None
            spec = self._records.spec(run.spec)
            try:
                self._exchange.write_order(run, attempt, spec)
            except OSError as error:
                why = "the work order could not be written: %s" % error
                answers[token] = Submission(SubmitAnswer.REJECTED, reason=why, transient=True)
                continue
            requests.append(self._exchange.request(run, attempt, spec))
        crashpoints.reach("start.ordered")
        told = self._scheduler.submit(requests) if requests else {}
        answers.update({token: self._believe(token, answer) for token, answer in told.items()})
        crashpoints.reach("start.submitted")
        now = self._clock()
        append([_answered(now, i.run, i.token or "", answers) for i in intents])
        crashpoints.reach("start.recorded")

    def _believe(self, token: str, answer: Submission) -> Submission:
        """A rejected job is shut out, in case it exists after all: some schedulers say no and mean yes."""
        attempt = self._records.attempt(token)
        if answer.answer is not SubmitAnswer.REJECTED or attempt is None:
            return answer
        try:
            shut_out = self._exchange.fence(attempt)
        except OSError:
            shut_out = False  # nobody can tell; it is looked for by its token
        return answer if shut_out else Submission(SubmitAnswer.UNKNOWN, reason="rejected: %s" % answer.reason)


def _answered(now: float, run: str, token: str, answers: dict[str, Submission]) -> JournalEntry:
    answer = answers.get(
        token, Submission(SubmitAnswer.UNKNOWN, reason="the scheduler said nothing about it")
    )
    match answer.answer:
        case SubmitAnswer.ACCEPTED:
            told = {"reason": answer.reason} if answer.reason else {}
            return JournalEntry(now, run, EntryKind.QUEUED, token, {"job": answer.job, **told})
        case SubmitAnswer.UNKNOWN:
            return JournalEntry(now, run, EntryKind.UNSURE, token, {"reason": answer.reason})
        case _:
            data = attempt_end.rejection(answer.reason, answer.transient)
            return JournalEntry(now, run, EntryKind.ENDED, token, data)

"""Grid Engine: the adapter to qsub, qstat, qacct, qdel and qmod.

An experiment's jobs are array jobs whose names carry its group and the batch (see `naming`), their task
numbers the index. `qstat` lists those that wait or run, `qacct` those that have ended; a job that was deleted
before it started is in neither, so that what `qdel` said of it is remembered.
"""

from __future__ import annotations

import os
import pwd
import re
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from outlast.schedulers import command_runner
from outlast.schedulers.base import (
    JobPhase,
    JobRequest,
    JobView,
    Patience,
    Scheduler,
    SchedulerUnavailable,
    Sought,
    Submission,
    SubmitAnswer,
)
from outlast.schedulers.command_runner import CommandNotRun, CommandOutput, CommandTimeout
from outlast.schedulers.profile import Profile
from outlast.schedulers.sge import listing as text
from outlast.schedulers.sge import states as words
from outlast.schedulers.sge.submit import SgeArray, arrays, script_of
from outlast.schedulers.sge.views import alive, ended, never_started, token_of
from outlast.schedulers.unreadable_output import UnreadableOutput

__all__ = ["SgeScheduler"]

_UTC = {"TZ": "UTC"}
#: Jobs whose reason to wait is asked for in one question.
_FEW = 5


@dataclass
class _Pauses:
    """Until when not to ask again what is slow, or was just asked (monotonic clock)."""

    accounting: float = 0.0
    waits: float = 0.0


class SgeScheduler(Scheduler):
    #: Jobs that wait longer than this have the scheduler's reason looked up, this often (seconds).
    explain_after = 10.0
    explain_every = 300.0
    #: After an accounting that did not answer, leave it alone for so long.
    accounting_pause = 600.0

    def __init__(
        self,
        group: str,
        profile: Profile,
        *,
        timeout: float = 30.0,
        patience: Patience = Patience(  # noqa: B008
            missing=60.0, heartbeat=120.0, pause=5.0, longest_pause=600.0, files=60.0
        ),
        interval: float = 30.0,
    ) -> None:
        self.group = group
        self.profile = profile
        self.timeout = timeout
        self.patience = patience
        self.interval = interval
        #: Ends that were told once, by token, and reasons by job and phase: they save questions.
        self._ended: dict[str, JobView] = {}
        self._deleted: dict[str, JobView] = {}
        self._reasons: dict[tuple[str, JobPhase], str] = {}
        self._pauses = _Pauses()
        self._hosts: tuple[str, ...] = ()
        self._oddities = UnreadableOutput()

    # Sending.

    def render(self, requests: Sequence[JobRequest]) -> str:
        shown = []
        for array in arrays(requests, self.group):
            for position in range(1, array.first.jobs + 1):
                after = "ID_OF_%s" % array.name(position - 1) if position > 1 else ""
                shown.append("# qsub -terse\n%s" % script_of(array, self.profile, position, after))
        return "\n".join(shown)

    def submit(self, requests: Sequence[JobRequest]) -> Mapping[str, Submission]:
        answers: dict[str, Submission] = {}
        for array in arrays(requests, self.group):
            numbers, answer = self._submit(array)
            for request in array.requests:
                job = ",".join("%s.%d" % (number, request.index) for number in numbers)
                answers[request.token] = replace(answer, job=job)
        return answers

    def _submit(self, array: SgeArray) -> tuple[list[str], Submission]:
        """The jobs' numbers, and what came of it. A chain that breaks off is shorter, not refused."""
        try:
            for request in array.requests:
                Path(request.log).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            return [], Submission(
                SubmitAnswer.REJECTED, reason="no place for the log: %s" % error, transient=True
            )
        numbers: list[str] = []
        for position in range(1, array.first.jobs + 1):
            after = numbers[-1] if numbers else ""
            number, answer = self._qsub(script_of(array, self.profile, position, after))
            if not number and not numbers:
                return [], answer
            if not number:
                reason = "only %d of %d jobs were sent: %s" % (position - 1, array.first.jobs, answer.reason)
                return numbers, Submission(SubmitAnswer.ACCEPTED, reason=reason)
            numbers.append(number)
        return numbers, answer

    def _qsub(self, script: str) -> tuple[str, Submission]:
        self.beat()
        try:
            reply = command_runner.call(["qsub", "-terse"], self.timeout, script)
        except CommandNotRun as error:
            return "", Submission(SubmitAnswer.REJECTED, reason=str(error), transient=True)
        except CommandTimeout as error:
            return "", Submission(SubmitAnswer.UNKNOWN, reason=str(error))
        number = re.search(r"^(\d+)\.\d+-\d+:\d+\s*$", reply.out, flags=re.MULTILINE)
        if reply.code == 0 and number:
            return number[1], Submission(SubmitAnswer.ACCEPTED)
        return "", words.refusal(reply.complaint)

    # Looking.

    def poll(self, sought: Sequence[Sought] = ()) -> Mapping[str, JobView]:
        listed = self._list()
        self._explain([task for tasks in listed.values() for task in tasks])
        found = {token: alive(token, jobs, self._reasons, self.group) for token, jobs in listed.items()}
        for token in found:
            self._ended.pop(token, None)
        gone = [one for one in sought if one.token not in found]
        unknown = {one.token for one in gone if one.token not in self._ended}
        if unknown:
            deleted = {token: self._deleted[token] for token in unknown if token in self._deleted}
            self._ended.update({**deleted, **self._account(unknown)})
        found.update({one.token: self._ended[one.token] for one in gone if one.token in self._ended})
        return found

    def _list(self) -> dict[str, list[text.Listed]]:
        reply = self._ask(["qstat", "-u", _user(), "-r", "-xml"], _UTC)
        try:
            tasks = text.listing(reply.out, self._oddities.of("qstat"))
        except text.Unreadable as error:
            raise SchedulerUnavailable("Grid Engine: %s: %s" % (error, reply.complaint)) from error
        found: dict[str, list[text.Listed]] = {}
        for task in tasks:
            token = token_of(task, self.group)
            if token:
                found.setdefault(token, []).append(task)
        return found

    def _explain(self, tasks: Sequence[text.Listed]) -> None:
        """Look up, in one question at most, why tasks are in error and why the ones that wait longest do."""
        in_error = [task for task in tasks if task.phase is JobPhase.HELD]
        unknown = {task.number for task in in_error if (task.job, task.phase) not in self._reasons}
        waiting = [task for task in tasks if task.state in ("qw", "Rq", "Rqw") and task.at is not None]
        long = [task for task in waiting if time.time() - (task.at or 0.0) > self.explain_after]
        long = long if time.monotonic() >= self._pauses.waits else []
        longest = sorted({task.number for task in long})[:_FEW]
        kept = {(task.job, task.phase) for task in [*in_error, *waiting]}
        self._reasons = {key: reason for key, reason in self._reasons.items() if key in kept}
        asked = sorted({*unknown, *longest})
        if not asked:
            return
        if longest:
            self._pauses.waits = time.monotonic() + self.explain_every
        try:
            reply = self._ask(["qstat", "-j", ",".join(map(str, asked))], _UTC)
        except SchedulerUnavailable:
            return  # the listing stands without the reasons
        told = text.details(reply.out)
        for task in (one for one in [*in_error, *long] if one.number in asked):
            detail = told.get(task.number, text.Detail())
            if task.phase is JobPhase.QUEUED:
                self._reasons[task.job, task.phase] = words.waits_because(detail.waits)
            elif task.task in detail.errors:
                self._reasons[task.job, task.phase] = detail.errors[task.task]

    def _account(self, tokens: Set[str]) -> Mapping[str, JobView]:
        """How these ended. An accounting that is slow or out of reach says nothing and is left in peace."""
        if time.monotonic() < self._pauses.accounting:
            return {}
        batches = {token.rpartition("-")[0] for token in tokens}
        pattern = "*.%s.%s*" % (self.group, batches.pop() if len(batches) == 1 else "")
        try:
            # It exits with 1 if there is no such job.
            reply = command_runner.call(["qacct", "-j", pattern], self.timeout, environment=_UTC)
            records = text.accounting(reply.out, self._oddities.of("qacct"))
        except (CommandTimeout, CommandNotRun):
            self._pauses.accounting = time.monotonic() + self.accounting_pause
            return {}
        found: dict[str, list[text.AccountingRecord]] = {}
        for record in records:
            token = token_of(record, self.group)
            if token in tokens:
                found.setdefault(token, []).append(record)
        return {token: ended(token, starts) for token, starts in found.items()}

    # Acting.

    def cancel(self, views: Sequence[JobView]) -> None:
        listed = self._list()
        doomed = {view.token: listed[view.token] for view in views if view.token in listed}
        if not doomed:
            return
        tasks = [task.job for tasks in doomed.values() for task in tasks]
        whole, single = text.deleted(self._ask(["qdel", *tasks], expected=_QDEL_SAYS).out)
        for token, each in doomed.items():
            if all(task.number in whole or task.job in single for task in each):
                self._deleted[token] = never_started(token, each[0].job)

    def release(self, views: Sequence[JobView]) -> None:
        """Clear the error state."""
        if views:
            self._ask(["qmod", "-cj", *(view.job for view in views)], expected=_QMOD_SAYS)
            for view in views:
                self._reasons.pop((view.job, view.phase), None)

    def forget(self, tokens: Sequence[str]) -> None:
        for token in tokens:
            self._ended.pop(token, None)
            self._deleted.pop(token, None)

    def remarks(self) -> Sequence[str]:
        return self._oddities.take()

    def hosts(self) -> Sequence[str]:
        if not self._hosts:
            try:
                self._hosts = tuple(text.hosts(self._ask(["qhost", "-xml"]).out))
            except (SchedulerUnavailable, text.Unreadable):
                return ()  # not known, which is no reason to stop
        return self._hosts

    def _ask(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None = None,
        expected: re.Pattern[str] | None = None,
    ) -> CommandOutput:
        """A program's reply if it succeeded, or failed with `expected` words."""
        try:
            reply = command_runner.call(arguments, self.timeout, environment=environment)
        except (CommandTimeout, CommandNotRun) as error:
            raise SchedulerUnavailable("Grid Engine: %s" % error) from error
        if reply.code != 0 and not (expected and expected.search(reply.out)):
            raise SchedulerUnavailable("Grid Engine: %s: %s" % (arguments[0], reply.complaint))
        return reply


#: An exit code other than 0 of qdel's and qmod's may mean only that some of the jobs had gone.
_QDEL_SAYS = re.compile(r"does not exist|already in deletion|has deleted|has registered|do not exist")
_QMOD_SAYS = re.compile(r"does not exist|not in error state|cleared error state|invalid|do not exist")


def _user() -> str:
    """Whose jobs these are. Grid Engine goes by the user id, not by what the environment says."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())

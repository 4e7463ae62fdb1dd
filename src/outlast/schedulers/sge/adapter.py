"""The Grid Engine adapter: runs qsub, qstat, qacct, qdel, qmod and qhost.

An experiment's jobs are array jobs whose names contain its group and the batch (see `job_names`); the task
number is the index in the token. qstat lists tasks that wait or run, qacct those that have ended. A task that
was deleted before it started is in neither, so the output of qdel about it is kept.
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
    JobRef,
    JobRequest,
    JobView,
    Patience,
    Scheduler,
    SchedulerUnavailable,
    Submission,
    SubmitStatus,
)
from outlast.schedulers.command_runner import CommandNotRun, CommandOutput, CommandTimeout
from outlast.schedulers.profile import Profile
from outlast.schedulers.sge.listing import (
    AccountingRecord,
    JobDetails,
    ListedTask,
    UnreadableListing,
    parse_qacct,
    parse_qdel,
    parse_qhost,
    parse_qstat,
    parse_qstat_details,
)
from outlast.schedulers.sge.states import explain_pending, parse_qsub_error
from outlast.schedulers.sge.submit import SgeArray, group_into_arrays, job_script
from outlast.schedulers.sge.views import token_of, view_of_deleted, view_of_ended, view_of_listed
from outlast.schedulers.unreadable_output import UnreadableOutput

__all__ = ["SgeScheduler"]

_UTC = {"TZ": "UTC"}
#: The most pending jobs to query in one `qstat -j`.
_MOST_EXPLAINED = 5
#: Output of a qdel or qmod with an exit code other than 0 that only means that some jobs were gone, or that a
#: host is down: the qmaster sends the deletion again once it is back ("unable to sync state").
_QDEL_OUTPUT = re.compile(
    r"does not exist|already in deletion|has deleted|has registered|do not exist|unable to sync state"
)
_QMOD_OUTPUT = re.compile(r"does not exist|not in error state|cleared error state|invalid|do not exist")


@dataclass
class _NotBefore:
    """Times (monotonic clock) before which slow queries are not repeated."""

    accounting: float = 0.0
    pending: float = 0.0


class SgeScheduler(Scheduler):
    """The adapter to one Grid Engine cell, for one experiment (`group`)."""

    #: Query why a job is pending after this many seconds, and again at this interval.
    explain_after = 10.0
    explain_every = 300.0
    #: Seconds without queries after qacct did not respond.
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
        #: Caches: ended and deleted attempts by token, and reasons by job and phase.
        self._ended: dict[str, JobView] = {}
        self._deleted: dict[str, JobView] = {}
        self._reasons: dict[tuple[str, JobPhase], str] = {}
        self._not_before = _NotBefore()
        self._hosts: tuple[str, ...] = ()
        self._unreadable = UnreadableOutput()

    # Submit.

    def render(self, requests: Sequence[JobRequest]) -> str:
        parts = []
        for array in group_into_arrays(requests, self.group):
            for position in range(1, array.first.jobs + 1):
                after = "ID_OF_%s" % array.name(position - 1) if position > 1 else ""
                parts.append("# qsub -terse\n%s" % job_script(array, self.profile, position, after))
        return "\n".join(parts)

    def submit(self, requests: Sequence[JobRequest]) -> Mapping[str, Submission]:
        results: dict[str, Submission] = {}
        for array in group_into_arrays(requests, self.group):
            numbers, result = self._submit_array(array)
            for request in array.requests:
                job = ",".join("%s.%d" % (number, request.index) for number in numbers)
                results[request.token] = replace(result, job=job)
        return results

    def _submit_array(self, array: SgeArray) -> tuple[list[str], Submission]:
        """Submit one array, or all jobs of a chain; return job numbers and result.

        A chain that breaks off is accepted, and shorter.
        """
        try:
            for request in array.requests:
                Path(request.log).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = "the directory of the log cannot be created: %s" % error
            return [], Submission(SubmitStatus.REJECTED, reason=reason, transient=True)
        numbers: list[str] = []
        for position in range(1, array.first.jobs + 1):
            after = numbers[-1] if numbers else ""
            number, result = self._run_qsub(job_script(array, self.profile, position, after))
            if not number and not numbers:
                return [], result
            if not number:
                count = position - 1
                reason = "only %d of %d jobs were sent: %s" % (count, array.first.jobs, result.reason)
                return numbers, Submission(SubmitStatus.ACCEPTED, reason=reason)
            numbers.append(number)
        return numbers, result

    def _run_qsub(self, script: str) -> tuple[str, Submission]:
        """Return the job's number, which is empty unless it was accepted, and the result."""
        self.heartbeat()
        try:
            output = command_runner.run_command(["qsub", "-terse"], self.timeout, script)
        except CommandNotRun as error:
            return "", Submission(SubmitStatus.REJECTED, reason=str(error), transient=True)
        except CommandTimeout as error:
            return "", Submission(SubmitStatus.UNKNOWN, reason=str(error))
        number = re.search(r"^(\d+)\.\d+-\d+:\d+\s*$", output.out, flags=re.MULTILINE)
        if output.code == 0 and number:
            return number[1], Submission(SubmitStatus.ACCEPTED)
        return "", parse_qsub_error(output.error_message)

    # Poll.

    def poll(self, expected: Sequence[JobRef] = ()) -> Mapping[str, JobView]:
        listed = self._list_tasks()
        self._query_reasons([task for tasks in listed.values() for task in tasks])
        views = {
            token: view_of_listed(token, tasks, self._reasons, self.group) for token, tasks in listed.items()
        }
        for token in views:
            self._ended.pop(token, None)
        gone = [one for one in expected if one.token not in views]
        unknown = {one.token for one in gone if one.token not in self._ended}
        if unknown:
            deleted = {token: self._deleted[token] for token in unknown if token in self._deleted}
            self._ended.update({**deleted, **self._query_accounting(unknown)})
        views.update({one.token: self._ended[one.token] for one in gone if one.token in self._ended})
        return views

    def _list_tasks(self) -> dict[str, list[ListedTask]]:
        """Return the tasks of this experiment that qstat lists, by token. Raises SchedulerUnavailable."""
        output = self._run(["qstat", "-u", _user_name(), "-r", "-xml"], _UTC)
        try:
            tasks = parse_qstat(output.out, self._unreadable.reporter("qstat"))
        except UnreadableListing as error:
            raise SchedulerUnavailable("Grid Engine: %s: %s" % (error, output.error_message)) from error
        by_token: dict[str, list[ListedTask]] = {}
        for task in tasks:
            token = token_of(task, self.group)
            if token:
                by_token.setdefault(token, []).append(task)
        return by_token

    def _query_reasons(self, tasks: Sequence[ListedTask]) -> None:
        """Query, in at most one call, why tasks are in error and why the oldest pending ones wait."""
        in_error = [task for task in tasks if task.phase is JobPhase.HELD]
        unknown = {task.number for task in in_error if (task.job, task.phase) not in self._reasons}
        pending = [task for task in tasks if task.state in ("qw", "Rq", "Rqw") and task.at is not None]
        overdue = [task for task in pending if time.time() - (task.at or 0.0) > self.explain_after]
        overdue = overdue if time.monotonic() >= self._not_before.pending else []
        oldest = sorted({task.number for task in overdue})[:_MOST_EXPLAINED]
        kept = {(task.job, task.phase) for task in [*in_error, *pending]}
        self._reasons = {key: reason for key, reason in self._reasons.items() if key in kept}
        numbers = sorted({*unknown, *oldest})
        if not numbers:
            return
        if oldest:
            self._not_before.pending = time.monotonic() + self.explain_every
        try:
            output = self._run(["qstat", "-j", ",".join(map(str, numbers))], _UTC)
        except SchedulerUnavailable:
            return  # the listing is valid without the reasons
        details = parse_qstat_details(output.out)
        for task in (one for one in [*in_error, *overdue] if one.number in numbers):
            detail = details.get(task.number, JobDetails())
            if task.phase is JobPhase.QUEUED:
                self._reasons[task.job, task.phase] = explain_pending(detail.scheduling_info)
            elif task.task in detail.errors:
                self._reasons[task.job, task.phase] = detail.errors[task.task]

    def _query_accounting(self, tokens: Set[str]) -> Mapping[str, JobView]:
        """Return the views of those that have ended; none for a while after qacct did not respond."""
        if time.monotonic() < self._not_before.accounting:
            return {}
        batches = {token.rpartition("-")[0] for token in tokens}
        pattern = "*.%s.%s*" % (self.group, batches.pop() if len(batches) == 1 else "")
        try:
            # It exits with 1 if there is no such job.
            output = command_runner.run_command(["qacct", "-j", pattern], self.timeout, environment=_UTC)
            records = parse_qacct(output.out, self._unreadable.reporter("qacct"))
        except (CommandTimeout, CommandNotRun):
            self._not_before.accounting = time.monotonic() + self.accounting_pause
            return {}
        by_token: dict[str, list[AccountingRecord]] = {}
        for record in records:
            token = token_of(record, self.group)
            if token in tokens:
                by_token.setdefault(token, []).append(record)
        return {token: view_of_ended(token, starts) for token, starts in by_token.items()}

    def hosts(self) -> Sequence[str]:
        if not self._hosts:
            try:
                self._hosts = tuple(parse_qhost(self._run(["qhost", "-xml"]).out))
            except (SchedulerUnavailable, UnreadableListing):
                return ()  # not known, which is no reason to stop
        return self._hosts

    def pop_notes(self) -> Sequence[str]:
        return self._unreadable.pop_notes()

    # Cancel and release.

    def cancel(self, views: Sequence[JobView]) -> None:
        listed = self._list_tasks()
        doomed = {view.token: listed[view.token] for view in views if view.token in listed}
        if not doomed:
            return
        ids = [task.job for tasks in doomed.values() for task in tasks]
        jobs, tasks = parse_qdel(self._run(["qdel", *ids], expected=_QDEL_OUTPUT).out)
        for token, each in doomed.items():
            if all(task.number in jobs or task.job in tasks for task in each):
                self._deleted[token] = view_of_deleted(token, each[0].job)

    def release(self, views: Sequence[JobView]) -> None:
        """Clear the error state."""
        if views:
            self._run(["qmod", "-cj", *(view.job for view in views)], expected=_QMOD_OUTPUT)
            for view in views:
                self._reasons.pop((view.job, view.phase), None)

    def forget(self, tokens: Sequence[str]) -> None:
        for token in tokens:
            self._ended.pop(token, None)
            self._deleted.pop(token, None)

    def _run(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None = None,
        expected: re.Pattern[str] | None = None,
    ) -> CommandOutput:
        """Run a program that must succeed, or fail with `expected` output. Raises SchedulerUnavailable."""
        try:
            output = command_runner.run_command(arguments, self.timeout, environment=environment)
        except (CommandTimeout, CommandNotRun) as error:
            raise SchedulerUnavailable("Grid Engine: %s" % error) from error
        if output.code != 0 and not (expected and expected.search(output.out)):
            raise SchedulerUnavailable("Grid Engine: %s: %s" % (arguments[0], output.error_message))
        return output


def _user_name() -> str:
    """Return the owner of the jobs. Grid Engine goes by the user id, not by the environment."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())

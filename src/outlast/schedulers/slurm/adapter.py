"""The Slurm adapter: runs sbatch, squeue, sacct, scancel, scontrol and sinfo.

Jobs that are submitted together become an array job, named after their batch; the task number is the index
in the token. So jobs are found by name and number, never by Slurm's own id, which is reused after a crash.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

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
from outlast.schedulers.slurm.listing import (
    SACCT_FORMAT,
    SINFO_FORMAT,
    SQUEUE_FORMAT,
    Row,
    SlurmLimits,
    parse_limits,
    parse_sacct,
    parse_sinfo,
    parse_squeue,
)
from outlast.schedulers.slurm.states import RETRYING, is_no_room, is_unreachable, parse_sbatch_output
from outlast.schedulers.slurm.submit import (
    LIMIT_SIGNAL,
    SlurmArray,
    batch_script,
    group_into_arrays,
    make_array,
    sbatch_command,
)
from outlast.schedulers.slurm.views import build_views, restore_task_numbers
from outlast.schedulers.unreadable_output import UnreadableOutput

#: Times as seconds since the epoch, and none of the user's own formats.
_PLAIN_OUTPUT = {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
#: The most waiting tasks to hold one by one before they are cancelled.
_MOST_HELD = 50
#: Seconds for which the list of nodes, and the limits of the cluster, are cached.
_HOSTS_LIFETIME = 600.0
_LIMITS_LIFETIME = 600.0
#: Seconds after its end in which the record of a cancelled job is awaited: it shows who cancelled it.
RECORD_DELAY = 30.0
#: Seconds by which the clocks of database and login node may differ.
_CLOCK_SKEW = 3600.0


class SlurmScheduler(Scheduler):
    """The adapter to one Slurm cluster, for one experiment (`group`)."""

    limit_signal = LIMIT_SIGNAL

    def __init__(
        self,
        group: str,
        profile: Profile,
        *,
        timeout: float = 30.0,
        patience: Patience = Patience(missing=45.0, heartbeat=120.0, pause=5.0, files=60.0),  # noqa: B008
        interval: float = 30.0,
    ) -> None:
        self.group = group
        self.profile = profile
        self.timeout = timeout
        self.patience = patience
        self.interval = interval
        #: When the hosts were queried, and their names.
        self._hosts: tuple[float, tuple[str, ...]] = (0.0, ())
        #: When the limits were queried, and what they are.
        self._limits: tuple[float, SlurmLimits] | None = None
        #: Starts that are over, from accounting; each is queried once.
        self._accounted: dict[tuple[str, str, float | None], Row] = {}
        self._has_accounting = True
        self._unreadable = UnreadableOutput()

    # Submit.

    def render(self, requests: Sequence[JobRequest]) -> str:
        parts = []
        for array in group_into_arrays(requests, self.group):
            for number in range(1, array.first.jobs + 1):
                after = "<id of job %d>" % (number - 1) if number > 1 else ""
                command = shlex.join(sbatch_command(array, self.profile, os.environ, after))
                parts.append("%s <<'END'\n%sEND" % (command, batch_script(array, self.profile)))
        return "\n\n".join(parts)

    def largest_batch(self) -> int:
        largest = self._query_limits().largest_array
        return self.batch if largest is None else max(1, min(self.batch, largest))

    def submit(self, requests: Sequence[JobRequest]) -> Mapping[str, Submission]:
        results: dict[str, Submission] = {}
        for array in group_into_arrays(requests, self.group):
            results.update(self._submit_parts(array))
        return results

    def _submit_parts(self, array: SlurmArray) -> dict[str, Submission]:
        """Submit an array, in smaller and smaller parts if Slurm has no room for all of it."""
        results: dict[str, Submission] = {}
        pending = sorted(array.requests, key=lambda one: one.index)
        size = len(pending)
        while pending:
            part = make_array(pending[:size], self.group)
            submitted = self._submit_array(part)
            refusal = submitted[part.first.token]
            if not is_no_room(refusal):
                results.update(submitted)
                pending = pending[size:]
            elif len(part.requests) > 1:
                size = (len(part.requests) + 1) // 2
            else:
                # There is no room for a single job, and so for none of the others.
                refusal = self._explain_no_room(refusal)
                results.update({one.token: refusal for one in pending})
                break
        return results

    def _explain_no_room(self, refusal: Submission) -> Submission:
        """Return the rejection of a single job, with what it waits for."""
        self._limits = None  # they may have been changed
        limits, cause = self._query_limits(), refusal.reason.replace(", %s" % RETRYING, "")
        if limits.array_size is not None and limits.array_size <= 1 and "array" in cause.lower():
            reason = "%s: this cluster has MaxArraySize=%d, and Outlast needs at least 2"
            return Submission(SubmitStatus.REJECTED, reason=reason % (cause, limits.array_size))
        if cause != refusal.reason and limits.jobs is not None:
            cause += " (it allows %d jobs of all users, MaxJobCount)" % limits.jobs
        reason = "no room for another job: %s. The run waits until there is" % cause
        return Submission(SubmitStatus.REJECTED, reason=reason, transient=True)

    def _query_limits(self) -> SlurmLimits:
        """Return the limits of the cluster; without any if Slurm does not respond."""
        if self._limits is None or time.monotonic() - self._limits[0] >= _LIMITS_LIFETIME:
            try:
                limits = parse_limits(self._run("scontrol", "show", "config").out)
            except SchedulerUnavailable:
                return self._limits[1] if self._limits else SlurmLimits()
            self._limits = (time.monotonic(), limits)
        return self._limits[1]

    def _submit_array(self, array: SlurmArray) -> dict[str, Submission]:
        """Submit one array, or all jobs of a chain. A chain that breaks off is accepted, and shorter."""
        ids: list[str] = []
        result = Submission(SubmitStatus.UNKNOWN)
        while len(ids) < array.first.jobs:
            result = self._run_sbatch(array, ids[-1] if ids else "")
            if result.status is not SubmitStatus.ACCEPTED:
                break
            ids.append(result.job)
        if not ids:
            return {one.token: result for one in array.requests}
        reason = ""
        if result.status is not SubmitStatus.ACCEPTED:
            reason = "%d of %d jobs: %s" % (len(ids), array.first.jobs, result.reason)
        return {
            one.token: Submission(
                SubmitStatus.ACCEPTED, ",".join("%s_%d" % (number, one.index) for number in ids), reason
            )
            for one in array.requests
        }

    def _run_sbatch(self, array: SlurmArray, after: str) -> Submission:
        command = sbatch_command(array, self.profile, os.environ, after)
        self.heartbeat()
        try:
            script = batch_script(array, self.profile)
            return parse_sbatch_output(
                command_runner.run_command(command, self.timeout, script, final_words=RETRYING)
            )
        except CommandNotRun as error:
            return Submission(SubmitStatus.REJECTED, reason=str(error), transient=True)
        except CommandTimeout:
            reason = "sbatch did not respond within %.0f s" % self.timeout
            return Submission(SubmitStatus.UNKNOWN, reason=reason)

    # Poll.

    def poll(self, expected: Sequence[JobRef] = ()) -> Mapping[str, JobView]:
        output = self._run("squeue", "--me", "--array", "--noheader", "--states=all", "-O", SQUEUE_FORMAT)
        rows = parse_squeue(output.out, self.group, self._unreadable.reporter("squeue"))
        listed = restore_task_numbers(rows, expected)
        tokens = {row.token for row in listed} | {one.token for one in expected}
        self._accounted = {key: row for key, row in self._accounted.items() if row.token in tokens}
        by_token: dict[str, list[Row]] = {}
        for row in listed:
            by_token.setdefault(row.token, []).append(row)
        incomplete = [one for one in expected if self._needs_accounting(one, by_token.get(one.token, []))]
        if incomplete and self._has_accounting:
            self._query_accounting(
                incomplete, [row for one in incomplete for row in by_token.get(one.token, [])]
            )
        if self._has_accounting:
            listed = self._await_records(listed, {one.token for one in incomplete})
        return build_views(
            listed, [row for row in self._accounted.values() if row.token in tokens], os.getuid()
        )

    def _needs_accounting(self, one: JobRef, rows: Sequence[Row]) -> bool:
        """Return True if sacct may add to the rows: jobs that squeue dropped, memory, earlier starts."""
        known = {row.job for row in (*rows, *self._accounted.values()) if row.token == one.token}
        if not known or any(job not in known for job in one.job.split(",") if job):
            return True
        for row in rows:
            starts = sum(key[:2] == (row.token, row.job) for key in self._accounted)
            if row.phase is JobPhase.QUEUED and row.earlier_starts > starts:
                return True  # why it was requeued
        return any(
            row.is_over
            and (row.started is not None or row.earlier_starts or row.state == "CANCELLED")
            and _start_key(row) not in self._accounted
            for row in rows
        )

    def _await_records(self, listed: Sequence[Row], tokens: Set[str]) -> list[Row]:
        """Return the rows of squeue, without the end of jobs that were just cancelled, nobody knows by whom.

        Until accounting has its record, a job that had started is being ended, and another is not listed.
        """
        rows = []
        for row in listed:
            is_recent = row.ended is not None and 0 <= time.time() - row.ended < RECORD_DELAY
            is_unrecorded = row.token in tokens and _start_key(row) not in self._accounted
            if row.state != "CANCELLED" or not is_recent or not is_unrecorded:
                rows.append(row)
            elif row.started is not None:
                rows.append(replace(row, state="COMPLETING", ended=None))
        return rows

    def _query_accounting(self, refs: Sequence[JobRef], listed: Sequence[Row]) -> None:
        """Query sacct and keep the starts that are over. If it fails, the rows of squeue are used alone."""
        command = ["sacct", "--noheader", "--parsable2", "--duplicates", "--format=%s" % SACCT_FORMAT]
        if all(one.job for one in refs):
            jobs = [job for one in refs for job in one.job.split(",")] + [row.job for row in listed]
            # Whole arrays: sacct does not find a single task that ended before it started.
            command.append("--jobs=%s" % ",".join(sorted({job.partition("_")[0] for job in jobs})))
        else:
            # By age, which sacct counts from its own clock.
            age = max(0.0, time.time() - min(one.submitted for one in refs)) + _CLOCK_SKEW
            command.append("--starttime=now-%dseconds" % age)
        try:
            output = command_runner.run_command(command, self.timeout, environment=_PLAIN_OUTPUT)
        except (CommandNotRun, CommandTimeout):
            return
        if output.code == 0:
            parsed = parse_sacct(output.out, self.group, self._unreadable.reporter("sacct"))
            rows = restore_task_numbers(parsed, refs)
            self._accounted.update({_start_key(row): row for row in rows if row.is_over})
        elif "storage is disabled" in output.error_message.lower():
            self._has_accounting = False

    def hosts(self) -> Sequence[str]:
        queried, names = self._hosts
        if names and time.monotonic() - queried < _HOSTS_LIFETIME:
            return names
        partition = ("--partition=%s" % self.profile.queue,) if self.profile.queue else ()
        try:
            output = self._run("sinfo", "--noheader", "--Node", "--format=%s" % SINFO_FORMAT, *partition)
        except SchedulerUnavailable:
            return names  # the last known ones; a job may avoid a node that is not listed
        names = parse_sinfo(output.out, any_partition=bool(partition))
        self._hosts = (time.monotonic(), names)
        return names

    def pop_notes(self) -> Sequence[str]:
        return self._unreadable.pop_notes()

    # Cancel and release.

    def cancel(self, views: Sequence[JobView]) -> None:
        waiting = [job for view in views if view.phase is not JobPhase.RUNNING for job in _job_ids(view)]
        if 0 < len(waiting) <= _MOST_HELD:
            # A task that is cancelled while it waits with others of its array vanishes without a trace; one
            # that was held before has become a job of its own, whose end is listed. Slurm is slow at this, so
            # the end of many tasks is concluded from their absence instead.
            self._run("scontrol", "hold", *waiting, allow_refusal=True)
        jobs = [job for view in views for job in _job_ids(view)]
        if jobs:
            self._run("scancel", "--quiet", *group_tasks(jobs), allow_refusal=True)

    def release(self, views: Sequence[JobView]) -> None:
        jobs = [job for view in views for job in _job_ids(view)]
        if jobs:
            self._run("scontrol", "release", *jobs, allow_refusal=True)

    def _run(self, *command: str, allow_refusal: bool = False) -> CommandOutput:
        """Run a Slurm program. Raises SchedulerUnavailable if it fails.

        With `allow_refusal`, an error counts only if Slurm was not reached: a job may be gone, or running.
        """
        try:
            output = command_runner.run_command(command, self.timeout, environment=_PLAIN_OUTPUT)
        except (CommandNotRun, CommandTimeout) as error:
            raise SchedulerUnavailable("cluster %s: %s" % (self._name, error)) from error
        if output.code != 0 and (not allow_refusal or is_unreachable(output.error_message)):
            message = "cluster %s: %s: %s" % (self._name, command[0], output.error_message)
            raise SchedulerUnavailable(message)
        return output

    @property
    def _name(self) -> str:
        return self.profile.name or "slurm"


def _start_key(row: Row) -> tuple[str, str, float | None]:
    return row.token, row.job, row.started


def group_tasks(jobs: Sequence[str]) -> list[str]:
    """Join the tasks of one array into one argument, `17_[1,2,5]`: Slurm handles it as a single request."""
    single, tasks = [], dict[str, list[str]]()
    for job in jobs:
        array, has_tasks, task = job.partition("_")
        if has_tasks:
            tasks.setdefault(array, []).append(task)
        else:
            single.append(job)
    return [*single, *("%s_[%s]" % (array, ",".join(numbers)) for array, numbers in tasks.items())]


def _job_ids(view: JobView) -> list[str]:
    return [job for job in view.job.split(",") if job]

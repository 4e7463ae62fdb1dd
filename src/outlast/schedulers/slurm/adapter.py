"""Slurm: the adapter to its own commands (sbatch, squeue, sacct, scancel, scontrol, sinfo).

Jobs that are sent together become an array job, named after their batch; the task number is the index in the
token. So they are found by name and number, never by Slurm's own id, which is used again after a crash.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping, Sequence

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
from outlast.schedulers.slurm.listing import (
    SACCT_FORMAT,
    SQUEUE_FORMAT,
    Row,
    read_sacct,
    read_squeue,
    usable_nodes,
)
from outlast.schedulers.slurm.states import answer_of, is_silence
from outlast.schedulers.slurm.submit import LIMIT_SIGNAL, SlurmArray, arrays_of, sbatch, script
from outlast.schedulers.slurm.views import give_number, views_of
from outlast.schedulers.unreadable_output import UnreadableOutput

#: Times as seconds since the epoch, and nothing of the user's own taste in formats.
#: Tasks that are held one by one before they are cancelled, at the most.
_MOST_HELD = 50
_PLAIN = {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
#: How long the names of nodes are believed, in seconds.
_HOSTS_FOR = 600.0
#: Clocks of database and login node may differ by this much, in seconds.
_CLOCKS = 3600.0


class SlurmScheduler(Scheduler):
    """One Slurm cluster, seen by one experiment (`group`)."""

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
        self._hosts: tuple[float, tuple[str, ...]] = (0.0, ())
        #: Starts that are over, from accounting; each is asked for once.
        self._past: dict[tuple[str, str, float | None], Row] = {}
        self._has_accounting = True
        self._oddities = UnreadableOutput()

    # Sending.

    def render(self, requests: Sequence[JobRequest]) -> str:
        parts = []
        for array in arrays_of(requests, self.group):
            for number in range(1, array.first.jobs + 1):
                after = "<id of job %d>" % (number - 1) if number > 1 else ""
                words = shlex.join(sbatch(array, self.profile, os.environ, after))
                parts.append("%s <<'END'\n%sEND" % (words, script(array, self.profile)))
        return "\n\n".join(parts)

    def submit(self, requests: Sequence[JobRequest]) -> Mapping[str, Submission]:
        answers: dict[str, Submission] = {}
        for array in arrays_of(requests, self.group):
            answers.update(self._submit_array(array))
        return answers

    def _submit_array(self, array: SlurmArray) -> dict[str, Submission]:
        ids: list[str] = []
        told = Submission(SubmitAnswer.UNKNOWN)
        while len(ids) < array.first.jobs:
            told = self._sbatch(array, ids[-1] if ids else "")
            if told.answer is not SubmitAnswer.ACCEPTED:
                break
            ids.append(told.job)
        if not ids:
            return {one.token: told for one in array.requests}
        # A chain that came out shorter than asked for is still one that goes on.
        short = (
            ""
            if told.answer is SubmitAnswer.ACCEPTED
            else "%d of %d jobs: %s"
            % (
                len(ids),
                array.first.jobs,
                told.reason,
            )
        )
        return {
            one.token: Submission(
                SubmitAnswer.ACCEPTED, ",".join("%s_%d" % (number, one.index) for number in ids), short
            )
            for one in array.requests
        }

    def _sbatch(self, array: SlurmArray, after: str) -> Submission:
        words = sbatch(array, self.profile, os.environ, after)
        self.beat()
        try:
            return answer_of(command_runner.call(words, self.timeout, script(array, self.profile)))
        except CommandNotRun as error:
            return Submission(SubmitAnswer.REJECTED, reason=str(error), transient=True)
        except CommandTimeout:
            reason = "sbatch did not answer within %.0f s" % self.timeout
            return Submission(SubmitAnswer.UNKNOWN, reason=reason)

    # Looking.

    def poll(self, sought: Sequence[Sought] = ()) -> Mapping[str, JobView]:
        told = self._ask("squeue", "--me", "--array", "--noheader", "--states=all", "-O", SQUEUE_FORMAT)
        rows_told = read_squeue(told.out, self.group, self._oddities.of("squeue"))
        listed = give_number(rows_told, sought)
        of_interest = {row.token for row in listed} | {one.token for one in sought}
        self._past = {key: row for key, row in self._past.items() if row.token in of_interest}
        rows: dict[str, list[Row]] = {}
        for row in listed:
            rows.setdefault(row.token, []).append(row)
        untold = [one for one in sought if self._is_untold(one, rows.get(one.token, []))]
        if untold and self._has_accounting:
            self._look_up(untold, [row for one in untold for row in rows.get(one.token, [])])
        return views_of(listed, [row for row in self._past.values() if row.token in of_interest])

    def _is_untold(self, one: Sought, rows: Sequence[Row]) -> bool:
        """Accounting knows more of it: jobs that squeue has dropped, memory, the starts before the last."""
        known = {row.job for row in (*rows, *self._past.values()) if row.token == one.token}
        if not known or any(job not in known for job in one.job.split(",") if job):
            return True
        return any(
            row.over and (row.started is not None or row.before) and _key(row) not in self._past
            for row in rows
        )

    def _look_up(self, sought: Sequence[Sought], listed: Sequence[Row]) -> None:
        """Ask accounting, which is allowed to fail: then what squeue says is all there is, for now."""
        words = ["sacct", "--noheader", "--parsable2", "--duplicates", "--format=%s" % SACCT_FORMAT]
        if all(one.job for one in sought):
            jobs = [job for one in sought for job in one.job.split(",")] + [row.job for row in listed]
            # Whole arrays: sacct finds no single task that ended before it was started.
            words.append("--jobs=%s" % ",".join(sorted({job.partition("_")[0] for job in jobs})))
        else:
            # By the age, which sacct counts from its own clock.
            age = max(0.0, time.time() - min(one.since for one in sought)) + _CLOCKS
            words.append("--starttime=now-%dseconds" % age)
        try:
            told = command_runner.call(words, self.timeout, environment=_PLAIN)
        except (CommandNotRun, CommandTimeout):
            return
        if told.code == 0:
            read = read_sacct(told.out, self.group, self._oddities.of("sacct"))
            rows = give_number(read, sought)
            self._past.update({_key(row): row for row in rows if row.over})
        elif "storage is disabled" in told.complaint.lower():
            self._has_accounting = False

    def hosts(self) -> Sequence[str]:
        asked, names = self._hosts
        if names and time.monotonic() - asked < _HOSTS_FOR:
            return names
        where = ("--partition=%s" % self.profile.queue,) if self.profile.queue else ()
        try:
            told = self._ask("sinfo", "--noheader", "--Node", "--format=%N|%P|%T", *where)
        except SchedulerUnavailable:
            return names  # what it said last; a job may avoid a node that nobody lists
        names = usable_nodes(told.out, any_partition=bool(where))
        self._hosts = (time.monotonic(), names)
        return names

    def remarks(self) -> Sequence[str]:
        return self._oddities.take()

    # Changing.

    def cancel(self, views: Sequence[JobView]) -> None:
        waiting = [job for view in views if view.phase is not JobPhase.RUNNING for job in _jobs(view)]
        if 0 < len(waiting) <= _MOST_HELD:
            # A task that is cancelled while it waits with others of its array vanishes without a trace; one
            # that is held before that has become a job of its own, whose end is told. That takes Slurm so
            # long that of many the end is found out by their absence instead.
            self._ask("scontrol", "hold", *waiting, certain=False)
        jobs = [job for view in views for job in _jobs(view)]
        if jobs:
            self._ask("scancel", "--quiet", *by_array(jobs), certain=False)

    def release(self, views: Sequence[JobView]) -> None:
        jobs = [job for view in views for job in _jobs(view)]
        if jobs:
            self._ask("scontrol", "release", *jobs, certain=False)

    def _ask(self, *words: str, certain: bool = True) -> CommandOutput:
        """Not `certain`: Slurm's own refusal (a job is gone, or has begun) is an answer as good as any."""
        try:
            told = command_runner.call(words, self.timeout, environment=_PLAIN)
        except (CommandNotRun, CommandTimeout) as error:
            raise SchedulerUnavailable("cluster %s: %s" % (self._name, error)) from error
        if told.code != 0 and (certain or is_silence(told.complaint)):
            raise SchedulerUnavailable("cluster %s: %s: %s" % (self._name, words[0], told.complaint))
        return told

    @property
    def _name(self) -> str:
        return self.profile.name or "slurm"


def _key(row: Row) -> tuple[str, str, float | None]:
    return row.token, row.job, row.started


def by_array(jobs: Sequence[str]) -> list[str]:
    """Tasks of one array in one word, `17_[1,2,5]`: Slurm then has one thing to do, not a thousand."""
    single, tasks = [], dict[str, list[str]]()
    for job in jobs:
        array, has_tasks, task = job.partition("_")
        if has_tasks:
            tasks.setdefault(array, []).append(task)
        else:
            single.append(job)
    return [*single, *("%s_[%s]" % (array, ",".join(found)) for array, found in tasks.items())]


def _jobs(view: JobView) -> list[str]:
    return [job for job in view.job.split(",") if job]

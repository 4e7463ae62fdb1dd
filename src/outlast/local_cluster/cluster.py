"""Starting, watching and ending jobs. Connections are in `server`.

While a job's leader lives, orphaned processes of the job become its children (each leader is a subreaper).
When it ends they become children of the daemon, so a child of the daemon that is not a leader belongs to an
ended job.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from outlast.local_cluster import processes, spawn
from outlast.local_cluster.job import JobEnding, JobState, LocalJob
from outlast.local_cluster.job_table import JobTable

#: Jobs started in one round of the loop, so that requests need not wait for all of them.
STARTS_AT_ONCE = 32
#: Pause after a fork or a write to the log failed.
PAUSE_SECONDS = 1.0

#: Endings without an exit code.
_BY_FORCE = (JobEnding.KILLED, JobEnding.OVER_TIME, JobEnding.STOPPED)


class Timer(Enum):
    WARN = 1
    LIMIT = 2
    KILL = 3


@dataclass(frozen=True)
class ClusterHooks:
    """The functions that the cluster calls; tests pass their own."""

    run: spawn.RunJob
    #: Kills every process with a job's token in its environment.
    kill_by_token: Callable[[str], object]
    #: Seconds between the SIGTERM and the SIGKILL of a cancelled job.
    cancel_grace: float
    log: Callable[[str], None]


class LocalCluster:
    """The jobs of one local cluster and their processes."""

    def __init__(self, directory: Path, hooks: ClusterHooks, last_seen: float) -> None:
        """`last_seen` is when a daemon last ran: the end of jobs that were lost in a reboot."""
        self.hooks = hooks
        self.end_notes = directory / "ends"
        self.end_notes.mkdir(mode=0o700, exist_ok=True)
        self.jobs = JobTable(directory / "jobs.jsonl", hooks.log)
        self.slots = self.jobs.slots
        self.boot = processes.boot_id()
        #: Running children by process id, and running jobs of an earlier daemon by job id.
        self.leaders: dict[int, LocalJob] = {}
        self.adopted: dict[int, LocalJob] = {}
        self.timers: list[tuple[float, int, int]] = []
        self.paused_until = 0.0
        for job in self.jobs:
            if job.phase is JobState.RUNNING:
                self._adopt(job, last_seen)
        self._clear_end_notes()

    # -- operations ---------------------------------------------------------------------------------

    def cancel(self, tokens: Iterable[str]) -> None:
        """End queued jobs; send SIGTERM to running ones, and SIGKILL after a grace."""
        for job in self.jobs.find(tokens):
            if job.phase is JobState.QUEUED:
                job.ending = JobEnding.CANCELLED
                self._end(job, reason="cancelled while queued")
            elif job.phase is JobState.RUNNING:
                self._request_end(job, JobEnding.CANCELLED, self.hooks.cancel_grace)

    def evict(self, tokens: Iterable[str]) -> None:
        """Send SIGTERM to running jobs, and SIGKILL after their own grace."""
        for job in self.jobs.find(tokens):
            if job.phase is JobState.RUNNING:
                self._request_end(job, JobEnding.EVICTED, job.request.grace)

    def kill(self, tokens: Iterable[str]) -> None:
        """Send SIGKILL to running jobs."""
        for job in self.jobs.find(tokens):
            if job.phase is JobState.RUNNING:
                self._kill(job, JobEnding.KILLED)

    def stop(self) -> None:
        """End all jobs at once."""
        for job in self.jobs:
            if job.phase is JobState.QUEUED:
                job.ending = JobEnding.STOPPED
                self._end(job, reason=JobEnding.STOPPED.value)
            elif job.phase is JobState.RUNNING:
                self._kill(job, JobEnding.STOPPED)

    @property
    def running(self) -> int:
        """The number of running jobs."""
        return len(self.leaders) + len(self.adopted)

    @property
    def unfinished(self) -> int:
        """The number of queued and running jobs."""
        return self.running + sum(1 for _ in self.jobs.queue)

    @property
    def is_idle(self) -> bool:
        return not self.running and not self.jobs.queue

    # -- starting -----------------------------------------------------------------------------------

    def dispatch(self) -> bool:
        """Start queued jobs that fit. Return True if more may be started at once."""
        for _ in range(STARTS_AT_ONCE):
            now = time.monotonic()
            startable = self.jobs.queue.pop_next(self.slots, now) if now >= self.paused_until else None
            if startable is None:
                return False
            job, host = startable
            if not self._start(job, host):
                self.jobs.queue.put_back(job)
        return True

    def _start(self, job: LocalJob, host: str) -> bool:
        request = job.request
        gpus = self.slots.allocate(host, request.need)
        environment = {
            **self.jobs.environment(job),
            "OUTLAST_HOST": host,
            "OUTLAST_LOCAL_JOB": str(job.id),
        }
        if gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))

        def record(pid: int) -> None:
            job.host, job.gpus, job.pid, job.boot = host, gpus, pid, self.boot
            job.ticks = processes.start_ticks(pid) or 0
            job.started, job.started_monotonic = time.time(), time.monotonic()
            self.jobs.record(job.start_record())

        try:
            pid = spawn.start_job(
                job=str(job.id),
                order=request.order,
                log=request.log,
                environment=environment,
                end_note=self._end_note(job),
                run=self.hooks.run,
                record=record,
            )
        except OSError as error:
            job.started = None
            self.slots.release(host, request.need.cpus, gpus)
            self.paused_until = time.monotonic() + PAUSE_SECONDS
            self.hooks.log("job %d could not be started and will be retried: %s" % (job.id, error))
            return False
        job.phase = JobState.RUNNING
        self.leaders[pid] = job
        self._set_limits(job)
        self.jobs.changed(job)
        return True

    def _set_limits(self, job: LocalJob) -> None:
        begin = job.started_monotonic
        self._set_timer(begin + job.request.warning_after, job, Timer.WARN)
        self._set_timer(begin + job.request.time, job, Timer.LIMIT)

    def _set_timer(self, when: float, job: LocalJob, timer: Timer) -> None:
        heapq.heappush(self.timers, (when, job.id, timer.value))

    # -- while they run -----------------------------------------------------------------------------

    def next_timer(self) -> float | None:
        """Return when the next timer is due (monotonic), or None. Discard timers of ended jobs."""
        while self.timers and not self._is_running(self.timers[0][1]):
            heapq.heappop(self.timers)
        return self.timers[0][0] if self.timers else None

    def _is_running(self, identity: int) -> bool:
        job = self.jobs.get(identity)
        return job is not None and job.phase is JobState.RUNNING

    def fire_timers(self) -> None:
        """Warn and kill the jobs whose timers are due."""
        now = time.monotonic()
        while (when := self.next_timer()) is not None and when <= now:
            _, identity, number = heapq.heappop(self.timers)
            timer = Timer(number)
            job = self.jobs.get(identity)
            if job is None:
                continue
            if timer is Timer.WARN:
                self._signal(job, signal.SIGUSR1)
            elif timer is Timer.LIMIT:
                self._kill(job, JobEnding.OVER_TIME)
            else:
                self._kill(job, job.ending or JobEnding.KILLED)

    def _request_end(self, job: LocalJob, why: JobEnding, grace: float) -> None:
        if job.ending is None:
            job.ending = why
            self.jobs.try_record(job.ending_record())
            self.jobs.changed(job)
        self._signal(job, signal.SIGTERM)
        self._set_timer(time.monotonic() + grace, job, Timer.KILL)

    def _kill(self, job: LocalJob, why: JobEnding) -> None:
        if job.ending is None or why is JobEnding.KILLED:
            job.ending = why
            self.jobs.try_record(job.ending_record())
        if job.adopted:
            descendants = processes.descendants(job.pid)
            self._signal(job, signal.SIGKILL)
            processes.kill_each(descendants)
        else:
            self._signal(job, signal.SIGKILL)  # its orphans become children of the daemon

    def _signal(self, job: LocalJob, number: int) -> None:
        if job.adopted:
            processes.send(job.pid, job.ticks, number)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(job.pid, number)  # a child that is not yet reaped keeps its id

    # -- ending -------------------------------------------------------------------------------------

    def reap(self) -> None:
        """Reap every child that ended, and kill what the leaders among them left behind."""
        ended: list[tuple[LocalJob | None, int]] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            job = self.leaders.pop(pid, None)
            ended.append((job, os.waitstatus_to_exitcode(status)))
        if ended:
            self._kill_orphans()
        for job, code in ended:
            if job is not None:
                self._leader_ended(job, code)

    def _kill_orphans(self) -> None:
        """Kill children that are not leaders. Their own children follow in the next call."""
        for child in processes.children_of(os.getpid()):
            if child not in self.leaders:
                processes.kill_each([child, *processes.descendants(child)])

    def _leader_ended(self, job: LocalJob, code: int) -> None:
        reason = ""
        if code > 0:
            note = spawn.read_end_note(self._end_note(job))
            reason = note.reason if note else ""
        if code < 0 or job.ending is not None:
            self._kill_leftovers(job)
        if code < 0:
            self._end(job, signal_number=-code)
        else:
            self._end(job, exit_code=code, reason=reason)

    def _kill_leftovers(self, job: LocalJob) -> None:
        """Kill processes with the job's token. A node program that exits normally has done so itself."""
        try:
            self.hooks.kill_by_token(job.request.token)
        except OSError as error:
            self.hooks.log("killing leftovers of job %d: %s" % (job.id, error))

    def _end(
        self,
        job: LocalJob,
        *,
        exit_code: int | None = None,
        signal_number: int | None = None,
        reason: str = "",
        ended: float | None = None,
        elapsed: float | None = None,
    ) -> None:
        was_running = job.phase is JobState.RUNNING
        job.phase = JobState.ENDED
        job.ended = time.time() if ended is None else ended
        job.exit_code, job.signal = exit_code, signal_number
        if exit_code is not None and job.ending in _BY_FORCE:
            job.ending = None  # it exited by itself before the signal arrived
        job.reason = reason or _describe_end(job)
        if was_running:
            job.elapsed = time.monotonic() - job.started_monotonic if elapsed is None else elapsed
            self.slots.release(job.host, job.request.need.cpus, job.gpus)
        if self.jobs.try_record(job.end_record()) and was_running:
            self._end_note(job).unlink(missing_ok=True)
        self.jobs.changed(job)

    def _end_note(self, job: LocalJob) -> Path:
        return self.end_notes / str(job.id)

    def _clear_end_notes(self) -> None:
        live = {str(job.id) for job in self.adopted.values()}
        for path in self.end_notes.iterdir():
            if path.name not in live:
                path.unlink(missing_ok=True)

    # -- jobs of an earlier daemon -------------------------------------------------------------------

    def _adopt(self, job: LocalJob, last_seen: float) -> None:
        self.slots.mark_used(job.host, job.request.need.cpus, job.gpus)
        if job.boot == self.boot and processes.is_alive(job.pid, job.ticks):
            job.adopted = True
            self.adopted[job.id] = job
            self._set_limits(job)
            if job.ending is not None:
                graces = {
                    JobEnding.CANCELLED: self.hooks.cancel_grace,
                    JobEnding.EVICTED: job.request.grace,
                }
                self._set_timer(time.monotonic() + graces.get(job.ending, 0.0), job, Timer.KILL)
        else:
            self._adopted_ended(job, last_seen)

    def check_adopted(self) -> None:
        """Record the end of adopted jobs that no longer run."""
        for job in list(self.adopted.values()):
            if not processes.is_alive(job.pid, job.ticks):
                del self.adopted[job.id]
                self._adopted_ended(job, time.time())

    def _adopted_ended(self, job: LocalJob, last_seen: float) -> None:
        same_boot = job.boot == self.boot
        if same_boot:
            # If another process has this id, the old session is empty.
            if processes.start_ticks(job.pid) is None:
                processes.kill_each(processes.in_session(job.pid))
            self._kill_leftovers(job)
        note = spawn.read_end_note(self._end_note(job))
        if note is not None:
            elapsed = (
                note.monotonic - job.started_monotonic if same_boot else note.at - (job.started or note.at)
            )
            self._end(job, exit_code=note.exit_code, reason=note.reason, ended=note.at, elapsed=elapsed)
        elif job.ending is not None and same_boot:
            self._end(job)
        elif same_boot:
            self._end(job, reason="gone without a trace: it ended while no daemon was watching")
        else:
            elapsed = max(0.0, last_seen - (job.started or last_seen))
            reason = "lost when the machine was restarted"
            self._end(job, reason=reason, ended=last_seen, elapsed=elapsed)


def _describe_end(job: LocalJob) -> str:
    if job.exit_code is not None:
        how = "ended with exit code %d" % job.exit_code
    elif job.signal is not None:
        how = "ended by signal %d (%s)" % (job.signal, signal.strsignal(job.signal))
    else:
        how = "ended"
    if job.ending is JobEnding.OVER_TIME:
        return "reached its wall-time limit of %g s" % job.request.time
    return "%s; %s" % (job.ending.value, how) if job.ending else how

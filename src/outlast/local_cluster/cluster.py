"""What becomes of the jobs: started, watched, ended. No sockets here: `server` has those.

While a job's leader lives, its orphans are the leader's (each leader is a subreaper). When it ends they
become the daemon's children, so whatever is a child of the daemon and no leader belongs to an ended job.
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

#: Forks in one go, so that many free slots do not keep the sockets waiting.
STARTS_AT_ONCE = 32
#: Pause after the system refused a process or the disk a record.
PAUSE_SECONDS = 1.0

#: Ways of being ended that leave no exit code.
_BY_FORCE = (JobEnding.KILLED, JobEnding.OVER_TIME, JobEnding.STOPPED)


class Timer(Enum):
    WARN = 1
    LIMIT = 2
    KILL = 3


@dataclass(frozen=True)
class Ability:
    """What the daemon was started to do; tests hand in their own."""

    run: spawn.RunJob
    #: Ends every process that carries a job's token.
    kill_by_token: Callable[[str], object]
    #: Seconds between the SIGTERM and the SIGKILL of a cancelled job.
    cancel_grace: float
    log: Callable[[str], None]


class LocalCluster:
    def __init__(self, directory: Path, ability: Ability, last_seen: float) -> None:
        """`last_seen` is when a daemon was last known to live, for jobs that went with the machine."""
        self.ability = ability
        self.ends = directory / "ends"
        self.ends.mkdir(mode=0o700, exist_ok=True)
        self.roster = JobTable(directory / "jobs.jsonl", ability.log)
        self.slots = self.roster.slots
        self.boot = processes.boot_id()
        #: Running children by process id, and running jobs of a daemon before this one by job id.
        self.leaders: dict[int, LocalJob] = {}
        self.adopted: dict[int, LocalJob] = {}
        self.timers: list[tuple[float, int, int]] = []
        self.paused_until = 0.0
        for job in self.roster:
            if job.phase is JobState.RUNNING:
                self._meet_again(job, last_seen)
        self._clear_end_notes()

    # -- what is asked ------------------------------------------------------------------------------

    def cancel(self, tokens: Iterable[str]) -> None:
        for job in self.roster.known(tokens):
            if job.phase is JobState.QUEUED:
                job.ending = JobEnding.CANCELLED
                self._end(job, reason="cancelled while it waited")
            elif job.phase is JobState.RUNNING:
                self._ask_to_end(job, JobEnding.CANCELLED, self.ability.cancel_grace)

    def evict(self, tokens: Iterable[str]) -> None:
        for job in self.roster.known(tokens):
            if job.phase is JobState.RUNNING:
                self._ask_to_end(job, JobEnding.EVICTED, job.request.grace)

    def kill(self, tokens: Iterable[str]) -> None:
        for job in self.roster.known(tokens):
            if job.phase is JobState.RUNNING:
                self._kill(job, JobEnding.KILLED)

    def stop(self) -> None:
        """End everything at once."""
        for job in self.roster:
            if job.phase is JobState.QUEUED:
                job.ending = JobEnding.STOPPED
                self._end(job, reason=JobEnding.STOPPED.value)
            elif job.phase is JobState.RUNNING:
                self._kill(job, JobEnding.STOPPED)

    @property
    def running(self) -> int:
        return len(self.leaders) + len(self.adopted)

    @property
    def unfinished(self) -> int:
        return self.running + sum(1 for _ in self.roster.waiting)

    @property
    def is_idle(self) -> bool:
        return not self.running and not self.roster.waiting

    # -- starting -----------------------------------------------------------------------------------

    def dispatch(self) -> bool:
        """Start what fits, first come first served. True if there may be more to start at once."""
        for _ in range(STARTS_AT_ONCE):
            now = time.monotonic()
            following = self.roster.waiting.take_next(self.slots, now) if now >= self.paused_until else None
            if following is None:
                return False
            job, host = following
            if not self._start(job, host):
                self.roster.waiting.put_back(job)
        return True

    def _start(self, job: LocalJob, host: str) -> bool:
        request = job.request
        gpus = self.slots.take(host, request.need)
        environment = {
            **self.roster.environment(job),
            "OUTLAST_HOST": host,
            "OUTLAST_LOCAL_JOB": str(job.id),
        }
        if gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))

        def record(pid: int) -> None:
            job.host, job.gpus, job.pid, job.boot = host, gpus, pid, self.boot
            job.ticks = processes.start_ticks(pid) or 0
            job.started, job.started_monotonic = time.time(), time.monotonic()
            self.roster.record(job.start_record())

        try:
            pid = spawn.start_job(
                job=str(job.id),
                order=request.order,
                log=request.log,
                environment=environment,
                end_note=self._end_note(job),
                run=self.ability.run,
                record=record,
            )
        except OSError as error:
            job.started = None
            self.slots.give_back(host, request.need.cpus, gpus)
            self.paused_until = time.monotonic() + PAUSE_SECONDS
            self.ability.log("job %d could not be started, will be tried again: %s" % (job.id, error))
            return False
        job.phase = JobState.RUNNING
        self.leaders[pid] = job
        self._set_limits(job)
        self.roster.changed(job)
        return True

    def _set_limits(self, job: LocalJob) -> None:
        begin = job.started_monotonic
        self._set_timer(begin + job.request.warning_after, job, Timer.WARN)
        self._set_timer(begin + job.request.time, job, Timer.LIMIT)

    def _set_timer(self, when: float, job: LocalJob, timer: Timer) -> None:
        heapq.heappush(self.timers, (when, job.id, timer.value))

    # -- while they run -----------------------------------------------------------------------------

    def next_timer(self) -> float | None:
        """When something is due (monotonic). Timers of jobs that ended are thrown away here."""
        while self.timers and not self._is_running(self.timers[0][1]):
            heapq.heappop(self.timers)
        return self.timers[0][0] if self.timers else None

    def _is_running(self, identity: int) -> bool:
        job = self.roster.get(identity)
        return job is not None and job.phase is JobState.RUNNING

    def fire_timers(self) -> None:
        now = time.monotonic()
        while (when := self.next_timer()) is not None and when <= now:
            _, identity, number = heapq.heappop(self.timers)
            timer = Timer(number)
            job = self.roster.get(identity)
            if job is None:
                continue
            if timer is Timer.WARN:
                self._signal(job, signal.SIGUSR1)
            elif timer is Timer.LIMIT:
                self._kill(job, JobEnding.OVER_TIME)
            else:
                self._kill(job, job.ending or JobEnding.KILLED)

    def _ask_to_end(self, job: LocalJob, why: JobEnding, grace: float) -> None:
        if job.ending is None:
            job.ending = why
            self.roster.note(job.ending_record())
            self.roster.changed(job)
        self._signal(job, signal.SIGTERM)
        self._set_timer(time.monotonic() + grace, job, Timer.KILL)

    def _kill(self, job: LocalJob, why: JobEnding) -> None:
        if job.ending is None or why is JobEnding.KILLED:
            job.ending = why
            self.roster.note(job.ending_record())
        if job.adopted:
            below = processes.descendants(job.pid)
            self._signal(job, signal.SIGKILL)
            processes.kill_each(below)
        else:
            self._signal(job, signal.SIGKILL)  # what is below it comes to us when it is dead

    def _signal(self, job: LocalJob, number: int) -> None:
        if job.adopted:
            processes.send(job.pid, job.ticks, number)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(job.pid, number)  # our child and not yet waited for: the id is its own

    # -- ending -------------------------------------------------------------------------------------

    def reap(self) -> None:
        """Take note of every child that ended, and end what the leaders among them left behind."""
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
        """Each one that dies may leave us children of its own: its end calls this again."""
        for child in processes.children_of(os.getpid()):
            if child not in self.leaders:
                processes.kill_each([child, *processes.descendants(child)])

    def _leader_ended(self, job: LocalJob, code: int) -> None:
        reason = ""
        if code > 0:
            note = spawn.read_end_note(self._end_note(job))
            reason = note.reason if note else ""
        if code < 0 or job.ending is not None:
            self._sweep(job)
        if code < 0:
            self._end(job, signal_number=-code)
        else:
            self._end(job, exit_code=code, reason=reason)

    def _sweep(self, job: LocalJob) -> None:
        """A node program that came to its own end has done this itself."""
        try:
            self.ability.kill_by_token(job.request.token)
        except OSError as error:
            self.ability.log("looking for leftovers of job %d: %s" % (job.id, error))

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
            job.ending = None  # it had come to its own end before the signal did
        job.reason = reason or _sentence(job)
        if was_running:
            job.elapsed = time.monotonic() - job.started_monotonic if elapsed is None else elapsed
            self.slots.give_back(job.host, job.request.need.cpus, job.gpus)
        if self.roster.note(job.end_record()) and was_running:
            self._end_note(job).unlink(missing_ok=True)
        self.roster.changed(job)

    def _end_note(self, job: LocalJob) -> Path:
        return self.ends / str(job.id)

    def _clear_end_notes(self) -> None:
        live = {str(job.id) for job in self.adopted.values()}
        for path in self.ends.iterdir():
            if path.name not in live:
                path.unlink(missing_ok=True)

    # -- jobs of a daemon before this one -----------------------------------------------------------

    def _meet_again(self, job: LocalJob, last_seen: float) -> None:
        self.slots.hold(job.host, job.request.need.cpus, job.gpus)
        if job.boot == self.boot and processes.is_alive(job.pid, job.ticks):
            job.adopted = True
            self.adopted[job.id] = job
            self._set_limits(job)
            if job.ending is not None:
                graces = {
                    JobEnding.CANCELLED: self.ability.cancel_grace,
                    JobEnding.EVICTED: job.request.grace,
                }
                self._set_timer(time.monotonic() + graces.get(job.ending, 0.0), job, Timer.KILL)
        else:
            self._adopted_ended(job, last_seen)

    def look_after_adopted(self) -> None:
        for job in list(self.adopted.values()):
            if not processes.is_alive(job.pid, job.ticks):
                del self.adopted[job.id]
                self._adopted_ended(job, time.time())

    def _adopted_ended(self, job: LocalJob, last_seen: float) -> None:
        same_boot = job.boot == self.boot
        if same_boot:
            # A stranger of the same id means that nobody is left in the old session.
            if processes.start_ticks(job.pid) is None:
                processes.kill_each(processes.in_session(job.pid))
            self._sweep(job)
        note = spawn.read_end_note(self._end_note(job))
        if note is not None:
            elapsed = (
                note.monotonic - job.started_monotonic if same_boot else note.at - (job.started or note.at)
            )
            self._end(job, exit_code=note.exit_code, reason=note.reason, ended=note.at, elapsed=elapsed)
        elif job.ending is not None and same_boot:
            self._end(job)
        elif same_boot:
            self._end(job, reason="gone without a trace: how it ended was not seen by any daemon")
        else:
            elapsed = max(0.0, last_seen - (job.started or last_seen))
            reason = "gone with the machine, which was started anew"
            self._end(job, reason=reason, ended=last_seen, elapsed=elapsed)


def _sentence(job: LocalJob) -> str:
    if job.exit_code is not None:
        how = "ended with exit code %d" % job.exit_code
    elif job.signal is not None:
        how = "ended by signal %d (%s)" % (job.signal, signal.strsignal(job.signal))
    else:
        how = "ended"
    if job.ending is JobEnding.OVER_TIME:
        return "reached its wall-time limit of %g s" % job.request.time
    return "%s; %s" % (job.ending.value, how) if job.ending else how

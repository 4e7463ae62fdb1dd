"""The harness of the test Grid Engine of `tests/clusters/sge`.

Its queue `small.q` has the two hosts that the suite needs, with one slot each. All tests share the cell,
which outlives them.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from contract.scheduler_harness import SchedulerHarness, await_death, record_commands
from outlast.exchange.experiment import Experiment
from outlast.local_cluster.processes import start_ticks
from outlast.schedulers import command_runner
from outlast.schedulers.base import JobPhase, JobRef, JobRequest, JobView
from outlast.schedulers.profile import Profile
from outlast.schedulers.sge.adapter import SgeScheduler
from support import clusters


class SgeHarness(SchedulerHarness):
    """Grid Engine with the queue `small.q`."""

    name = "sge"
    #: Whole experiments need more slots than the two of `small.q`.
    profile_keys = {"scheduler": "sge", "queue": "main.q", "interval": "2s", "lag": "2s"}  # noqa: RUF012 - read only
    impossible_resources = {"gpus": 50}  # noqa: RUF012 - read only
    impossible_reason = "gpus=50"
    short_time = 2.0
    short_grace = 1.0
    #: Hosts find a restarted qmaster after 30 s, and a lost host is noticed after 25 s. A deletion that did
    #: not reach its host is sent again after 60 s.
    patience = 180.0
    limit_signal = signal.SIGUSR2
    stop_signal = signal.SIGUSR2
    deduplicates_tokens = rejects_impossible_requests = False
    #: A qsub that was killed before the qmaster read its request has sent nothing.
    accepts_while_frozen = False
    queue = "small.q"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        variables = clusters.environment("sge")
        self.place = Path(variables["SGE_ROOT"])
        self._cleanup = contextlib.ExitStack()
        self._cleanup.enter_context(clusters.exclusive("sge"))
        self._patch = self._cleanup.enter_context(pytest.MonkeyPatch.context())
        for name, value in variables.items():
            self._patch.setenv(name, value)
        self._port = variables["SGE_QMASTER_PORT"]
        self.group = "contract" + secrets.token_hex(4)
        self._tokens: list[str] = []
        self._frozen = False
        self._lost: set[str] = set()
        self.scheduler: SgeScheduler = self.another_adapter()

    def another_adapter(self, **arguments: Any) -> SgeScheduler:
        plain: dict[str, Any] = {"group": self.group, "profile": Profile(queue=self.queue)}
        return _ListsEndedJobs(self._tokens, **{**plain, **arguments})

    def watch(self, experiment: Path, clusters: Path) -> None:
        self.group = Experiment(experiment).identity
        self.scheduler = self.another_adapter()

    def request(self, code: str = "", **changes: Any) -> JobRequest:
        request = super().request(code, **changes)
        self._tokens.append(request.token)
        return request

    def daemon(self, name: str) -> int:
        return int((self.place / "run" / (name + ".pid")).read_text())

    def freeze(self) -> None:
        os.kill(self.daemon("qmaster"), signal.SIGSTOP)
        self._frozen = True

    def thaw(self) -> None:
        os.kill(self.daemon("qmaster"), signal.SIGCONT)
        self._frozen = False

    def crash(self) -> None:
        self._kill(self.daemon("qmaster"))
        clusters.control("sge", "qmaster")

    def crash_now(self) -> None:
        """Crash, and reschedule tasks that were being sent to their host: qmaster would wait five minutes."""
        self.crash()
        until = time.monotonic() + 40.0
        while stuck := [v for v in self.scheduler.poll().values() if "being sent" in v.reason]:
            if time.monotonic() > until:
                command_runner.run_command(["qmod", "-f", "-rj", *(view.job for view in stuck)], 30.0)
                break
            time.sleep(1.0)

    def make_unreachable(self) -> None:
        self._patch.setenv("SGE_QMASTER_PORT", "1")

    def record_calls(self) -> contextlib.AbstractContextManager[list[str]]:
        return record_commands()

    def kill_without_warning(self, token: str) -> None:
        """Kill all processes of a job. Grid Engine itself does not kill processes of root."""
        self._kill_all_of(self.scheduler.poll()[token])

    def preempt(self, token: str) -> None:
        self.requeue(token)

    def requeue(self, token: str) -> None:
        """Reschedule a running job, as an administrator does."""
        output = command_runner.run_command(["qmod", "-rj", self.scheduler.poll()[token].job], 30.0)
        assert output.code == 0, output.error_message

    def lose_node(self, token: str) -> str:
        """Kill the node of a running job, which is rescheduled; return the node's name."""
        view = self.scheduler.poll()[token]
        self._lost.add(view.host)
        shepherd = int((self._spool(view) / "pid").read_text())
        self._kill(self.daemon("execd-" + view.host))
        self._kill(shepherd)
        self._kill_all_of(view)
        clusters.control("sge", "reschedule", "00:00:01")
        return view.host

    def restore_nodes(self) -> None:
        if self._lost:
            clusters.control("sge", "reschedule", "00:00:00")
        for host in self._lost:
            clusters.control("sge", host)
        self._lost.clear()

    def _spool(self, view: JobView) -> Path:
        return self.place / "spool" / "execd" / view.host / "active_jobs" / view.job

    def _kill_all_of(self, view: JobView) -> None:
        """Kill the processes of a job, which have an additional group id of their own."""
        group = (self._spool(view) / "addgrpid").read_text().strip()
        while found := [pid for pid in _processes() if group in _groups(pid)]:
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    self._kill(pid)

    def _kill(self, pid: int) -> None:
        ticks = start_ticks(pid) or 0
        os.kill(pid, signal.SIGKILL)
        await_death(pid, ticks)

    def close(self) -> None:
        try:
            if self._frozen:
                self.thaw()
            self._patch.setenv("SGE_QMASTER_PORT", self._port)
            self.restore_nodes()
            self.scheduler = self.another_adapter()
            self._delete_all()
        finally:
            self._cleanup.close()
            super().close()

    def _delete_all(self) -> None:
        """Delete the jobs of this test; a job that keeps its slot would fail the tests that follow."""
        live = [view for view in self.scheduler.poll().values() if view.phase is not JobPhase.ENDED]
        self.scheduler.cancel(live)
        try:
            self.poll_until(lambda views: all(view.phase is JobPhase.ENDED for view in views.values()))
        finally:
            left = [task.job for tasks in self.scheduler._list_tasks().values() for task in tasks]
            if left:
                command_runner.run_command(["qdel", "-f", *left], 30.0)


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _groups(pid: int) -> list[str]:
    try:
        status = Path("/proc/%d/status" % pid).read_text()
    except OSError:
        return []  # it has ended
    found = re.search(r"(?m)^State:\s+[^Z].*(?:\n.*)*?\nGroups:(.*)$", status)
    return found[1].split() if found else []


class _ListsEndedJobs(SgeScheduler):
    """Polls for all jobs of its test by default: Grid Engine does not list those that have ended."""

    #: Later than any poll of a test that counts calls.
    explain_after = 3.0

    def __init__(self, tokens: Sequence[str], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._tokens = tokens

    def poll(self, expected: Sequence[JobRef] = ()) -> Mapping[str, JobView]:
        return super().poll(expected or [JobRef(token, "", 0.0) for token in self._tokens])

"""The test Grid Engine of `tests/clusters/sge` in the contract suite, with ways to hurt it.

Its queue `small.q` has the two hosts that the suite wants, with one slot each. The cell is one for all tests
and outlives them.
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

from contract.scheduler_harness import Rehearsal, await_death, counted_programs
from outlast.exchange.experiment import Experiment
from outlast.local_cluster.processes import start_ticks
from outlast.schedulers import command_runner
from outlast.schedulers.base import JobPhase, JobRequest, JobView, Sought
from outlast.schedulers.profile import Profile
from outlast.schedulers.sge.adapter import SgeScheduler
from support import clusters


class SgeRehearsal(Rehearsal):
    name = "sge"
    #: Whole experiments want more slots than the two of `small.q`.
    profile_keys = {"scheduler": "sge", "queue": "main.q", "interval": "2s", "lag": "2s"}  # noqa: RUF012 - read only
    impossible = {"gpus": 50}  # noqa: RUF012 - read only
    impossible_because = "gpus=50"
    short_time = 2.0
    short_grace = 1.0
    #: Hosts find a qmaster that was started again after 30 s, and a lost one is noticed after 25 s.
    patience = 120.0
    #: What comes at the limit and before the end of a job that is deleted.
    warning = signal.SIGUSR2
    asking = signal.SIGUSR2
    knows_tokens = refuses_the_impossible = False
    #: A qsub that was ended before the qmaster took its request has sent nothing.
    hears_while_frozen = False
    queue = "small.q"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        told = clusters.environment("sge")
        self.place = Path(told["SGE_ROOT"])
        self._left = contextlib.ExitStack()
        self._left.enter_context(clusters.exclusive("sge"))
        self._patch = self._left.enter_context(pytest.MonkeyPatch.context())
        for name, value in told.items():
            self._patch.setenv(name, value)
        self._port = told["SGE_QMASTER_PORT"]
        self.group = "contract" + secrets.token_hex(4)
        self._tokens: list[str] = []
        self._frozen = False
        self._lost: set[str] = set()
        self.scheduler: SgeScheduler = self.another_adapter()

    def another_adapter(self, **arguments: Any) -> SgeScheduler:
        plain: dict[str, Any] = {"group": self.group, "profile": Profile(queue=self.queue)}
        return _Curious(self._tokens, **{**plain, **arguments})

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
        """A task that was on its way to its host is sent again by the new qmaster after five minutes, or once
        an administrator puts it back."""
        self.crash()
        until = time.monotonic() + 40.0
        while stuck := [v for v in self.scheduler.poll().values() if "is being sent" in v.reason]:
            if time.monotonic() > until:
                command_runner.call(["qmod", "-f", "-rj", *(view.job for view in stuck)], 30.0)
                break
            time.sleep(1.0)

    def make_unreachable(self) -> None:
        self._patch.setenv("SGE_QMASTER_PORT", "1")

    def calls(self) -> contextlib.AbstractContextManager[list[str]]:
        return counted_programs()

    def kill_without_warning(self, token: str) -> None:
        """All of its processes. Grid Engine does so itself, but spares those of root, and these are."""
        self._kill_all_of(self.scheduler.poll()[token])

    def send_away(self, token: str) -> None:
        self.requeue(token)

    def requeue(self, token: str) -> None:
        """Put a running job back into the queue, as an administrator does."""
        told = command_runner.call(["qmod", "-rj", self.scheduler.poll()[token].job], 30.0)
        assert told.code == 0, told.complaint

    def lose_node(self, token: str) -> str:
        """The node of a running job dies with all that is on it, and the job is put back; the node's name."""
        view = self.scheduler.poll()[token]
        self._lost.add(view.host)
        shepherd = int((self._spool(view) / "pid").read_text())
        self._kill(self.daemon("execd-" + view.host))
        self._kill(shepherd)
        self._kill_all_of(view)
        clusters.control("sge", "reschedule", "00:00:01")
        return view.host

    def node_back(self) -> None:
        if self._lost:
            clusters.control("sge", "reschedule", "00:00:00")
        for host in self._lost:
            clusters.control("sge", host)
        self._lost.clear()

    def _spool(self, view: JobView) -> Path:
        return self.place / "spool" / "execd" / view.host / "active_jobs" / view.job

    def _kill_all_of(self, view: JobView) -> None:
        """Each job has a group id of its own among the additional ones of its processes."""
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
            self.node_back()
            self.scheduler = self.another_adapter()
            live = [view for view in self.scheduler.poll().values() if view.phase is not JobPhase.ENDED]
            self.scheduler.cancel(live)
            self.poll_until(lambda views: all(view.phase is JobPhase.ENDED for view in views.values()))
        finally:
            self._left.close()
            super().close()


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _groups(pid: int) -> list[str]:
    try:
        status = Path("/proc/%d/status" % pid).read_text()
    except OSError:
        return []  # it has ended
    found = re.search(r"(?m)^State:\s+[^Z].*(?:\n.*)*?\nGroups:(.*)$", status)
    return found[1].split() if found else []


class _Curious(SgeScheduler):
    """Wants to hear about all jobs of its test, for Grid Engine does not list those that have ended."""

    #: Later than any test polls that counts calls.
    explain_after = 3.0

    def __init__(self, tokens: Sequence[str], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._of_test = tokens

    def poll(self, sought: Sequence[Sought] = ()) -> Mapping[str, JobView]:
        return super().poll(sought or [Sought(token, "", 0.0) for token in self._of_test])

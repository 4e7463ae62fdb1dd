"""The test Slurm of `tests/clusters/slurm` in the contract suite, with ways to hurt it.

Its partition `pair` has the two hosts that the suite wants. The cluster is one for all tests and outlives
them; who uses it holds a lock, because freezing it would spoil another's test.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from contract.scheduler_harness import Rehearsal, await_death, counted_programs
from outlast.exchange.experiment import Experiment
from outlast.local_cluster.processes import start_ticks
from outlast.schedulers import command_runner
from outlast.schedulers.base import JobPhase
from outlast.schedulers.profile import Profile
from outlast.schedulers.slurm.adapter import SlurmScheduler
from support import clusters


class SlurmRehearsal(Rehearsal):
    name = "slurm"
    profile_keys = {"scheduler": "slurm", "queue": "main", "interval": "2s"}  # noqa: RUF012 - read only
    #: The one node with so many is down.
    impossible = {"gpus": 8}  # noqa: RUF012 - read only
    impossible_because = "needs nodes that are down"
    #: Slurm counts limits in minutes, and looks every 30 s whether one is reached.
    short_time = 60.0
    #: It warns up to 30 s earlier than asked; with more it might before the job has begun to listen.
    short_grace = 15.0
    patience = 180.0
    #: What comes before the limit, and before the end of a job that is cancelled.
    warning = signal.SIGUSR1
    asking = signal.SIGTERM
    knows_tokens = False
    partition = "pair"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        # What this shell has already is not among them.
        self.configuration = Path({**os.environ, **clusters.environment(self.name)}["SLURM_CONF"])
        self.place = self.configuration.parent
        self._left = contextlib.ExitStack()
        self._left.enter_context(clusters.exclusive("slurm"))
        self._patch = self._left.enter_context(pytest.MonkeyPatch.context())
        self._patch.setenv("SLURM_CONF", str(self.configuration))
        self.group = "contract" + secrets.token_hex(4)
        self._frozen = False
        self._lost: set[str] = set()
        self.scheduler: SlurmScheduler = self.another_adapter()

    def another_adapter(self, **arguments: Any) -> SlurmScheduler:
        plain: dict[str, Any] = {"group": self.group, "profile": Profile(queue=self.partition)}
        return SlurmScheduler(**{**plain, **arguments})

    def watch(self, experiment: Path, clusters: Path) -> None:
        self.group = Experiment(experiment).identity
        self.scheduler = self.another_adapter()

    def control(self, *words: str) -> str:
        """What `scontrol` says."""
        told = command_runner.call(["scontrol", *words], 30.0, environment={"SLURM_TIME_FORMAT": "%s"})
        assert told.code == 0, told.complaint
        return told.out

    def daemon(self, name: str) -> int:
        return int((self.place / "run" / (name + ".pid")).read_text())

    def freeze(self) -> None:
        os.kill(self.daemon("slurmctld"), signal.SIGSTOP)
        self._frozen = True

    def thaw(self) -> None:
        os.kill(self.daemon("slurmctld"), signal.SIGCONT)
        self._frozen = False

    def crash(self) -> None:
        """Kill slurmctld once its state file holds every job as it is now; what it has not written is lost.

        It writes that file only after a job has changed, so one job gets a comment, which the file must hold.
        """
        comment = "crash-" + secrets.token_hex(8)
        live = [view for view in self.scheduler.poll().values() if view.phase is not JobPhase.ENDED]
        self.control("update", "JobId=%s" % live[0].job, "Comment=%s" % comment)
        until = time.monotonic() + self.patience
        while not self._has_written(comment):
            assert time.monotonic() < until, "slurmctld does not save its state"
            time.sleep(0.2)
        self.crash_now()

    def _has_written(self, text: str) -> bool:
        try:
            return text.encode() in (self.place / "state" / "job_state").read_bytes()
        except FileNotFoundError:
            return False  # it is being replaced

    def crash_now(self) -> None:
        self._kill("slurmctld")
        subprocess.run(
            [str(clusters.SCRIPTS / self.name), "up"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            timeout=self.patience,
            check=True,
        )

    def make_unreachable(self) -> None:
        text = self.configuration.read_text()
        nowhere = self.directory / "slurm.conf"
        nowhere.write_text(re.sub(r"(?m)^SlurmctldPort=.*$", "SlurmctldPort=1", text))
        self._patch.setenv("SLURM_CONF", str(nowhere))
        self.scheduler = self.another_adapter(timeout=2.0)

    def calls(self) -> contextlib.AbstractContextManager[list[str]]:
        return counted_programs()

    def kill_without_warning(self, token: str) -> None:
        job = self.scheduler.poll()[token].job
        told = command_runner.call(["scancel", "--signal=KILL", job], 30.0)
        assert told.code == 0, told.complaint

    def send_away(self, token: str) -> None:
        self.requeue(token)

    def requeue(self, token: str) -> None:
        """Put a running job back into the queue, as an administrator does, and let it start again at once."""
        job = self.scheduler.poll()[token].job
        self.control("requeue", job)
        self.poll_until(lambda views: views[token].phase is JobPhase.QUEUED)
        self.start_now(token)

    def start_now(self, token: str) -> None:
        """Slurm would hold a requeued job back for two minutes.

        A node refuses to start a job in the very second in which it has ended it.
        """
        job = self.scheduler.poll()[token].job
        self.control("update", "JobId=%s" % job, "StartTime=now+2seconds")

    def lose_node(self, token: str) -> str:
        """The node of a running job goes down, and the job is put back into the queue; the node's name."""
        host = self.scheduler.poll()[token].host
        self._lost.add(host)
        self.control("update", "NodeName=%s" % host, "State=DOWN", "Reason=rehearsal")
        self.poll_until(lambda views: views[token].phase is JobPhase.QUEUED)
        self.start_now(token)
        return host

    def node_back(self) -> None:
        """A node that answers is of use again by itself, or it is told so."""
        for host in self._lost:
            command_runner.call(["scontrol", "update", "NodeName=%s" % host, "State=RESUME"], 30.0)
        self._lost.clear()

    def _kill(self, name: str) -> None:
        pid = self.daemon(name)
        ticks = start_ticks(pid) or 0
        os.kill(pid, signal.SIGKILL)
        await_death(pid, ticks)

    def close(self) -> None:
        try:
            if self._frozen:
                self.thaw()
            self._patch.setenv("SLURM_CONF", str(self.configuration))
            self.node_back()
            self.scheduler = self.another_adapter()
            live = [view for view in self.scheduler.poll().values() if view.phase is not JobPhase.ENDED]
            self.scheduler.cancel(live)
            self.poll_until(lambda views: all(view.phase is JobPhase.ENDED for view in views.values()))
        finally:
            self._left.close()
            super().close()

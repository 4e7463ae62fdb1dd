"""The harness of the test Slurm of `tests/clusters/slurm`.

Its partition `pair` has the two hosts that the suite needs. All tests share the cluster, which outlives them;
a test locks it, because freezing it would break another test.
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

from contract.scheduler_harness import SchedulerHarness, await_death, record_commands
from outlast.exchange.experiment import Experiment
from outlast.local_cluster.processes import start_ticks
from outlast.schedulers import command_runner
from outlast.schedulers.base import JobPhase
from outlast.schedulers.profile import Profile
from outlast.schedulers.slurm.adapter import SlurmScheduler
from support import clusters


class SlurmHarness(SchedulerHarness):
    """Slurm with the partition `pair`."""

    name = "slurm"
    profile_keys = {"scheduler": "slurm", "queue": "main", "interval": "2s"}  # noqa: RUF012 - read only
    #: The only node with this many is down.
    impossible_resources = {"gpus": 8}  # noqa: RUF012 - read only
    impossible_reason = "needs nodes that are down"
    #: Slurm counts limits in minutes and checks them every 30 s.
    short_time = 60.0
    #: It warns up to 30 s early; with more, it might warn before the job has blocked the signal.
    short_grace = 15.0
    patience = 180.0
    limit_signal = signal.SIGUSR1
    stop_signal = signal.SIGTERM
    deduplicates_tokens = False
    partition = "pair"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        # `environment` leaves out what this process has already.
        self.configuration = Path({**os.environ, **clusters.environment(self.name)}["SLURM_CONF"])
        self.place = self.configuration.parent
        self._cleanup = contextlib.ExitStack()
        self._cleanup.enter_context(clusters.exclusive("slurm"))
        self._patch = self._cleanup.enter_context(pytest.MonkeyPatch.context())
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
        """Run `scontrol` and return its output."""
        output = command_runner.run_command(
            ["scontrol", *words], 30.0, environment={"SLURM_TIME_FORMAT": "%s"}
        )
        assert output.code == 0, output.error_message
        return output.out

    def daemon(self, name: str) -> int:
        return int((self.place / "run" / (name + ".pid")).read_text())

    def freeze(self) -> None:
        os.kill(self.daemon("slurmctld"), signal.SIGSTOP)
        self._frozen = True

    def thaw(self) -> None:
        os.kill(self.daemon("slurmctld"), signal.SIGCONT)
        self._frozen = False

    def crash(self) -> None:
        """Kill slurmctld once its state file contains every job as it is now, and start it again.

        It writes that file only after a job has changed, so one job gets a comment, which the file must have.
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

    def record_calls(self) -> contextlib.AbstractContextManager[list[str]]:
        return record_commands()

    def kill_without_warning(self, token: str) -> None:
        job = self.scheduler.poll()[token].job
        output = command_runner.run_command(["scancel", "--signal=KILL", job], 30.0)
        assert output.code == 0, output.error_message

    def preempt(self, token: str) -> None:
        self.requeue(token)

    def requeue(self, token: str) -> None:
        """Requeue a running job, as an administrator does, and let it start again at once."""
        job = self.scheduler.poll()[token].job
        self.control("requeue", job)
        self.poll_until(lambda views: views[token].phase is JobPhase.QUEUED)
        self.start_now(token)

    def start_now(self, token: str) -> None:
        """Start a requeued job now; Slurm would delay it by two minutes.

        A node refuses to start a job in the same second in which it ended it.
        """
        job = self.scheduler.poll()[token].job
        self.control("update", "JobId=%s" % job, "StartTime=now+2seconds")

    def lose_node(self, token: str) -> str:
        """Take down the node of a running job, which is requeued; return the node's name."""
        host = self.scheduler.poll()[token].host
        self._lost.add(host)
        self.control("update", "NodeName=%s" % host, "State=DOWN", "Reason=test")
        self.poll_until(lambda views: views[token].phase is JobPhase.QUEUED)
        self.start_now(token)
        return host

    def restore_nodes(self) -> None:
        """Resume the nodes that `lose_node` took down."""
        for host in self._lost:
            command_runner.run_command(["scontrol", "update", "NodeName=%s" % host, "State=RESUME"], 30.0)
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
            self.restore_nodes()
            self.scheduler = self.another_adapter()
            live = [view for view in self.scheduler.poll().values() if view.phase is not JobPhase.ENDED]
            self.scheduler.cancel(live)
            self.poll_until(lambda views: all(view.phase is JobPhase.ENDED for view in views.values()))
        finally:
            self._cleanup.close()
            super().close()

"""The harness of the test pool of `tests/clusters/htcondor`, which all tests share."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contract.scheduler_harness import HERE, SchedulerHarness, await_death
from outlast.exchange.experiment import Experiment
from outlast.local_cluster.processes import start_ticks
from outlast.schedulers import command_runner
from outlast.schedulers.base import JobRequest
from outlast.schedulers.htcondor import submit
from outlast.schedulers.htcondor.adapter import HTCondorScheduler
from outlast.schedulers.profile import Profile
from support import clusters

#: The suite needs two hosts; the pool has a third one.
PAIR = 'requirements = GLIDEIN_ResourceName != "gamma"'


class HTCondorHarness(SchedulerHarness):
    """HTCondor with the sites `alpha` and `beta`."""

    name = "htcondor"
    #: HTCondor checks the limit every few seconds.
    short_time = 2.0
    short_grace = 1.0
    patience = 90.0
    profile_keys = {  # noqa: RUF012 - read only
        "scheduler": "htcondor",
        "interval": "1s",
        "commit": "chirp",
        "commit_every": "2s",
    }
    impossible_resources = {"cpus": 64}  # noqa: RUF012 - read only
    impossible_reason = "requests 64 cpus"
    #: A submission whose sender has gone is undone.
    accepts_while_frozen = False
    #: The signal comes at the limit.
    limit_signal = signal.SIGTERM
    #: A host that has the resources may join the pool at any time.
    rejects_impossible_requests = False
    reports_code_of_cancelled = False
    appends_to_log = False
    #: HTCondor needs control groups, and root, for that.
    kills_hidden_processes = False
    full_host_cpus = 4
    #: A checkpoint must have been committed as well, which happens at most every 2 s.
    save_interval, kill_step, most_lost_steps = 10, 50, 40

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._cleanup = contextlib.ExitStack()
        found = clusters.environment("htcondor")
        self._cleanup.enter_context(clusters.exclusive("htcondor"))
        self._patch = self._cleanup.enter_context(pytest.MonkeyPatch.context())
        for name, value in found.items():
            self._patch.setenv(name, value)
        # A job that ignores the stop signal keeps its slot for this long.
        self._patch.setattr(submit, "SHUTDOWN_SECONDS", 1)
        self._pool = Path(found["CONDOR_CONFIG"]).parent
        self._config = found["CONDOR_CONFIG"]
        self.group = "contract-" + secrets.token_hex(4)
        self._frozen = 0
        self._zipapp = shutil.copy(HERE / "stub_job.py", directory)
        self.scheduler: HTCondorScheduler = self.another_adapter()

    def another_adapter(self, **arguments: Any) -> HTCondorScheduler:
        plain: dict[str, Any] = {
            "group": self.group,
            "profile": Profile(directives=(PAIR,)),
            "interval": 1.0,
        }
        return HTCondorScheduler(**{**plain, **arguments})

    def request(self, code: str = "", **changes: Any) -> JobRequest:
        """Return a request with a directory of its own, to which files are transferred back."""
        plain = super().request(code)
        directory = self.directory / plain.token
        directory.mkdir()
        changed = {"zipapp": str(self._zipapp), "directory": str(directory), "memory": 10**8, **changes}
        return replace(plain, **changed)

    def daemon(self, name: str) -> int:
        """Return the process id of one of the master's daemons."""
        master = (self._pool / "master.pid").read_text().strip()
        for child in Path("/proc/%s/task/%s/children" % (master, master)).read_text().split():
            if Path("/proc/%s/comm" % child).read_text().strip() == name:
                return int(child)
        raise AssertionError("%s is not running" % name)

    def freeze(self) -> None:
        self._frozen = self.daemon("condor_schedd")
        os.kill(self._frozen, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self._frozen, signal.SIGCONT)
        self._frozen = 0

    def crash(self) -> None:
        """Kill the schedd; the master starts another one, which takes over the running jobs."""
        kill_and_wait(self.daemon("condor_schedd"))
        until = time.monotonic() + self.patience
        while command_runner.run_command(["condor_q", "-limit", "1"], 30.0).code != 0:
            assert time.monotonic() < until, "no schedd came back"
            time.sleep(0.1)

    def make_unreachable(self) -> None:
        nowhere = self.directory / "condor_config"
        nowhere.write_text(
            "COLLECTOR_HOST = 127.0.0.1:1\nSCHEDD_ADDRESS_FILE = %s\nLOCAL_DIR = %s\n"
            % (self.directory / "none", self.directory)
        )
        self._patch.setenv("CONDOR_CONFIG", str(nowhere))
        self.scheduler = self.another_adapter(timeout=10.0)

    @contextlib.contextmanager
    def record_calls(self) -> Iterator[list[str]]:
        made: list[str] = []
        call_worker = self.scheduler._call_worker

        def recorded(operation: str, **arguments: Any) -> dict[str, Any]:
            made.append(operation)
            return call_worker(operation, **arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.scheduler, "_call_worker", recorded)
            yield made

    @contextlib.contextmanager
    def without_history(self) -> Iterator[None]:
        """Hide the history, as if it had been rotated away."""
        history = Path(self.tool("condor_config_val", "HISTORY").strip())
        away = history.with_name(history.name + ".away")
        history.rename(away)
        try:
            yield
        finally:
            with away.open("ab") as before, contextlib.suppress(FileNotFoundError):
                before.write(history.read_bytes())
            away.rename(history)

    def job(self, token: str) -> str:
        return self.scheduler.poll()[token].job

    def tool(self, *command: str) -> str:
        """Run a program of HTCondor and return its output."""
        output = command_runner.run_command(command, 30.0)
        assert output.code == 0, output.error_message
        return output.out

    def evict(self, token: str, fast: bool) -> None:
        """Evict a job, as a site does that reclaims its slot; `fast`: without a signal to the job."""
        self.tool("condor_vacate_job", *(["-fast"] if fast else []), self.job(token))

    def preempt(self, token: str) -> None:
        self.evict(token, fast=False)

    def watch(self, experiment: Path, clusters: Path) -> None:
        self.group = Experiment(experiment).identity
        self.scheduler = self.another_adapter()

    def logs(self, experiment: Path) -> Sequence[Path]:
        """Return the logs of running jobs: a log is transferred back with its job."""
        # Not all of a job's directory: it may contain a whole container, and files vanish meanwhile.
        return [
            path
            for place in ("dir_*", "dir_*/scratch")
            for path in self._pool.glob("execute/*/%s/travel/training.log" % place)
        ]

    def kill_without_warning(self, token: str) -> None:
        job = self.job(token)
        self.tool("condor_qedit", job, "WantGracefulRemoval", "false")
        self.tool("condor_rm", job)

    def lose_node(self, token: str) -> None:
        self.kill_starter(token)

    def kill_starter(self, token: str) -> None:
        """Kill the process that manages the job on its host, as if the host had died."""
        slot = self.tool("condor_q", self.job(token), "-af", "RemoteHost").strip()
        name, _, machine = slot.partition("@")
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                logs = (process / "environ").read_bytes()
                ours = str(self._pool / "log" / ("StarterLog." + machine.partition("@")[0]))
                if words[0] == b"condor_starter" and name.encode() in words and ours.encode() in logs:
                    kill_and_wait(int(process.name))
                    return
        raise AssertionError("no starter for %s in %s" % (token, slot))

    @property
    def ours(self) -> str:
        """The constraint for the jobs of this group."""
        return 'OutlastGroup == "%s"' % self.group

    def await_empty_queue(self) -> None:
        until = time.monotonic() + self.patience
        while self.tool("condor_q", "-constraint", self.ours, "-af", "ClusterId"):
            assert time.monotonic() < until, "jobs of %s are still in the queue" % self.group
            time.sleep(0.1)

    def close(self) -> None:
        try:
            if self._frozen:
                self.thaw()
            self._patch.setenv("CONDOR_CONFIG", self._config)
            # It exits with 1 if there is none.
            command_runner.run_command(["condor_rm", "-constraint", self.ours], 30.0)
            self.await_empty_queue()
        finally:
            self._cleanup.close()
            super().close()


def kill_and_wait(pid: int) -> None:
    ticks = start_ticks(pid) or 0
    os.kill(pid, signal.SIGKILL)
    await_death(pid, ticks)

"""The test pool of `tests/clusters/htcondor` in the contract suite, with ways to hurt it.

The pool is one for all tests and outlives them.
"""

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

from contract.scheduler_harness import HERE, Rehearsal, await_death
from outlast.exchange.experiment import Experiment
from outlast.local_cluster.processes import start_ticks
from outlast.schedulers import command_runner
from outlast.schedulers.base import JobRequest
from outlast.schedulers.htcondor import submit
from outlast.schedulers.htcondor.adapter import HTCondorScheduler
from outlast.schedulers.profile import Profile
from support import clusters

#: The suite wants two hosts; the pool has a third one.
PAIR = 'requirements = GLIDEIN_ResourceName != "gamma"'


class HTCondorRehearsal(Rehearsal):
    name = "htcondor"
    #: The limit is looked at every few seconds.
    short_time = 2.0
    short_grace = 1.0
    patience = 90.0
    profile_keys = {"scheduler": "htcondor", "interval": "1s", "commit_every": "2s"}  # noqa: RUF012 - read only
    impossible = {"cpus": 64}  # noqa: RUF012 - read only
    impossible_because = "asks for 64 cpus"
    #: A submission whose sender went away is undone.
    hears_while_frozen = False
    #: The signal comes at the limit.
    warning = signal.SIGTERM
    #: A host that can give it may join the pool at any time.
    refuses_the_impossible = False
    tells_code_of_cancelled = False
    appends_to_log = False
    #: HTCondor needs root's control groups for that.
    finds_what_hid = False
    whole = 4
    #: What was saved must have been committed as well, which happens every 2 s at the most.
    kept_steps, safe_step, lost_steps = 10, 50, 40

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._left = contextlib.ExitStack()
        found = clusters.environment("htcondor")
        self._left.enter_context(clusters.exclusive("htcondor"))
        self._patch = self._left.enter_context(pytest.MonkeyPatch.context())
        for name, value in found.items():
            self._patch.setenv(name, value)
        # A job that will not leave keeps its slot for this long, and the tests waiting.
        self._patch.setattr(submit, "LAST_WORDS", 1)
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
        """A directory of its own for each: what travels comes back there."""
        plain = super().request(code)
        directory = self.directory / plain.token
        directory.mkdir()
        changed = {"zipapp": str(self._zipapp), "directory": str(directory), "memory": 10**8, **changes}
        return replace(plain, **changed)

    def daemon(self, name: str) -> int:
        """The process id of one of the master's daemons."""
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
        """The master starts another schedd, which takes the running jobs over."""
        kill_hard(self.daemon("condor_schedd"))
        until = time.monotonic() + self.patience
        while command_runner.call(["condor_q", "-limit", "1"], 30.0).code != 0:
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
    def calls(self) -> Iterator[list[str]]:
        made: list[str] = []
        ask = self.scheduler._ask

        def counted(do: str, **asked: Any) -> dict[str, Any]:
            made.append(do)
            return ask(do, **asked)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.scheduler, "_ask", counted)
            yield made

    @contextlib.contextmanager
    def without_history(self) -> Iterator[None]:
        """What has left the queue is nowhere to be asked for, as after the history was rotated away."""
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

    def tool(self, *words: str) -> str:
        told = command_runner.call(words, 30.0)
        assert told.code == 0, told.complaint
        return told.out

    def evict(self, token: str, fast: bool) -> None:
        """A site wants its slot back and asks the job to leave; `fast`: without a word to the job."""
        self.tool("condor_vacate_job", *(["-fast"] if fast else []), self.job(token))

    def send_away(self, token: str) -> None:
        self.evict(token, fast=False)

    def watch(self, experiment: Path, clusters: Path) -> None:
        self.group = Experiment(experiment).identity
        self.scheduler = self.another_adapter()

    def logs(self, experiment: Path) -> Sequence[Path]:
        """Of what runs now: a log comes home with its job."""
        # Not below all of a job's directory: there may be a whole container, and what vanishes meanwhile.
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
        """What looks after the job on its host dies, as when the host does."""
        slot = self.tool("condor_q", self.job(token), "-af", "RemoteHost").strip()
        name, _, machine = slot.partition("@")
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                logs = (process / "environ").read_bytes()
                ours = str(self._pool / "log" / ("StarterLog." + machine.partition("@")[0]))
                if words[0] == b"condor_starter" and name.encode() in words and ours.encode() in logs:
                    kill_hard(int(process.name))
                    return
        raise AssertionError("no starter works for %s in %s" % (token, slot))

    @property
    def ours(self) -> str:
        """The constraint that says which jobs are of this group."""
        return 'OutlastGroup == "%s"' % self.group

    def await_empty_queue(self) -> None:
        until = time.monotonic() + self.patience
        while self.tool("condor_q", "-constraint", self.ours, "-af", "ClusterId"):
            assert time.monotonic() < until, "jobs of %s stay" % self.group
            time.sleep(0.1)

    def close(self) -> None:
        try:
            if self._frozen:
                self.thaw()
            self._patch.setenv("CONDOR_CONFIG", self._config)
            # It exits with 1 if there is none left.
            command_runner.call(["condor_rm", "-constraint", self.ours], 30.0)
            self.await_empty_queue()
        finally:
            self._left.close()
            super().close()


def kill_hard(pid: int) -> None:
    ticks = start_ticks(pid) or 0
    os.kill(pid, signal.SIGKILL)
    await_death(pid, ticks)

"""The harness of a scheduler in the contract suite: requests for small jobs, and ways to break the scheduler.

A scheduler joins the suite by a subclass of `SchedulerHarness` and a line in `conftest.py`.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outlast.exchange.experiment import Experiment
from outlast.local_cluster.processes import is_alive, start_ticks
from outlast.schedulers import command_runner
from outlast.schedulers.base import JobPhase, JobRequest, JobView, Scheduler
from outlast.schedulers.local import DaemonOptions, Host, LocalScheduler

HERE = Path(__file__).parent
PATIENCE = 30.0

Views = Mapping[str, JobView]


class SchedulerHarness(ABC):
    """A cluster with two hosts, `alpha` and `beta`, of one cpu each, and what is special about it."""

    #: The scheduler's name in profiles.
    name: str
    #: A wall-time limit that the scheduler can enforce, in seconds.
    short_time = 1.0
    #: Seconds from the warning to the limit, as exact as the scheduler allows.
    short_grace = 0.5
    #: Seconds to wait for anything.
    patience = PATIENCE
    #: The signals before the limit, and at a cancellation.
    limit_signal = signal.SIGUSR1
    stop_signal = signal.SIGTERM
    #: True if the adapter does not submit a token twice.
    deduplicates_tokens = True
    #: True if requests that no host can satisfy are rejected at once; otherwise the job waits with a reason.
    rejects_impossible_requests = True
    #: True if a request that was sent while it was frozen is handled later, though its sender has gone.
    accepts_while_frozen = True
    #: True if the exit code of a cancelled job is reported.
    reports_code_of_cancelled = True
    #: True if a job's output is appended to its log.
    appends_to_log = True
    #: True if processes are killed that left the job's session and environment.
    kills_hidden_processes = True
    #: The number of cpus of a host.
    full_host_cpus = 1
    scheduler: Scheduler
    #: Its profile in `clusters.yaml`, for whole experiments.
    profile_keys: Mapping[str, Any]
    #: Resources that no host has, and a part of the reason why such a job does not start.
    impossible_resources: Mapping[str, Any]
    impossible_reason: str
    #: A training script that saves every `save_interval` steps and is killed at `kill_step` loses at most
    #: `most_lost_steps`.
    save_interval, kill_step, most_lost_steps = 10, 15, 10

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._made = 0
        self._fifos: list[Fifo] = []

    @abstractmethod
    def another_adapter(self, **arguments: Any) -> Scheduler:
        """Return a second adapter, as another process would have it."""

    @abstractmethod
    def freeze(self) -> None:
        """Make the scheduler accept requests without responding."""

    @abstractmethod
    def thaw(self) -> None: ...

    @abstractmethod
    def crash(self) -> None:
        """Kill the scheduler without warning, and start it again; running jobs survive."""

    @abstractmethod
    def make_unreachable(self) -> None:
        """Make the scheduler unreachable for the adapter, for good."""

    @abstractmethod
    def record_calls(self) -> contextlib.AbstractContextManager[list[str]]:
        """Record the requests that the adapter makes of the scheduler meanwhile."""

    @abstractmethod
    def kill_without_warning(self, token: str) -> None: ...

    @abstractmethod
    def preempt(self, token: str) -> None:
        """Take the slot of a running job, in the scheduler's mildest way."""

    def lose_node(self, token: str) -> object:
        """Kill the node of a running job, with all that is on it."""
        return self.kill_without_warning(token)

    def crash_now(self) -> None:
        """Crash at the worst moment: what the scheduler has not written to disk is lost."""
        self.crash()

    @abstractmethod
    def watch(self, experiment: Path, clusters: Path) -> None:
        """Let `scheduler` see the jobs of this experiment; `clusters` is the directory of local clusters."""

    def submission_of(self, job: str) -> str:
        """Return the part of a job id that jobs of one submission share."""
        return re.split(r"[._]", job)[0]

    def newest_step(self, experiment: Path) -> int:
        """Return the last step that a job of the experiment printed; -1 if none did."""
        logs = [path.read_text(errors="replace") for path in sorted(self.logs(experiment))]
        steps = [int(step) for log in logs[-1:] for step in re.findall(r"(?m)^step (\d+)$", log)]
        return steps[-1] if steps else -1

    def logs(self, experiment: Path) -> Sequence[Path]:
        return list(experiment.glob("logs/*/*.log"))

    def close(self) -> None:
        """Clean up."""
        for fifo in self._fifos:
            fifo.close()

    def request(self, code: str = "", **changes: Any) -> JobRequest:
        """Return the request for a job that runs these lines of Python."""
        self._made += 1
        token = "token-%d" % self._made
        order = self.directory / (token + ".py")
        order.write_text(code, encoding="utf-8")
        plain = JobRequest(
            token=token,
            name="contract",
            order=str(order),
            zipapp=str(HERE / "stub_job.py"),
            log=str(self.directory / "logs" / "deep" / (token + ".log")),
            cpus=1,
            gpus=0,
            memory=10**6,
            disk=10**6,
            time=600.0,
            grace=5.0,
        )
        return replace(plain, **changes)

    def fifo(self, name: str) -> Fifo:
        """Create a fifo between the test and its jobs."""
        self._fifos.append(Fifo(self.directory / name, self.patience))
        return self._fifos[-1]

    def poll_until(self, condition: Callable[[Views], bool], scheduler: Scheduler | None = None) -> Views:
        """Poll until the condition holds, and return the views."""
        scheduler = scheduler or self.scheduler
        until = time.monotonic() + self.patience
        while True:
            views = scheduler.poll()
            if condition(views):
                return views
            assert time.monotonic() < until, "the condition never held: %r" % (views,)
            scheduler.wait(1.0)

    def await_end(self, *tokens: str) -> Views:
        return self.poll_until(lambda views: all(_is(views, token, JobPhase.ENDED) for token in tokens))

    def await_start(self, *tokens: str) -> Views:
        return self.poll_until(lambda views: all(_is(views, token, JobPhase.RUNNING) for token in tokens))


def _is(views: Views, token: str, phase: JobPhase) -> bool:
    return token in views and views[token].phase is phase


class Fifo:
    """A fifo through which a job notifies its test, or the test its jobs."""

    def __init__(self, path: Path, patience: float) -> None:
        os.mkfifo(path)
        self.path = path
        self._patience = patience
        self._read = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._write = -1

    # Code for a job.

    def notify_code(self, text: str = "'!'") -> str:
        """Return code that writes the value of the expression `text` to the fifo."""
        return "open(%r, 'w').write(str(%s))\n" % (str(self.path), text)

    @property
    def wait_code(self) -> str:
        """Code that waits until the test releases the fifo."""
        return "import os; os.read(os.open(%r, os.O_RDONLY), 1)\n" % str(self.path)

    def read(self) -> str:
        """Wait for a job to write, and return the text."""
        ready, _, _ = select.select([self._read], [], [], self._patience)
        assert ready, "the job wrote nothing"
        return os.read(self._read, 65536).decode()

    def release(self) -> None:
        """Let all jobs continue that wait, now or later."""
        self._write = os.open(self.path, os.O_WRONLY)
        os.write(self._write, b"!" * 1000)

    def close(self) -> None:
        os.close(self._read)
        if self._write >= 0:
            os.close(self._write)


@contextlib.contextmanager
def record_commands() -> Iterator[list[str]]:
    """Record the scheduler's programs that are run meanwhile."""
    made: list[str] = []
    call = command_runner.run_command

    def counted(arguments: Any, *rest: Any, **more: Any) -> command_runner.CommandOutput:
        made.append(arguments[0])
        return call(arguments, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_runner, "run_command", counted)
        yield made


def await_death(pid: int, ticks: int) -> None:
    """Wait until this process has ended; `ticks` is its start time."""
    if not is_alive(pid, ticks):
        return
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            ready, _, _ = select.select([descriptor], [], [], PATIENCE)
        finally:
            os.close(descriptor)
        assert ready or not is_alive(pid, ticks), "process %d is still alive" % pid


class LocalHarness(SchedulerHarness):
    name = "local"
    profile_keys = {"scheduler": "local", "hosts": {"alpha": 2, "beta": 2}}  # noqa: RUF012 - read only
    impossible_resources = {"cpus": 64}  # noqa: RUF012 - read only
    impossible_reason = "no host of cluster here has 64 cpus"
    options = DaemonOptions(
        idle=20.0,
        cancel_grace=0.3,
        run="stub_job:run",
        kill_by_token="outlast.node.process_cleanup:kill_by_token",
        path=(str(HERE),),
    )
    hosts = {"alpha": Host(cpus=1), "beta": Host(cpus=1)}  # noqa: RUF012 - read only

    def __init__(self, directory: Path, **options: Any) -> None:
        super().__init__(directory)
        self.root = directory / "root"
        self.options = replace(self.options, **options)
        self.scheduler: LocalScheduler = self.another_adapter()
        self._frozen = 0

    @property
    def place(self) -> Path:
        return self.root / "local"

    def another_adapter(self, **arguments: Any) -> LocalScheduler:
        plain: dict[str, Any] = {
            "group": "experiment",
            "root": self.root,
            "hosts": self.hosts,
            "options": self.options,
        }
        return LocalScheduler(**{**plain, **arguments})

    def freeze(self) -> None:
        self._frozen = self.scheduler.daemon_pid()
        os.kill(self._frozen, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self._frozen, signal.SIGCONT)
        self._frozen = 0

    def crash(self) -> None:
        pid = self.scheduler.daemon_pid()
        ticks = start_ticks(pid)
        os.kill(pid, signal.SIGKILL)
        await_death(pid, ticks or 0)

    def make_unreachable(self) -> None:
        self.scheduler.stop(force=True)
        self.scheduler = self.another_adapter(options=replace(self.options, run="no_such_module:run"))

    @contextlib.contextmanager
    def record_calls(self) -> Iterator[list[str]]:
        made: list[str] = []
        client = self.scheduler._client
        ask = client.ask

        def counted(operation: str, *rest: Any, **arguments: Any) -> dict[str, Any]:
            made.append(operation)
            return ask(operation, *rest, **arguments)

        client.ask = counted  # type: ignore[method-assign]
        yield made
        client.ask = ask  # type: ignore[method-assign]

    def kill_without_warning(self, token: str) -> None:
        self.scheduler.kill(token)

    def preempt(self, token: str) -> None:
        self.scheduler.evict(token)

    def watch(self, experiment: Path, clusters: Path) -> None:
        hosts = {name: Host(cpus=2) for name in self.hosts}
        group = Experiment(experiment).identity
        self.scheduler = LocalScheduler(group, name="here", root=clusters, hosts=hosts)

    def submission_of(self, job: str) -> str:
        """Return the same for all: jobs of the local cluster are numbered one by one."""
        return ""

    def close(self) -> None:
        if self._frozen:
            self.thaw()
        self.another_adapter(timeout=PATIENCE).stop(force=True)
        super().close()


def process_ids(text: str) -> Sequence[tuple[int, int]]:
    """Return process ids and start times of the processes whose ids a job wrote."""
    return [(int(word), start_ticks(int(word)) or 0) for word in text.split()]


def kill(processes: Sequence[tuple[int, int]]) -> None:
    for pid, ticks in processes:
        if is_alive(pid, ticks):
            os.kill(pid, signal.SIGKILL)

"""What the contract suite needs of a scheduler beyond its adapter: jobs to run, and ways to hurt it.

A scheduler joins the suite by a subclass of `Rehearsal` and a line in `conftest.py`.
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


class Rehearsal(ABC):
    """Two hosts, `alpha` with one cpu and `beta` with one."""

    #: The scheduler's name in profiles.
    name: str
    #: A wall-time limit the scheduler can keep to, in seconds.
    short_time = 1.0
    #: How long before it the warning comes, or as near to that as the scheduler keeps.
    short_grace = 0.5
    #: Seconds in which everything comes that comes at all.
    patience = PATIENCE
    #: The signals that come before the limit, and when a job is cancelled.
    warning = signal.SIGUSR1
    asking = signal.SIGTERM
    #: A token that was submitted is not submitted again.
    knows_tokens = True
    #: What no host can ever give is refused at once; else the job waits, and says why.
    refuses_the_impossible = True
    #: What is sent while it is frozen arrives, though the one who sent it has gone.
    hears_while_frozen = True
    #: The exit code of a job that was cancelled is told.
    tells_code_of_cancelled = True
    #: A job's output goes to the end of its log.
    appends_to_log = True
    #: Processes are found though they left the job's session and environment.
    finds_what_hid = True
    #: As many cpus as fill a host.
    whole = 1
    scheduler: Scheduler
    #: What `clusters.yaml` says of it, for whole experiments.
    profile_keys: Mapping[str, Any]
    #: Resources that no host has, and a word of the reason why such a job does not start.
    impossible: Mapping[str, Any]
    impossible_because: str
    #: A training that saves every `kept_steps` is killed at `safe_step` and goes on from `lost_steps` before.
    kept_steps, safe_step, lost_steps = 10, 15, 10

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._made = 0
        self._fifos: list[Fifo] = []

    @abstractmethod
    def another_adapter(self, **arguments: Any) -> Scheduler:
        """A second one, as another process would have it."""

    @abstractmethod
    def freeze(self) -> None:
        """From now on the scheduler takes requests but does not answer."""

    @abstractmethod
    def thaw(self) -> None: ...

    @abstractmethod
    def crash(self) -> None:
        """The scheduler dies without warning; running jobs do not."""

    @abstractmethod
    def make_unreachable(self) -> None:
        """No scheduler, and none can be started."""

    @abstractmethod
    def calls(self) -> contextlib.AbstractContextManager[list[str]]:
        """The requests that the adapter makes of the scheduler meanwhile."""

    @abstractmethod
    def kill_without_warning(self, token: str) -> None: ...

    @abstractmethod
    def send_away(self, token: str) -> None:
        """The scheduler takes a running job's slot for somebody else, in its own mildest way."""

    def lose_node(self, token: str) -> object:
        """The node of a running job is gone, with all that is on it."""
        return self.kill_without_warning(token)

    def crash_now(self) -> None:
        """As `crash`, at the worst moment: what the scheduler has not written down is lost."""
        self.crash()

    @abstractmethod
    def watch(self, experiment: Path, clusters: Path) -> None:
        """From now on `scheduler` sees the jobs of this experiment; `clusters` are its local clusters."""

    def submission_of(self, job: str) -> str:
        """What jobs that were submitted together have in common in their ids."""
        return re.split(r"[._]", job)[0]

    def newest_step(self, experiment: Path) -> int:
        """The last step that a training of the experiment has told, -1 if none has."""
        logs = [path.read_text(errors="replace") for path in sorted(self.logs(experiment))]
        steps = [int(step) for log in logs[-1:] for step in re.findall(r"(?m)^step (\d+)$", log)]
        return steps[-1] if steps else -1

    def logs(self, experiment: Path) -> Sequence[Path]:
        return list(experiment.glob("logs/*/*.log"))

    def close(self) -> None:
        """Nothing stays behind."""
        for fifo in self._fifos:
            fifo.close()

    def request(self, code: str = "", **changes: Any) -> JobRequest:
        """A job that runs these lines of Python."""
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
        self._fifos.append(Fifo(self.directory / name, self.patience))
        return self._fifos[-1]

    def poll_until(self, condition: Callable[[Views], bool], scheduler: Scheduler | None = None) -> Views:
        scheduler = scheduler or self.scheduler
        until = time.monotonic() + self.patience
        while True:
            views = scheduler.poll()
            if condition(views):
                return views
            assert time.monotonic() < until, "it did not come to that: %r" % (views,)
            scheduler.wait(1.0)

    def await_end(self, *tokens: str) -> Views:
        return self.poll_until(lambda views: all(_is(views, token, JobPhase.ENDED) for token in tokens))

    def await_start(self, *tokens: str) -> Views:
        return self.poll_until(lambda views: all(_is(views, token, JobPhase.RUNNING) for token in tokens))


def _is(views: Views, token: str, phase: JobPhase) -> bool:
    return token in views and views[token].phase is phase


class Fifo:
    """An event between a job and its test, in either direction."""

    def __init__(self, path: Path, patience: float) -> None:
        os.mkfifo(path)
        self.path = path
        self._patience = patience
        self._read = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._write = -1

    #: Lines for a job.
    def tell(self, text: str = "'!'") -> str:
        return "open(%r, 'w').write(str(%s))\n" % (str(self.path), text)

    @property
    def hold(self) -> str:
        return "import os; os.read(os.open(%r, os.O_RDONLY), 1)\n" % str(self.path)

    def read(self) -> str:
        """What a job told; waits for it."""
        ready, _, _ = select.select([self._read], [], [], self._patience)
        assert ready, "the job did not tell"
        return os.read(self._read, 65536).decode()

    def release(self) -> None:
        """Let all jobs go on that are held, or will be."""
        self._write = os.open(self.path, os.O_WRONLY)
        os.write(self._write, b"!" * 1000)

    def close(self) -> None:
        os.close(self._read)
        if self._write >= 0:
            os.close(self._write)


@contextlib.contextmanager
def counted_programs() -> Iterator[list[str]]:
    """The scheduler's own programs that are called meanwhile."""
    made: list[str] = []
    call = command_runner.call

    def counted(arguments: Any, *rest: Any, **more: Any) -> command_runner.CommandOutput:
        made.append(arguments[0])
        return call(arguments, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_runner, "call", counted)
        yield made


def await_death(pid: int, ticks: int) -> None:
    if not is_alive(pid, ticks):
        return
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            ready, _, _ = select.select([descriptor], [], [], PATIENCE)
        finally:
            os.close(descriptor)
        assert ready or not is_alive(pid, ticks), "process %d lives on" % pid


class LocalRehearsal(Rehearsal):
    name = "local"
    profile_keys = {"scheduler": "local", "hosts": {"alpha": 2, "beta": 2}}  # noqa: RUF012 - read only
    impossible = {"cpus": 64}  # noqa: RUF012 - read only
    impossible_because = "no host of cluster here has 64 cpus"
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
    def calls(self) -> Iterator[list[str]]:
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

    def send_away(self, token: str) -> None:
        self.scheduler.evict(token)

    def watch(self, experiment: Path, clusters: Path) -> None:
        hosts = {name: Host(cpus=2) for name in self.hosts}
        group = Experiment(experiment).identity
        self.scheduler = LocalScheduler(group, name="here", root=clusters, hosts=hosts)

    def submission_of(self, job: str) -> str:
        """Jobs of the local cluster are numbered one by one, however they are sent."""
        return ""

    def close(self) -> None:
        if self._frozen:
            self.thaw()
        self.another_adapter(timeout=PATIENCE).stop(force=True)
        super().close()


def process_ids(text: str) -> Sequence[tuple[int, int]]:
    """Identities of the processes that a job told of."""
    return [(int(word), start_ticks(int(word)) or 0) for word in text.split()]


def kill(processes: Sequence[tuple[int, int]]) -> None:
    for pid, ticks in processes:
        if is_alive(pid, ticks):
            os.kill(pid, signal.SIGKILL)

"""A hundred chains of six random kills: of the controller, and sometimes of the daemon or of a job.

Importing takes longer than the tested code, so controllers are forks of a process that has imported
everything already. Each worker below is such a process, with a local cluster of its own; chains of one
worker follow one another.

A chain that fails prints its seed: `OUTLAST_CHAIN_SEED=17 pytest tests/crash/test_kill_chains.py` runs it
alone.
"""

from __future__ import annotations

import functools
import os
import random
import select
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from outlast import spec
from outlast.controller import crashpoints, submission, supervisor
from outlast.controller.crashpoints import CRASH_POINTS
from outlast.controller.inbox import Cancel, Inbox
from outlast.domain.model import Spec
from outlast.domain.observation import JobPhase, Patience
from outlast.exchange import zipapp
from outlast.exchange.experiment import Experiment
from outlast.schedulers.local import Host, LocalScheduler
from support.experiments import PATIENCE, TRAINING, Lab, assert_whole, kill_at_once

CHAINS = 100
KILLS = 6
WORKERS = 6
#: Seconds. Most kills come soon after the start of a controller, when it has most to do.
LONGEST_DELAY = 0.3
#: Seconds after which a controller that has not reached its crash point is killed anyway.
LONGEST_WAY = 0.6

KINDS = ("plain", "fluke", "slow", "bug", "held")
ENDS = {"bug": "failed", "held": "cancelled"}
SLOW = TRAINING.replace("    fluke)", '    slow) sleep 0.1; [ "$count" -ge 4 ] || exit 85 ;;\n    fluke)')


def test_a_hundred_chains_of_six_kills_lose_nothing_and_accept_nothing_twice(
    lab: Lab, record_property: Callable[[str, object], None]
) -> None:
    chosen = os.environ.get("OUTLAST_CHAIN_SEED")
    first = random.SystemRandom().randrange(10**6)
    seeds = [int(chosen)] if chosen else [first + index for index in range(CHAINS)]
    record_property("seeds", "chains %d to %d" % (seeds[0], seeds[-1]))
    print("seeds %d to %d" % (seeds[0], seeds[-1]))
    _warm_up(lab)
    workers = [
        _fork(functools.partial(_work, lab, number, seeds[number::WORKERS]), lab.root / ("w%d.log" % number))
        for number in range(min(WORKERS, len(seeds)))
    ]
    try:
        codes = [_wait(pid, PATIENCE * 4) for pid in workers]
    finally:
        for pid in workers:
            _end(pid)
    output = "".join((lab.root / ("w%d.log" % number)).read_text() for number in range(len(workers)))
    assert codes == [0] * len(workers), output
    assert output.count("whole") == len(seeds), output
    events = Counter(line.partition(" at ")[0] for line in output.splitlines() if not line.startswith("seed"))
    print(", ".join("%d times %s" % (times, event) for event, times in events.most_common()))


def _warm_up(lab: Lab) -> None:
    """Import and compute what every worker and every controller would otherwise do at its first use."""
    spec.read(lab.experiment("warm", command="sh train.sh plain"))
    zipapp.digest()


# Worker: one chain after the other.


def _work(lab: Lab, number: int, seeds: list[int]) -> None:
    os.environ.update(lab.environment)
    cluster = LocalScheduler("nobody", name="w%d" % number, root=lab.clusters)
    try:
        for seed in seeds:
            _Chain(lab, cluster.name, seed).go()
    finally:
        cluster.daemon_pid()
        cluster.stop(force=True)


class _Chain:
    """One experiment whose controllers are killed six times."""

    def __init__(self, lab: Lab, cluster: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.cluster = cluster
        self.clusters = lab.clusters
        self.seed = seed
        kinds = self.random.sample(KINDS, self.random.randint(2, 3))
        self.directory = lab.experiment(
            "s%d" % seed,
            {"train.sh": SLOW},
            command="sh train.sh {kind}",
            sweep={"kind": kinds},
            outputs=["first.txt", "second.txt"],
            checkpoints={"grace": "1s"},
        )
        self.runs = {kind: "s%d-kind=%s" % (seed, kind) for kind in kinds}
        self.experiment = Experiment(self.directory)

    def go(self) -> None:
        print("seed %d: %s" % (self.seed, ", ".join(self.runs)), flush=True)
        submission.submit(self.experiment, spec.read(self.directory), None)
        if "held" in self.runs:
            cancel_before = self.random.randrange(KILLS)
        for kill in range(KILLS):
            if "held" in self.runs and kill == cancel_before:
                Inbox(self.experiment.inbox).put(Cancel((self.runs["held"],), "enough"))
            self._one_kill()
            self._kill_daemon_or_job()
        pid = self._controller()
        code = _wait(pid, PATIENCE)
        _end(pid)
        assert code == 0, "the last controller ended with %s:\n%s" % (code, self._log())
        expected = {name: ENDS.get(kind, "finished") for kind, name in self.runs.items()}
        assert_whole(self.directory, self._scheduler(), expected)
        print("whole", flush=True)

    def _one_kill(self) -> None:
        """Start a controller and kill it at a random moment, or have it die at a random point."""
        point = self.random.choice(CRASH_POINTS) if self.random.random() < 0.3 else ""
        pid = self._controller(point)
        delay = self.random.random() ** 2 * LONGEST_DELAY
        code = _wait(pid, LONGEST_WAY if point else delay)
        _end(pid)
        if code is None:
            print("controller killed", flush=True)
        elif code == -signal.SIGKILL:
            assert point, "killed by another process"
            print("controller crashed at %s" % point, flush=True)
        else:
            # All runs ended before the kill.
            assert code == 0, "a controller ended with %s:\n%s" % (code, self._log())
            print("controller done", flush=True)

    def _kill_daemon_or_job(self) -> None:
        """Kill the daemon or a running job, with some probability."""
        chance = self.random.random()
        if chance < 0.1:
            kill_at_once(self._scheduler().daemon_pid())
            print("daemon killed", flush=True)
        elif chance < 0.3:
            scheduler = self._scheduler()
            running = [v.token for v in scheduler.poll().values() if v.phase is JobPhase.RUNNING]
            if running:
                scheduler.kill(self.random.choice(running))
                print("job killed", flush=True)

    def _controller(self, point: str = "") -> int:
        return _fork(functools.partial(self._supervise, point), self._log_path())

    def _supervise(self, point: str) -> None:
        crashpoints._AT = point
        vars(supervisor)["connect"] = self._connect
        with supervisor.control(self.experiment, "up") as held:
            while True:
                held.step()
                if held.done:
                    return
                held.wait()

    def _connect(self, spec: Spec, group: str, place: Path) -> LocalScheduler:
        del spec, place
        return _impatient(group, self.cluster, self.clusters)

    def _scheduler(self) -> LocalScheduler:
        return _impatient(self.experiment.identity, self.cluster, self.clusters)

    def _log_path(self) -> Path:
        return self.directory / "controller.log"

    def _log(self) -> str:
        return self._log_path().read_text(errors="replace")


def _impatient(group: str, cluster: str, root: Path) -> LocalScheduler:
    """Return the local cluster with short timeouts: the daemon responds within milliseconds."""
    patience = Patience(missing=0.2, heartbeat=0.3, pause=0.05, longest_pause=0.2)
    hosts = {"alpha": Host(4), "beta": Host(4)}
    scheduler = LocalScheduler(group, name=cluster, root=root, patience=patience, hosts=hosts)
    scheduler.interval = 0.1
    return scheduler


# Processes.


def _fork(work: functools.partial[None], log: Path) -> int:
    """Start a child that does `work` and exits with 0, and return its pid.

    Its output, and a traceback if it fails, go to `log`.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _run_child(work, log)
    return pid


def _run_child(work: functools.partial[None], log: Path) -> NoReturn:
    code = 1
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        sys.stdout = sys.stderr = os.fdopen(descriptor, "w", buffering=1)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _wait(pid: int, seconds: float) -> int | None:
    """Return the exit code, negative for a signal; None if it still runs after `seconds`."""
    descriptor = os.pidfd_open(pid)
    try:
        select.select([descriptor], [], [], seconds)
    finally:
        os.close(descriptor)
    info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if info is None:
        return None
    return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status


def _end(pid: int) -> None:
    """Kill a child, which may have ended, and reap it."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)

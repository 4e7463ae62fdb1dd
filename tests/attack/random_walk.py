"""A random walk over an experiment on a real cluster: acts that kill, freeze, remove and lie, one by one.

Whatever the acts are, each run must end with the right result, once, and every second must be booked. A run
that fails on the way (its working directory was removed under it, twice) is retried as a user would.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from attack.summary import Figures, describe
from contract.experiment_runs import ClusterExperiment
from outlast.domain.ledger import book
from outlast.domain.model import EntryKind
from outlast.exchange.experiment import Experiment
from outlast.schedulers.base import JobPhase, SchedulerUnavailable
from support.experiments import open_journal

RUNS = 4
#: Steps of a training for each second of the walk: it lasts about as long.
PACE = 3
#: What a lying node writes in place of its files; none of it claims a success.
LIES = (
    b"",
    b"\0" * 4096,
    b"[" * 60_000,
    b'{"event":"phase","phase":"compute","mono":' + b"9" * 400 + b"}\n",
    b'{"event":"end","outcome":"evicted","mono":1e308,"detail":"\x1b[2J\xe2\x80\xae","tail":7,"delivered":[]}\n',
    b'{"token":{},"job":[],"host":"a\\"b","pid":-1,"at":"x","fenced":"no"}\n',
    b'{"event":"data","mono":1,"sources":{"":""},"troubles":{"timeout":{"seconds":"long"}}}\n' * 2000,
)
_LOGS = ("claim.json", "events.jsonl", "progress.jsonl", "progress.json", "fetching.json")


@dataclass
class Account:
    """What a walk did and what came of it."""

    cluster: str
    seed: int
    acts: Counter[str] = field(default_factory=Counter)
    #: Seconds of attacks, and until all runs had ended.
    attacked: float = 0.0
    lasted: float = 0.0
    runs: int = 0
    retried: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    open_ledgers: list[str] = field(default_factory=list)
    #: Why the walk could not be judged; empty if it could.
    failure: str = ""

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.doubled or self.open_ledgers or self.failure)

    def figures(self) -> Figures:
        """Return the account as plain values, which pass from a worker of xdist to the summary."""
        return {
            **{"cluster": self.cluster, "seed": self.seed, "kinds": dict(self.acts)},
            **{"attacked": round(self.attacked), "lasted": round(self.lasted)},
            **{"acts": sum(self.acts.values()), "runs": self.runs, "retried": self.retried},
            **{"lost": len(self.lost), "doubled": len(self.doubled)},
            **{"ledgers open": len(self.open_ledgers), "failure": self.failure},
        }

    def __str__(self) -> str:
        return describe(self.figures())


class RandomWalk:
    """Attacks one experiment for some seconds, then lets it finish."""

    def __init__(self, experiment: ClusterExperiment, seed: int) -> None:
        self.experiment = experiment
        self.account = Account(experiment.cluster.name, seed)
        self.history: list[str] = []
        self._random = random.Random(seed)
        self._controller: subprocess.Popen[str] | None = None
        self._steps = 0
        self.sentinels = experiment.lab.root / "home"

    def run(self, seconds: float) -> Account:
        """Attack for `seconds`, finish the experiment, and return the account."""
        self._steps = int(PACE * seconds)
        self._prepare()
        acts: list[Callable[[], bool]] = [
            *(
                self._kill_job,
                self._kill_job,
                self._preempt_job,
                self._kill_controller,
                self._kill_controller,
            ),
            *(
                self._freeze_controller,
                self._freeze_scheduler,
                self._remove,
                self._remove,
                self._lie,
                self._lie,
            ),
        ]
        begun = time.monotonic()
        try:
            while time.monotonic() < begun + seconds and not self._is_over():
                self._start_controller()
                self._act(self._random.choice(acts), begun)
                time.sleep(self._random.uniform(0.05, 1.0))
            self.account.attacked = time.monotonic() - begun
            self._finish()
            self._check()
        except BaseException as error:
            self.account.failure = "%s: %s" % (type(error).__name__, str(error).partition("\n")[0][:200])
            raise
        finally:
            self.account.lasted = time.monotonic() - begun
        return self.account

    def _act(self, act: Callable[[], bool], begun: float) -> None:
        name = act.__name__.lstrip("_").replace("_", " ")
        self.history.append("%6.1f s  %s" % (time.monotonic() - begun, name))
        with contextlib.suppress(SchedulerUnavailable):  # it is frozen, or has not come back yet
            if act():
                self.account.acts[name] += 1

    # The stage.

    def _prepare(self) -> None:
        write = self.experiment.write
        write("python", "train.py", str(self._steps), "0.1", "5", runs=RUNS, limits={"total": "2h"})
        (self.sentinels / "deep").mkdir(parents=True)
        for name in ("diary", "deep/key"):
            (self.sentinels / name).write_text(name)
        (self.sentinels / "link").symlink_to("diary")

    def _start_controller(self) -> None:
        if self._controller is None or self._controller.poll() is not None:
            begun = (self.experiment.directory / "journal.sqlite").exists()
            self._controller = self.experiment.lab.start("up" if begun else "run", self.experiment.directory)
            if not begun:
                self.experiment.wait_for("the journal", lambda: bool(self.experiment.attempts()))

    def _is_over(self) -> bool:
        return bool(self.experiment.attempts()) and self.experiment.states == {"finished"}

    # The acts. Each returns False if there was nothing to act on.

    def _tokens(self) -> list[str]:
        views = self.experiment.cluster.scheduler.poll().values()
        return sorted(view.token for view in views if view.phase is JobPhase.RUNNING)

    def _kill_job(self) -> bool:
        return self._with_job(self.experiment.cluster.kill_without_warning)

    def _preempt_job(self) -> bool:
        return self._with_job(self.experiment.cluster.preempt)

    def _with_job(self, act: Callable[[str], object]) -> bool:
        tokens = self._tokens()
        if not tokens:
            return False
        # It has ended meanwhile, or has not quite started: Grid Engine has no files of it yet.
        gone = (AssertionError, LookupError, subprocess.CalledProcessError, FileNotFoundError)
        with contextlib.suppress(*gone, ProcessLookupError):
            act(self._random.choice(tokens))
        return True

    def _kill_controller(self) -> bool:
        assert self._controller is not None
        self._controller.kill()
        self._controller.communicate()
        return True

    def _freeze_controller(self) -> bool:
        assert self._controller is not None
        if self._controller.poll() is not None:
            return False
        self._controller.send_signal(signal.SIGSTOP)
        time.sleep(self._random.uniform(0.1, 2.0))
        self._controller.send_signal(signal.SIGCONT)
        return True

    def _freeze_scheduler(self) -> bool:
        self.experiment.cluster.freeze()
        time.sleep(self._random.uniform(0.1, 2.0))
        self.experiment.cluster.thaw()
        return True

    def _remove(self) -> bool:
        """Remove a directory or file of one run: a scratch purge, a careless colleague."""
        path = self._choose_path()
        if path is None:
            return False
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()
        return True

    def _lie(self) -> bool:
        """Replace a log of one attempt by garbage, a pipe, a directory or a link to the user's files."""
        exchange = self._choose_exchange()
        if exchange is None:
            return False
        path = exchange / self._random.choice(_LOGS)
        with contextlib.suppress(OSError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            kind = self._random.randrange(len(LIES) + 3)
            if kind < len(LIES):
                path.write_bytes(LIES[kind])
            elif kind == len(LIES):
                os.mkfifo(path)
            elif kind == len(LIES) + 1:
                path.mkdir()
            else:
                path.symlink_to(self.sentinels / "diary")
        return True

    def _choose_exchange(self) -> Path | None:
        place = Experiment(self.experiment.directory)
        found = [place.exchange_of(attempt) for attempt in self.experiment.attempts()[-2 * RUNS :]]
        there = [path for path in found if path.is_dir()]
        return self._random.choice(there) if there else None

    def _choose_path(self) -> Path | None:
        place = Experiment(self.experiment.directory)
        exchange = self._choose_exchange()
        attempts = self.experiment.attempts()
        if exchange is None or not attempts:
            return None
        attempt = self._random.choice(attempts)
        checkpoints = place.checkpoints(attempt.run)
        paths = [
            exchange,
            exchange / self._random.choice(_LOGS),
            place.scratch(attempt.run, attempt.number, attempt.token),
            place.workdir,
            checkpoints,
            place.log(attempt.run, attempt.number),
            place.log(attempt.run, attempt.number).parent,
            place.inbox,
        ]
        with contextlib.suppress(OSError):
            paths += list(checkpoints.iterdir())
        return self._random.choice(paths)

    # The end.

    def _finish(self) -> None:
        """Let the experiment finish; retry runs that failed, as a user would who reads why."""
        lab, directory = self.experiment.lab, self.experiment.directory
        if self._controller is not None and self._controller.poll() is None:
            self._kill_controller()
        for _ in range(10):
            try:
                done = lab.finish(lab.start("up", directory), 240 + 2 * self.experiment.cluster.patience)
            except AssertionError as hanging:
                jobs = sorted(map(str, self.experiment.cluster.scheduler.poll().values()))
                status = lab.outlast("status", directory).output
                raise AssertionError("\n".join((str(hanging), status, *jobs))) from hanging
            if done.returncode == 0:
                return
            assert "Traceback" not in done.output, done.output
            with open_journal(directory) as journal:
                failed = [run for run in journal.runs() if run.state.value == "failed"]
            assert failed, done.output
            assert all(run.reason for run in failed)
            self.account.retried += len(failed)
            again = lab.outlast("retry", *(run.name for run in failed), "-C", directory)
            assert again.returncode == 0, again.output
        raise AssertionError("runs fail again and again")

    def _check(self) -> None:
        experiment, account = self.experiment, self.account
        expected = experiment.reference_weights(str(self._steps))
        with open_journal(experiment.directory) as journal:
            journal.check()
            runs = list(journal.runs())
            attempts = list(journal.attempts())
            entries = [row.entry for row in journal.entries()]
        account.runs = len(runs)
        accepted = Counter(entry.run for entry in entries if entry.kind is EntryKind.ACCEPTED)
        for run in runs:
            if run.state.value != "finished" or experiment.weights(run.name) != expected:
                account.lost.append(run.name)
            if accepted[run.name] != 1 or list(experiment.directory.glob("results/%s.before-*" % run.name)):
                account.doubled.append(run.name)
            own = sorted((one for one in attempts if one.run == run.name), key=lambda one: one.number)
            bookings = book(run, own)
            if len(bookings) != len(own) or any(
                abs(sum(booking.uses.values()) - booking.slot) > 1.0 for booking in bookings
            ):
                account.open_ledgers.append(run.name)
        kept = {str(path.relative_to(self.sentinels)) for path in self.sentinels.rglob("*")}
        assert kept == {"diary", "deep", "deep/key", "link"}
        for name in ("diary", "deep/key"):
            assert (self.sentinels / name).read_text() == name
        experiment.assert_nothing_is_left()

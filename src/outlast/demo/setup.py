"""The demo's directory: everything that the demo creates or starts is inside and is removed with it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from outlast.errors import BadInput, NotWritable
from outlast.exchange.experiment import Experiment
from outlast.schedulers.local import DaemonOptions, Host, LocalScheduler

#: Two names for this machine, so that attempts move between hosts.
HOSTS = ("alpha", "beta")
#: Seconds without jobs after which the daemon exits, if the demo itself was killed.
IDLE = 5.0
#: The shortest time limit of an attempt, in seconds: enough to start, save and make progress.
SHORTEST_LIMIT = 2
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class DemoSetup:
    """The directory of the demo and what is in it."""

    root: Path
    #: CPUs of each host.
    cpus: int = 1

    @property
    def undisturbed(self) -> Path:
        return self.root / "undisturbed"

    @property
    def experiment(self) -> Experiment:
        return Experiment(self.root / "digits")

    @property
    def scheduler(self) -> LocalScheduler:
        """The adapter of the demo's cluster, to start the daemon, kill jobs and stop it."""
        hosts = {name: Host(cpus=self.cpus) for name in HOSTS}
        return LocalScheduler(
            "demo", root=self.root / "cluster", hosts=hosts, options=DaemonOptions(idle=IDLE)
        )


@contextmanager
def set_up(keep: Path | None, cpus: int = 1) -> Iterator[DemoSetup]:
    """Set up the demo; tear it down at the end.

    Inside, `cluster: local` is the demo's own cluster, and SIGTERM and SIGHUP raise KeyboardInterrupt.
    """
    with _directory(keep) as root, _signals_as_interrupts(), _environment(root):
        place = DemoSetup(root, cpus)
        try:
            place.scheduler.daemon_pid()
            yield place
        finally:
            # A second Ctrl-C would leave jobs behind; stopping takes a few seconds at most.
            handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
            try:
                place.scheduler.stop(force=True)
                shutil.rmtree(root / "cluster", ignore_errors=True)
            finally:
                signal.signal(signal.SIGINT, handler)


def make_experiment(directory: Path, epochs: int | None) -> None:
    """Copy the example `digits`, with its number of epochs replaced by `epochs` if given."""
    from outlast.templates import copy_template, templates

    copy_template(templates()["digits"], directory)
    if epochs is not None:
        _edit(directory, r"--epochs \d+", "--epochs %d" % epochs)


def limit_attempts(experiment: Experiment, undisturbed: float) -> int:
    """Set the time limit of an attempt to a third of the undisturbed seconds; return it in seconds."""
    limit = max(SHORTEST_LIMIT, round(undisturbed / 3))
    _edit(experiment.root, r"time: \d+s", "time: %ds" % limit)
    hosts = ", ".join("%s: 1" % name for name in HOSTS)
    (experiment.root / "clusters.yaml").write_text("local:\n  hosts: {%s}\n" % hosts, encoding="utf-8")
    return limit


def _edit(directory: Path, pattern: str, replacement: str) -> None:
    path = directory / "params.yaml"
    text, count = re.subn(pattern, replacement, path.read_text(encoding="utf-8"), count=1)
    if not count:
        raise BadInput("%s: nothing to replace by `%s`; reinstall outlast" % (path, replacement))
    path.write_text(text, encoding="utf-8")


@contextmanager
def _directory(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="outlast-demo-", ignore_cleanup_errors=True) as name:
            yield Path(name)
        return
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise BadInput("%s exists and is not an empty directory; name another one" % keep)
    try:
        keep.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotWritable("%s: %s; name a directory of your own" % (keep, error.strerror)) from error
    yield keep.absolute()


@contextmanager
def _environment(root: Path) -> Iterator[None]:
    """Make jobs use this Python, which has NumPy, with one thread: more threads would change the bits."""
    before = dict(os.environ)
    os.environ["OUTLAST_LOCAL_ROOT"] = str(root / "cluster")
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), before.get("PATH", os.defpath)])
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, _interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt

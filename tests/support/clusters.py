"""The real clusters that tests run on, started once and shared by all test processes.

`tests/clusters/NAME up` installs what is missing (Debian, root), starts the daemons and prints the path of a
file to source. A cluster that was up before the tests is left up; one that they started is stopped with them.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, NoReturn

import pytest

SCRIPTS = Path(__file__).parents[1] / "clusters"
HOME = Path(os.environ.get("CLUSTERS", "/var/tmp/outlast-clusters"))
NAMES = ("slurm", "sge", "htcondor")
#: Seconds that installing and starting a cluster may take, or another test's use of it.
PATIENCE = 900.0
#: Held open, and locked, as long as this process may use the cluster.
_in_use: dict[str, IO[str]] = {}


@functools.cache
def environment(name: str) -> Mapping[str, str]:
    """The variables that put every client onto the cluster, which is started if it was not there.

    Skips the test where that cannot be done; in CI it fails instead.
    """
    with exclusive(name):
        _use(name)
        was_up = _call(name, "status").returncode == 0
        file = control(name, "up").splitlines()[-1]
        if not was_up:
            _mark(name).touch()
    script = ". '%s'; env -0" % file
    told = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    pairs = (entry.partition("=") for entry in told.stdout.split("\0") if entry)
    return {key: value for key, _, value in pairs if os.environ.get(key) != value and key != "_"}


def control(name: str, *words: str) -> str:
    """What the cluster's own script says to this."""
    done = _call(name, *words)
    if done.returncode != 0:
        complaint = done.stderr.strip()[-500:] or "exit code %d" % done.returncode
        not_here("%s %s: %s" % (name, words[0], complaint))
    return done.stdout.strip()


def not_here(why: str) -> NoReturn:
    """What a test needs cannot be had: it is left out, and said; in CI nothing may be left out."""
    if os.environ.get("CI"):
        pytest.fail(why)
    # Also for a whole module, where it is imported.
    pytest.skip(why, allow_module_level=True)


@contextlib.contextmanager
def exclusive(name: str) -> Iterator[None]:
    """One test at a time: what freezes a cluster would spoil another's."""
    HOME.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + PATIENCE
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(_locked(_turn(name)))
                break
            except BlockingIOError:
                assert time.monotonic() < until, "another test holds %s" % name
                time.sleep(0.1)
        yield


def stop_those_for_tests() -> None:
    """Those that another run of the tests is at work on are left to it."""
    for name in NAMES:
        if name in _in_use:
            _in_use.pop(name).close()
        if not _mark(name).exists():
            continue
        # In the order in which `environment` takes them.
        with contextlib.suppress(BlockingIOError), _locked(_turn(name)), _locked(_users(name)):
            _call(name, "down")
            _mark(name).unlink()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Raises BlockingIOError where it is locked already."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _use(name: str) -> None:
    _in_use[name] = _users(name).open("w")
    fcntl.flock(_in_use[name], fcntl.LOCK_SH)


def _turn(name: str) -> Path:
    return HOME / (name + ".lock")


def _users(name: str) -> Path:
    return HOME / (name + ".users")


def _mark(name: str) -> Path:
    return HOME / (name + ".for-tests")


def _call(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPTS / name), *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

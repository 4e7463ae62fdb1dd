"""Start, lock and stop the real clusters that tests run on; all test processes share them.

`tests/clusters/NAME up` installs what is missing (Debian, root), starts the daemons and prints the path of a
file to source. A cluster that was up before the tests stays up; one that they started is stopped with them.
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
NAMES = ("slurm", "sge", "htcondor", "rabbitmq")
#: Seconds to wait until a cluster is installed and started, or until another test releases it.
PATIENCE = 900.0
#: Lock files, held as long as this process may use the cluster.
_in_use: dict[str, IO[str]] = {}


@functools.cache
def environment(name: str) -> Mapping[str, str]:
    """Return the variables by which clients find the cluster, which is started if it is not up.

    Skips the test if it cannot be started; in CI the test fails instead.
    """
    with exclusive(name):
        _lock_shared(name)
        was_up = _run_script(name, "status").returncode == 0
        file = control(name, "up").splitlines()[-1]
        if not was_up:
            _marker(name).touch()
    script = ". '%s'; env -0" % file
    printed = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    pairs = (entry.partition("=") for entry in printed.stdout.split("\0") if entry)
    return {key: value for key, _, value in pairs if os.environ.get(key) != value and key != "_"}


def control(name: str, *arguments: str) -> str:
    """Run the cluster's own script and return its output; skip the test if it fails."""
    done = _run_script(name, *arguments)
    if done.returncode != 0:
        message = done.stderr.strip()[-500:] or "exit code %d" % done.returncode
        not_here("%s %s: %s" % (name, arguments[0], message))
    return done.stdout.strip()


def not_here(why: str) -> NoReturn:
    """Skip a test whose requirements are missing; in CI the test fails instead."""
    if os.environ.get("CI"):
        pytest.fail(why)
    # Also for a whole module, at its import.
    pytest.skip(why, allow_module_level=True)


@contextlib.contextmanager
def exclusive(name: str) -> Iterator[None]:
    """Lock the cluster for one test: freezing it would break another test."""
    HOME.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + PATIENCE
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(_locked(_lock_file(name)))
                break
            except BlockingIOError:
                assert time.monotonic() < until, "another test has locked %s" % name
                time.sleep(0.1)
        yield


def stop_those_for_tests() -> None:
    """Stop the clusters that tests started, except those that another run of the tests uses."""
    for name in NAMES:
        if name in _in_use:
            _in_use.pop(name).close()
        if not _marker(name).exists():
            continue
        # Locked in the same order as in `environment`.
        # A cluster that is locked, or that belongs to another user, is not ours to stop.
        not_ours = contextlib.suppress(BlockingIOError, PermissionError)
        with not_ours, _locked(_lock_file(name)), _locked(_users_file(name)):
            _run_script(name, "down")
            _marker(name).unlink()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the file. Raises BlockingIOError if it is locked."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _lock_shared(name: str) -> None:
    _in_use[name] = _users_file(name).open("w")
    fcntl.flock(_in_use[name], fcntl.LOCK_SH)


def _lock_file(name: str) -> Path:
    return HOME / (name + ".lock")


def _users_file(name: str) -> Path:
    return HOME / (name + ".users")


def _marker(name: str) -> Path:
    return HOME / (name + ".for-tests")


def _run_script(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPTS / name), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

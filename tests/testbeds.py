"""The real clusters that tests run on, started once and shared by all test processes.

`tests/clusters/NAME up` installs what is missing (Debian, root), starts the daemons and prints the path of a
file to source. A cluster that was up before the tests is left up; one that they started is stopped with them.
"""

from __future__ import annotations

import fcntl
import functools
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "clusters"
HOME = Path(os.environ.get("CLUSTERS", "/var/tmp/outlast-clusters"))
NAMES = ("slurm", "sge", "htcondor")
#: Seconds that installing and starting a cluster may take.
PATIENCE = 600


@functools.cache
def environment(name: str) -> Mapping[str, str]:
    """The variables that put every client onto the cluster. Skips the test where it cannot be had; in CI, fails."""
    HOME.mkdir(parents=True, exist_ok=True)
    mark = HOME / (name + ".for-tests")
    with (HOME / (name + ".lock")).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        was_up = _call(name, "status").returncode == 0
        started = _call(name, "up")
        if started.returncode != 0:
            why = "%s cannot be started here: %s" % (name, started.stderr.strip()[-500:])
            if os.environ.get("CI"):
                pytest.fail(why)
            pytest.skip(why)
        if not was_up:
            mark.touch()
    script = ". '%s'; env -0" % started.stdout.split()[-1]
    told = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    pairs = (entry.partition("=") for entry in told.stdout.split("\0") if entry)
    return {key: value for key, _, value in pairs if os.environ.get(key) != value}


def stop_those_for_tests() -> None:
    for name in NAMES:
        mark = HOME / (name + ".for-tests")
        if mark.exists():
            _call(name, "down")
            mark.unlink()


def _call(name: str, verb: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPTS / name), verb],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

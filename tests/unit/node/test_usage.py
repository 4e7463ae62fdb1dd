"""What a training uses is measured while it runs and after it was killed; nvidia-smi is never waited for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.node.diagnosis.usage import UsageMeter

BURN = """
import os, sys, time
held = bytearray(int(sys.argv[2]))
until = time.process_time() + float(sys.argv[1])
while time.process_time() < until: pass
print("done", flush=True)
sys.stdin.read()
"""
MEGABYTE = 10**6
#: Seconds after which something counts as not happening.
PATIENCE = 60.0


@pytest.fixture
def burners() -> Iterator[Any]:
    started: list[subprocess.Popen[bytes]] = []

    def burn(seconds: float, size: int = 0, program: str = BURN) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", program, str(seconds), str(size)]
        one = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(one)
        assert one.stdout is not None and one.stdout.readline() == b"done\n"
        return one

    yield burn
    for one in started:
        one.kill()
        one.communicate()


def test_cpu_time_and_memory_of_a_running_process_are_measured(burners: Any) -> None:
    meter = UsageMeter(0, os.environ)
    burners(0.3, 80 * MEGABYTE)
    used = meter.measure()
    assert used["cpu"] >= 0.25 and used["memory"] >= 80 * MEGABYTE and "gpu" not in used


def test_what_a_process_used_counts_after_it_was_killed(burners: Any) -> None:
    meter = UsageMeter(0, os.environ)
    one = burners(0.3)
    one.send_signal(signal.SIGKILL)
    one.wait()
    assert meter.measure()["cpu"] >= 0.25
    assert UsageMeter(0, os.environ).measure()["cpu"] < 0.25, "earlier children do not count"


def test_descendants_count_as_well(burners: Any) -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', %r, *sys.argv[1:]])" % BURN
    meter = UsageMeter(0, os.environ)
    burners(0.3, 80 * MEGABYTE, program)
    used = meter.measure()
    assert used["cpu"] >= 0.25 and used["memory"] >= 80 * MEGABYTE


def test_memory_that_was_freed_counts(burners: Any) -> None:
    meter = UsageMeter(0, os.environ)
    one = burners(0.0, 80 * MEGABYTE)
    before = meter.measure()["memory"]
    one.kill()
    one.wait()
    assert meter.measure()["memory"] >= before


def fake_program(directory: Path, text: str) -> dict[str, str]:
    """Return an environment in which `nvidia-smi` is this shell script."""
    program = directory / "nvidia-smi"
    program.write_text("#!/bin/sh\n" + text)
    program.chmod(0o755)
    return {**os.environ, "PATH": "%s:%s" % (directory, os.environ["PATH"]), "CUDA_VISIBLE_DEVICES": "0,1"}


def measure_until(meter: UsageMeter, times: int) -> dict[str, Any]:
    """Measure that often; nvidia-smi has the time that it needs in between."""
    used: dict[str, Any] = {}
    for _ in range(times):
        used = meter.measure()
        query = meter._gpus._query if meter._gpus else None
        if query is not None:
            until = time.monotonic() + PATIENCE
            while query.poll() is None and time.monotonic() < until:
                time.sleep(0.01)
    return used


def test_the_use_of_the_gpus_is_the_mean_over_devices_and_time(tmp_path: Path) -> None:
    count = tmp_path / "count"
    script = 'echo "$@" >> %s\nif [ $(wc -l < %s) = 1 ]; then echo 10; echo 30; else echo 90; echo 70; fi\n'
    meter = UsageMeter(2, fake_program(tmp_path, script % (count, count)))
    used = measure_until(meter, 9)
    assert used["gpu"] == pytest.approx((0.2 + 0.8) / 2)
    assert "-i 0,1" in count.read_text() and len(count.read_text().splitlines()) == 3
    meter.close()


@pytest.mark.parametrize("text", ["exit 9\n", "echo '[N/A]'\n", "echo No devices were found\n", ""])
def test_gpus_that_cannot_be_measured_are_left_out_and_soon_not_asked_for(tmp_path: Path, text: str) -> None:
    asked = tmp_path / "asked"
    meter = UsageMeter(1, fake_program(tmp_path, "echo x >> %s\n%s" % (asked, text)))
    assert "gpu" not in measure_until(meter, 40)
    assert len(asked.read_text().splitlines()) == 3


def test_a_hanging_nvidia_smi_is_killed_and_not_waited_for(tmp_path: Path) -> None:
    meter = UsageMeter(1, fake_program(tmp_path, "exec sleep 600\n"))
    meter.measure()
    assert meter._gpus is not None
    query = meter._gpus._query
    assert query is not None and query.poll() is None
    assert "gpu" not in meter.measure()
    assert query.wait(PATIENCE) != 0
    meter.measure(), meter.close()


def test_without_nvidia_smi_or_gpus_nothing_is_asked(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path)}
    assert "gpu" not in UsageMeter(4, environment).measure()
    meter = UsageMeter(0, fake_program(tmp_path, "echo 50\n"))
    assert "gpu" not in measure_until(meter, 6)

"""What a training uses: CPU time, memory and GPUs, measured while it runs.

Every process of the training descends from the node program, which adopts orphans. So its CPU time is that of
the children that were reaped and of the descendants that /proc lists. A job that is killed has logged what it
used until its last heartbeat.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import subprocess
from typing import Any, Iterator, Mapping, NamedTuple

#: A measurement of the GPUs is made at every n-th heartbeat: the first call of nvidia-smi may take seconds.
_GPU_EVERY = 4
#: GPUs are no longer measured after this many failures in a row.
_MOST_FAILURES = 3
_MOST_OUTPUT = 65536
_DEVICES = re.compile(r"[A-Za-z0-9,/:.-]{1,2000}")


class UsageMeter:
    """Measures the descendants of this process, from when it is made."""

    def __init__(self, gpus: int, environment: Mapping[str, str]) -> None:
        self._before = _reaped_seconds()
        self._peak = 0
        self._gpus = _GpuMeter(environment) if gpus else None

    def measure(self) -> dict[str, Any]:
        """Return the seconds of CPU time so far, the most bytes of memory, and the mean use of the GPUs.

        What cannot be measured is left out.
        """
        listed = list(_descendants(os.getpid()))
        seconds = _reaped_seconds() - self._before + sum(one.seconds for one in listed)
        # Shared pages, such as libraries and the data of forked workers, are counted once.
        resident = sum(one.private for one in listed) + max((one.shared for one in listed), default=0)
        largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        self._peak = max(self._peak, resident, largest)
        measured: dict[str, Any] = {"cpu": round(max(0.0, seconds), 2), "memory": self._peak}
        if self._gpus is not None:
            self._gpus.poll()
            if self._gpus.mean is not None:
                measured["gpu"] = round(self._gpus.mean, 4)
        return measured

    def close(self) -> None:
        """End a measurement that is still under way."""
        if self._gpus is not None:
            self._gpus.close()


class _Process(NamedTuple):
    pid: int
    parent: int
    seconds: float
    private: int
    shared: int


def _reaped_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _descendants(root: int) -> Iterator[_Process]:
    """Yield the processes below `root`; none where there is no /proc."""
    by_parent: dict[int, list[_Process]] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            found = _read_process(name) if name.isdigit() else None
            if found is not None:
                by_parent.setdefault(found.parent, []).append(found)
    left = by_parent.pop(root, [])
    while left:
        one = left.pop()
        yield one
        left += by_parent.pop(one.pid, ())


def _read_process(pid: str) -> _Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name of the program, in brackets, may contain spaces and brackets.
            fields = file.read(4096).rpartition(b")")[2].split()
        with open(f"/proc/{pid}/statm", "rb") as file:
            pages = file.read(200).split()
        ticks = sum(int(fields[index]) for index in (11, 12, 13, 14))
        resident, shared = int(pages[1]), int(pages[2])
    except (OSError, ValueError, IndexError):
        return None  # it has just ended
    size, rate = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
    return _Process(int(pid), int(fields[1]), ticks / rate, max(0, resident - shared) * size, shared * size)


class _GpuMeter:
    """Asks nvidia-smi how busy the job's GPUs are, and never waits for it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        #: The mean of all measurements, between 0 and 1; None: there is none.
        self.mean: float | None = None
        self._count = 0
        self._polls = 0
        self._failures = 0
        self._query: subprocess.Popen[bytes] | None = None
        program = shutil.which("nvidia-smi", path=environment.get("PATH"))
        devices = environment.get("CUDA_VISIBLE_DEVICES", "")
        self._command = [program or "", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        if _DEVICES.fullmatch(devices):
            self._command += ["-i", devices]
        if program is None:
            self._failures = _MOST_FAILURES

    def poll(self) -> None:
        """Take the result of the last query, and begin another one if it is due."""
        self._collect()
        due = self._polls % _GPU_EVERY == 0
        self._polls += 1
        if due and self._failures < _MOST_FAILURES:
            with contextlib.suppress(OSError):
                self._query = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )

    def close(self) -> None:
        self._collect()

    def _collect(self) -> None:
        query, self._query = self._query, None
        if query is None or query.stdout is None:
            return
        output = b""
        with query.stdout:
            os.set_blocking(query.stdout.fileno(), False)
            with contextlib.suppress(OSError):  # it has printed nothing
                output = os.read(query.stdout.fileno(), _MOST_OUTPUT)
        if query.poll() is None:
            with contextlib.suppress(OSError):
                query.kill()
        shares = [min(100, int(line)) / 100 for line in output.split() if re.fullmatch(rb"[0-9]{1,3}", line)]
        if not shares:
            self._failures += 1
            return
        self._failures = 0
        now = sum(shares) / len(shares)
        self._count += 1
        self.mean = now if self.mean is None else self.mean + (now - self.mean) / self._count

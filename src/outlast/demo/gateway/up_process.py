"""`outlast gateway up` as a process that the demo kills and starts again; its lines are handed on."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

#: Seconds for an orderly end: a pass over an experiment may be under way.
_STOPPING = 60.0


class UpProcess:
    """The gateway in a directory. `report` is called with each line that it prints, in a thread."""

    def __init__(self, directory: Path, report: Callable[[str], None]) -> None:
        self._directory = directory
        self._report = report
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    def start(self) -> None:
        """Start it."""
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-m", "outlast", "gateway", "up", str(self._directory)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # Ctrl-C is the demo's: it ends the gateway itself.
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def kill(self) -> None:
        """Kill it without warning; does nothing if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._end()

    def wait(self) -> int | None:
        """Wait until it has ended by itself; return its exit code, None if it has not ended in time."""
        assert self._process is not None
        try:
            self._process.wait(_STOPPING)
        except subprocess.TimeoutExpired:
            return None
        return self._end()

    def _end(self) -> int:
        assert self._process is not None and self._reader is not None
        code = self._process.wait(_STOPPING)
        self._reader.join(_STOPPING)
        return code

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            self._report(line.rstrip("\n"))

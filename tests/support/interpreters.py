"""The Python interpreters with which the code for the compute node is tested."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path


@cache
def interpreters() -> list[str]:
    """Return the running interpreter and, if installed, Python 3.8, the oldest supported one."""
    found = [shutil.which("python3.8"), *map(str, Path.home().glob(".pyenv/versions/3.8.*/bin/python"))]
    # A version manager may put a stub on PATH that starts no interpreter.
    old = [path for path in found if path and _runs(path)]
    return [sys.executable, *old[:1]]


def _runs(python: str) -> bool:
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0

"""The Pythons that what travels to a compute node is tried with."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path


@cache
def interpreters() -> list[str]:
    """The running one, and the oldest that is promised to work, where it is there."""
    found = [shutil.which("python3.8"), *map(str, Path.home().glob(".pyenv/versions/3.8.*/bin/python"))]
    # A version manager's stand-in is on PATH also where it leads to no interpreter.
    old = [path for path in found if path and _runs(path)]
    return [sys.executable, *old[:1]]


def _runs(python: str) -> bool:
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0

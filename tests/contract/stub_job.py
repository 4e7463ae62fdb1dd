"""Stands in for the node program: its work order is a Python file, and that is what it runs.

As `zipapp` of a request it works for a scheduler that starts a fresh Python, and its `run` for the local
cluster, which forks.
"""

from __future__ import annotations

import sys
from pathlib import Path


def run(order_path: str, job: str) -> int:
    namespace = {"__name__": "__main__", "job": job}
    exec(compile(Path(order_path).read_text(encoding="utf-8"), order_path, "exec"), namespace)
    return 0


def kill_by_token(token: str) -> int:
    """The jobs here leave nothing that the scheduler would not find by itself."""
    return 0


def nothing(order_path: str, job: str) -> int:
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], ""))

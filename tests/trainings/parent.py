"""A program that imports the modules named in its arguments and forks a process for each requested script.

It does not import outlast, which reads its environment at import: that must happen in the attempt.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def serve(modules: list[str]) -> None:
    """Import the modules, then fork a process for each order on stdin and print its exit code."""
    for name in modules:
        importlib.import_module(name)
    gc.freeze()  # otherwise each attempt would collect all of it at exit
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            become(order)
            return
        _, status = os.waitpid(child, 0)
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)


def become(order: Mapping[str, Any]) -> None:
    """Run the script as the attempt, in this process."""
    os.environ.update(order["environment"])
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(Path(order["log"]).parent)
    runpy.run_path(order["script"], run_name="__main__")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    serve(sys.argv[1:])

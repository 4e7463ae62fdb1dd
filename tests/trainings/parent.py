"""A program that imports the modules it is told to, and forks a process for each script that it is asked for.

It imports nothing of outlast, which reads its environment when it is imported: that is the attempt's.
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
    for name in modules:
        importlib.import_module(name)
    gc.freeze()  # else each attempt would go through all of it at its end
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
    """The attempt: it ends as a script does."""
    os.environ.update(order["environment"])
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(Path(order["log"]).parent)
    runpy.run_path(order["script"], run_name="__main__")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    serve(sys.argv[1:])

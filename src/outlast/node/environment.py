"""What a training finds in its environment."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Mapping, Sequence

from outlast.node.order import WorkOrder
from outlast.node.words import Variable

#: Numerical libraries take every core of a shared node unless told how many are theirs.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def for_training(
    order: WorkOrder,
    deadline: float,
    grace: float,
    data: str,
    output: str,
    progress: str,
    own: Mapping[str, str],
) -> dict[str, str]:
    """`deadline` is in seconds since the epoch; `own` is the node program's environment."""
    environment = dict(own)
    # A traceback on stderr for every fatal signal would hide the one that matters.
    environment.pop("PYTHONFAULTHANDLER", None)
    environment["PYTHONUNBUFFERED"] = "1"
    for name in _THREADS:
        environment[name] = str(order.cpus)
    environment.update(order.environment)
    environment.update(
        {
            Variable.TOKEN: order.token,
            Variable.RUN: order.run,
            Variable.ATTEMPT: str(order.number),
            Variable.DEADLINE: f"{deadline:.3f}",
            Variable.GRACE: f"{grace:.3f}",
            Variable.CHECKPOINT_DIR: order.checkpoints,
            Variable.CHECKPOINT_KEEP: str(order.keep),
            Variable.DATA_DIR: data,
            Variable.OUTPUT_DIR: output,
            Variable.PROGRESS_FILE: progress,
        }
    )
    if order.zipapp is not None:
        others = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([order.zipapp, others]) if others else order.zipapp
    return environment


def reach_out(order: WorkOrder) -> None:
    """The proxies and certificates of the environment in which the run was submitted count for the data of a
    training as for the training, unless the node has its own."""
    for name, value in order.environment.items():
        if name.lower().endswith("_proxy") or name.startswith("SSL_CERT_"):
            os.environ.setdefault(name, value)


def with_python(command: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """`python` means some Python 3, on systems too that only have `python3`."""
    if not command or command[0] != "python":
        return tuple(command)
    path = environment.get("PATH", os.defpath)
    for name in ("python", "python3"):
        if shutil.which(name, path=path):
            return (name, *command[1:])
    return (sys.executable, *command[1:])

"""What a training finds in its environment."""

from __future__ import annotations

import math
import os
import shutil
import sys
from typing import Mapping, Sequence

from outlast.node.order import SaveSettings, WorkOrder
from outlast.node.protocol import Variable

#: Numerical libraries take every core of a shared node unless told how many are theirs.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
#: Seconds, a whole number: torchrun kills its workers so long after it has passed a stop signal on to them.
_TORCHRUN_PATIENCE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"


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
    environment.setdefault(_TORCHRUN_PATIENCE, str(math.ceil(order.grace)))
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
            **_saving(order.saving),
        }
    )
    if order.zipapp is not None:
        others = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([order.zipapp, others]) if others else order.zipapp
    return environment


def _saving(saving: SaveSettings) -> dict[str, str]:
    return {
        Variable.SAVE_EVERY: "auto" if saving.every is None else _seconds(saving.every),
        Variable.SAVE_SHORTEST: _seconds(saving.shortest),
        Variable.SAVE_LONGEST: _seconds(saving.longest),
        Variable.SAVE_BLOCKED: _seconds(saving.blocked),
        Variable.SAVE_DURABLE: _seconds(saving.durable),
        Variable.OBSERVED: _seconds(saving.observed),
        Variable.INTERRUPTIONS: str(saving.interruptions),
    }


def _seconds(number: float | None) -> str:
    """Empty for what is not known: a value that came from elsewhere must not stand in for it."""
    return "" if number is None else f"{number:.3f}"


def adopt_network_settings(order: WorkOrder) -> None:
    """The proxies and certificates of the environment in which the run was submitted count for the data of a
    training as for the training, unless the node has its own."""
    for name, value in order.environment.items():
        if name.lower().endswith("_proxy") or name.startswith("SSL_CERT_"):
            os.environ.setdefault(name, value)


def resolve_python(command: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """`python` means some Python 3, on systems too that only have `python3`."""
    if not command or command[0] != "python":
        return tuple(command)
    path = environment.get("PATH", os.defpath)
    for name in ("python", "python3"):
        if shutil.which(name, path=path):
            return (name, *command[1:])
    return (sys.executable, *command[1:])

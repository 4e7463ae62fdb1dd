"""The environment variables of the training process."""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
import time
from typing import Mapping, Match, Sequence

from outlast.node.order import SaveSettings, WorkOrder
from outlast.node.protocol import Variable
from outlast.node.time_limits import TimeLimits
from outlast.untrusted_files import directory_below, read_file

#: Numerical libraries use every core of a shared node unless these set a number.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
#: Whole seconds after which torchrun kills its workers, once it has forwarded a stop signal to them.
_TORCHRUN_TIMEOUT = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
_VARIABLE = re.compile(r"\$(?:\{(OUTLAST_[A-Z_]+)\}|(OUTLAST_[A-Z_]+))")
_PLAIN = re.compile(r"(?:[\w./:=,@%%+~-]|%s)+" % _VARIABLE.pattern)
#: The most that a file with the value of a variable may hold.
_MAX_VALUE_BYTES = 64 * 1024


class BadEnvironment(Exception):
    """A variable of the training process cannot be set; the message is a sentence."""


def for_training(
    order: WorkOrder,
    limits: TimeLimits,
    data: str,
    output: str,
    progress: str,
    own: Mapping[str, str],
) -> dict[str, str]:
    """Return the environment of the training process. Raises BadEnvironment.

    `own` is the environment of the node program.
    """
    now = time.monotonic()
    environment = dict(own)
    # Its traceback on stderr for every fatal signal would hide the relevant one.
    environment.pop("PYTHONFAULTHANDLER", None)
    environment["PYTHONUNBUFFERED"] = "1"
    for name in _THREADS:
        environment[name] = str(order.cpus)
    environment.update(order.environment)
    environment.setdefault(_TORCHRUN_TIMEOUT, str(math.ceil(order.grace)))
    environment.update(order.env)
    environment.update({name: _read_value(name, path) for name, path in order.env_files.items()})
    environment.update(
        {
            Variable.TOKEN: order.token,
            Variable.RUN: order.run,
            Variable.ATTEMPT: str(order.number),
            Variable.DEADLINE: f"{limits.deadline_epoch:.3f}",
            Variable.TIME_LEFT: f"{limits.deadline - now:.3f}",
            Variable.CLOCK: f"{_boot_id()} {now:.3f}",
            Variable.GRACE: f"{limits.grace:.3f}",
            Variable.MEMORY: "" if order.memory is None else str(order.memory),
            Variable.CHECKPOINT_DIR: order.checkpoints,
            Variable.CHECKPOINT_KEEP: str(order.keep),
            Variable.DATA_DIR: data,
            Variable.OUTPUT_DIR: output,
            Variable.PROGRESS_FILE: progress,
            **_save_variables(order.saving),
        }
    )
    if order.zipapp is not None:
        others = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([order.zipapp, others]) if others else order.zipapp
    return environment


def _read_value(name: str, path: str) -> str:
    """Return the value of a variable from its file, without line ends; no message contains it."""
    try:
        content = read_file(os.path.realpath(path), _MAX_VALUE_BYTES)
    except OSError as error:
        raise BadEnvironment(
            "The value of %s cannot be read from %s: %s." % (name, path, error.strerror)
        ) from error
    if b"\0" in content:
        raise BadEnvironment("The file %s for the variable %s contains a NUL character." % (path, name))
    return os.fsdecode(content).rstrip("\r\n")


def _boot_id() -> str:
    """Return what identifies this start of this host; "-" if it is unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read(64).strip()
    except (OSError, ValueError):
        return "-"


def _save_variables(saving: SaveSettings) -> dict[str, str]:
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
    """Format seconds; an unknown value becomes an empty string, which replaces an inherited value."""
    return "" if number is None else f"{number:.3f}"


def adopt_network_settings(order: WorkOrder) -> None:
    """Use the proxies and certificates of the submitted environment in this process too, for staging data.

    Settings of the node take precedence.
    """
    for name, value in order.environment.items():
        if name.lower().endswith("_proxy") or name.startswith("SSL_CERT_"):
            os.environ.setdefault(name, value)


def add_resume_words(order: WorkOrder, made: bool = False) -> tuple[str, ...]:
    """Return the command of the training, with the words of `checkpoints.resume` if a checkpoint exists.

    `made`: there is a model or checkpoint of an earlier attempt in the working directory.
    """
    if made or not order.resume:
        return (*order.command, *order.resume)
    try:
        with directory_below(order.checkpoints) as checkpoints:
            found = any(not name.startswith(".") for name in os.listdir(checkpoints))
    except OSError:
        found = False
    return (*order.command, *order.resume) if found else order.command


def replace_variables(command: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Replace `$OUTLAST_…` in words that are an option or a path, such as `--out=$OUTLAST_CHECKPOINT_DIR`.

    A word with spaces, quotes or other characters of the shell is a script for one, which has the variables.
    """

    def value(match: Match[str]) -> str:
        return environment.get(match.group(1) or match.group(2), match.group(0))

    return tuple(_VARIABLE.sub(value, word) if _PLAIN.fullmatch(word) else word for word in command)


def replaces(variable: str, command: Sequence[str]) -> bool:
    """Return True if `$NAME` or `${NAME}` has a value in each job, wherever it is in the command."""
    found = _VARIABLE.fullmatch(variable)
    known = {value for name, value in vars(Variable).items() if name.isupper()}
    is_known = found is not None and (found.group(1) or found.group(2)) in known
    return is_known and all(_PLAIN.fullmatch(word) for word in command if variable in word)


def resolve_python(command: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Replace `python` at the start of a command by a Python 3 that exists in the PATH of `environment`."""
    if not command or command[0] != "python":
        return tuple(command)
    path = environment.get("PATH", os.defpath)
    for name in ("python", "python3"):
        if shutil.which(name, path=path):
            return (name, *command[1:])
    return (sys.executable, *command[1:])

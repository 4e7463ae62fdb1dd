"""The way from a directory with code to an experiment: which `outlast init` to type, and what it writes."""

from __future__ import annotations

import shlex
from pathlib import Path

from outlast.untrusted_files import is_plain_name

#: Names of scripts that start a training, the most likely first.
_LIKELY = ("train.py", "main.py", "run.py", "train.sh", "run.sh")
_MOST_NAMES = 1000

PARAMS = """\
# What to run, where, and when it counts as done.
# `outlast check` lists errors; `outlast run` runs it until it is done.

name: {name}
command: {command}
# code: [train.py, models]        # files and folders that are sent with the job; without this line,
                                  # the scripts that the command names, and those that they need
cluster: local                    # where to run; `outlast clusters` lists what is available on this machine

resources:                        # what one attempt requests
  cpus: 1
  gpus: 0
  memory: 4GB
  time: 24h                       # time limit of one attempt; the run resumes in the next one

# sweep: {{lr: [1e-3, 1e-2]}}       # one run for each value; write {{lr}} in the command
# env: {{WANDB_MODE: offline}}      # variables for the training process

# outputs:                        # files that must be there at the end, else the run has not succeeded
#   - model.pt
#   - {{path: metrics.json, key: accuracy, at_least: 0.9}}
"""


def init_command(directory: Path) -> str:
    """Return the `outlast init` that fits: for the code in the directory, or one that creates an example."""
    place = shlex.quote(str(directory))
    script = _find_script(directory)
    if script is None:
        return f"outlast init {place}"
    runner = "bash" if script.endswith(".sh") else "python"
    return f"outlast init {place} --command {shlex.quote(f'{runner} {script}')}"


def _find_script(directory: Path) -> str | None:
    """Return the script in the directory that is most likely the training; None if there is none."""
    try:
        names = sorted(path.name for path, _ in zip(directory.iterdir(), range(_MOST_NAMES), strict=False))
    except OSError:
        return None
    scripts = [name for name in names if name.endswith((".py", ".sh")) and is_plain_name(name)]
    return next(iter([*(name for name in _LIKELY if name in scripts), *scripts]), None)


def params_for(name: str, command: str) -> str:
    """Return the text of a `params.yaml` that runs `command`."""
    return PARAMS.format(name=name, command=_quote(command))


def _quote(command: str) -> str:
    """Return a YAML scalar: as it is if YAML cannot take it for anything else, else in single quotes."""
    if command.isascii() and command[:1].isalpha() and not set(command) & set(":#{}[],&*!|>'\"%@`\\\n\t\r"):
        return command.strip()
    return "'%s'" % command.replace("'", "''")

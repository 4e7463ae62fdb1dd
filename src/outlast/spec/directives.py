"""Checks of a profile's native scheduler lines: their form, and options that Outlast sets itself."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from outlast.spec.mistakes import shorten

#: The prefix of a line for each scheduler, and an example.
_SLURM, _SGE = "#SBATCH", "#$"
_EXAMPLES = {"slurm": "#SBATCH --qos=gold", "sge": "#$ -m n", "htcondor": "concurrency_limits = gpu_users"}
#: HTCondor: `key = value`, `+Attribute = value` or `My.Attribute = value`; no `queue`, no continued line.
_ASSIGNMENT = re.compile(r"(\+?[A-Za-z_][A-Za-z0-9_.]*)\s*=\s*(\S.*)")

_FOUND_BY = "by which Outlast finds its jobs again"
_SECRETS = "which would send your shell's whole environment, including secrets"
_END = "which announces the end of a job"
_ORDER = "which puts the jobs in order"
_CONTENT = "which defines what a job runs and what it returns"

#: Options that Outlast sets itself, and their purpose.
_TAKEN = {
    "slurm": {
        **dict.fromkeys(("--job-name", "-J", "--array", "-a"), _FOUND_BY),
        **dict.fromkeys(("--export", "--export-file"), _SECRETS),
        "--signal": _END,
        **dict.fromkeys(("--dependency", "-d"), _ORDER),
        **dict.fromkeys(("--wrap", "--parsable", "--wait", "-W"), _CONTENT),
    },
    "sge": {
        **dict.fromkeys(("-N", "-t", "-terse"), _FOUND_BY),
        "-V": _SECRETS,
        "-notify": _END,
        **dict.fromkeys(("-hold_jid", "-hold_jid_ad"), _ORDER),
        **dict.fromkeys(("-b", "-S", "-sync", "-C"), _CONTENT),
    },
    "htcondor": {
        **dict.fromkeys(("+outlasttoken", "+outlastgroup", "log", "submit_event_notes"), _FOUND_BY),
        "getenv": _SECRETS,
        **dict.fromkeys(("kill_sig", "job_max_vacate_time", "checkpoint_exit_code"), _END),
        **dict.fromkeys(("executable", "arguments", "initialdir", "should_transfer_files"), _CONTENT),
        **dict.fromkeys(
            ("when_to_transfer_output", "transfer_input_files", "transfer_output_files"), _CONTENT
        ),
        **dict.fromkeys(("transfer_checkpoint_files", "transfer_executable"), _CONTENT),
    },
}
#: Options for the time limit of a job, which follows from `params.yaml` and `longest`.
_TIME = {
    "slurm": frozenset({"--time", "-t"}),
    "sge": frozenset({"h_rt", "s_rt"}),
    "htcondor": frozenset({"allowed_execute_duration", "allowed_job_duration"}),
}


def directive_mistake(line: str, scheduler: str) -> tuple[str, str]:
    """Return the mistake in a native line and a hint; two empty texts if it is valid."""
    if scheduler == "htcondor":
        assignment = _ASSIGNMENT.fullmatch(line.strip())
        names = [_attribute(assignment[1])] if assignment and not line.rstrip().endswith("\\") else []
    else:
        names = _options(line, _SLURM if scheduler == "slurm" else _SGE)
    if not names:
        return f'"{shorten(line)}" is not a line for {scheduler}', f"write it like {_EXAMPLES[scheduler]}"
    for name in names:
        if name in _TAKEN[scheduler]:
            return f"sets {name}, {_TAKEN[scheduler][name]}", "remove it"
        if name in _TIME[scheduler]:
            return (
                f"sets {name}, which follows from resources.time in params.yaml",
                "remove it, or write longest:",
            )
    return "", ""


def options_set(lines: Iterable[str], scheduler: str) -> frozenset[str]:
    """Return the names of the options that native lines for Slurm or Grid Engine set."""
    prefix = _SLURM if scheduler == "slurm" else _SGE
    return frozenset(name for line in lines for name in _options(line, prefix))


def _attribute(name: str) -> str:
    """Return an attribute's name in lower case, with `My.X` as `+X`, which means the same."""
    lower = name.lower()
    return f"+{lower[3:]}" if lower.startswith("my.") else lower


def _options(line: str, prefix: str) -> list[str]:
    """Return the names of the options and resources in a line; none if it does not begin with `prefix`."""
    if not line.startswith(f"{prefix} "):
        return []
    try:
        words = shlex.split(line[len(prefix) :])
    except ValueError:
        return []
    if not words or not words[0].startswith("-"):
        return []
    options = [word.partition("=")[0] for word in words if word.startswith("-")]
    if prefix == _SLURM:
        # In Slurm a short option and its value can be one word.
        return [name if name.startswith("--") else name[:2] for name in options]
    # Grid Engine has one option for all resources: `-l h_rt=24:00:00,gpus=1`.
    resources = [part.partition("=")[0] for word in words for part in word.split(",") if "=" in part]
    return [*options, *resources]

"""Native lines of a profile: what they must look like, and which ones Outlast needs to itself."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from outlast.spec.mistakes import shorten

#: How a line of each scheduler begins, and one as an example.
_SLURM, _SGE = "#SBATCH", "#$"
_EXAMPLES = {"slurm": "#SBATCH --qos=gold", "sge": "#$ -m n", "htcondor": "concurrency_limits = gpu_users"}
#: HTCondor: `key = value`, `+Attribute = value` or `My.Attribute = value`; no `queue`, no continued line.
_ASSIGNMENT = re.compile(r"(\+?[A-Za-z_][A-Za-z0-9_.]*)\s*=\s*(\S.*)")

_FOUND_BY = "by which Outlast finds its jobs again"
_SECRETS = "which would send along all of your shell's environment, and what is secret in it"
_TOLD = "by which a job is told of its end"
_ORDERED = "by which jobs follow each other"
_WHAT = "which says what a job runs and what comes back"

#: Options that Outlast sets itself and counts on, and what for.
_TAKEN = {
    "slurm": {
        **dict.fromkeys(("--job-name", "-J", "--array", "-a"), _FOUND_BY),
        **dict.fromkeys(("--export", "--export-file"), _SECRETS),
        "--signal": _TOLD,
        **dict.fromkeys(("--dependency", "-d"), _ORDERED),
        **dict.fromkeys(("--wrap", "--parsable", "--wait", "-W"), _WHAT),
    },
    "sge": {
        **dict.fromkeys(("-N", "-t", "-terse"), _FOUND_BY),
        "-V": _SECRETS,
        "-notify": _TOLD,
        **dict.fromkeys(("-hold_jid", "-hold_jid_ad"), _ORDERED),
        **dict.fromkeys(("-b", "-S", "-sync", "-C"), _WHAT),
    },
    "htcondor": {
        **dict.fromkeys(("+outlasttoken", "+outlastgroup", "log", "submit_event_notes"), _FOUND_BY),
        "getenv": _SECRETS,
        **dict.fromkeys(("kill_sig", "job_max_vacate_time", "checkpoint_exit_code"), _TOLD),
        **dict.fromkeys(("executable", "arguments", "initialdir", "should_transfer_files"), _WHAT),
        **dict.fromkeys(("when_to_transfer_output", "transfer_input_files", "transfer_output_files"), _WHAT),
        **dict.fromkeys(("transfer_checkpoint_files", "transfer_executable"), _WHAT),
    },
}
#: The limit of a job comes from `params.yaml` and `longest`.
_TIME = {
    "slurm": frozenset({"--time", "-t"}),
    "sge": frozenset({"h_rt", "s_rt"}),
    "htcondor": frozenset({"allowed_execute_duration", "allowed_job_duration"}),
}


def directive_mistake(line: str, scheduler: str) -> tuple[str, str]:
    """What is wrong with a native line, and what to do; two empty texts if nothing is."""
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
            return f"sets {name}, which resources.time in params.yaml does", "remove it, or write longest:"
    return "", ""


def options_set(lines: Iterable[str], scheduler: str) -> frozenset[str]:
    """The names of the options that native lines of Slurm's or Grid Engine's set."""
    prefix = _SLURM if scheduler == "slurm" else _SGE
    return frozenset(name for line in lines for name in _options(line, prefix))


def _attribute(name: str) -> str:
    """`My.X` is another way of writing `+X`; neither HTCondor nor this table minds capitals."""
    lower = name.lower()
    return f"+{lower[3:]}" if lower.startswith("my.") else lower


def _options(line: str, prefix: str) -> list[str]:
    """The names of the options in a line, and of resources; none if it is no such line."""
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
        # Slurm takes a short option and its value as one word, too.
        return [name if name.startswith("--") else name[:2] for name in options]
    # Grid Engine has one option for all resources: `-l h_rt=24:00:00,gpus=1`.
    resources = [part.partition("=")[0] for word in words for part in word.split(",") if "=" in part]
    return [*options, *resources]

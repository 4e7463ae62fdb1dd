"""Time limits of a cluster's partitions or queues, as the scheduler itself reports them."""

from __future__ import annotations

from dataclasses import dataclass

from outlast.schedulers.command_runner import CommandNotRun, CommandTimeout, run_command
from outlast.schedulers.profile import Profile
from outlast.units import parse_duration


@dataclass(frozen=True)
class QueueLimit:
    """The time limit of one partition or queue."""

    name: str
    #: As the scheduler prints it.
    written: str
    #: The same in seconds; None: no limit, or one that differs from host to host.
    longest: float | None
    #: True if jobs that name no partition go there.
    default: bool = False


def query_queue_limits(scheduler: str, profile: Profile, timeout: float) -> tuple[list[QueueLimit], str]:
    """Return the limits of the profile's queue, or of all if it names none; and the error, if there was one.

    HTCondor has no queues: the owner of a machine decides how long a job may run there.
    """
    if scheduler == "slurm":
        named = [profile.queue] if profile.queue and "," not in profile.queue else []
        # --all: also partitions that are hidden, or for other groups.
        arguments, parse = ["scontrol", "--oneliner", "--all", "show", "partition", *named], _parse_partitions
    elif scheduler == "sge":
        arguments, parse = ["qconf", "-sq", profile.queue or "*"], _parse_queues
    else:
        return [], ""
    try:
        output = run_command(arguments, timeout)
    except (CommandNotRun, CommandTimeout) as error:
        return [], str(error)
    return ([], output.error_message) if output.code else (parse(output.out), "")


def _parse_partitions(text: str) -> list[QueueLimit]:
    limits = []
    for line in text.splitlines():
        facts = dict(word.partition("=")[::2] for word in line.split())
        if name := facts.get("PartitionName"):
            written = facts.get("MaxTime", "")
            limits.append(QueueLimit(name, written, _parse_seconds(written), facts.get("Default") == "YES"))
    return limits


def _parse_queues(text: str) -> list[QueueLimit]:
    limits, name = [], ""
    # A backslash continues a long line on the next one.
    for line in text.replace("\\\n", "").splitlines():
        key, _, value = line.partition(" ")
        if key == "qname":
            name = value.strip()
        elif key == "h_rt" and name:
            written = "".join(value.split())
            limits.append(QueueLimit(name, written, _parse_seconds(written)))
    return limits


def _parse_seconds(written: str) -> float | None:
    try:
        return float(written) if written.isdecimal() else parse_duration(written)
    except ValueError:
        return None

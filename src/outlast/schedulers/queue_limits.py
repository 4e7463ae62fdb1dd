"""How long a job may run, as the scheduler says itself, where asking is cheap."""

from __future__ import annotations

from dataclasses import dataclass

from outlast.schedulers.command_runner import CommandNotRun, CommandTimeout, call
from outlast.schedulers.profile import Profile
from outlast.units import parse_duration


@dataclass(frozen=True)
class QueueLimit:
    """One partition or queue."""

    name: str
    #: As the scheduler writes it.
    written: str
    #: The same in seconds; None: no limit, or one that differs from host to host.
    longest: float | None
    #: Jobs that name no other go there.
    default: bool = False


def queue_limits(scheduler: str, profile: Profile, timeout: float) -> tuple[list[QueueLimit], str]:
    """The limits of the profile's queue, or of all where it names none; and why they are not known.

    HTCondor has no queues to ask: a job's time is what its machine's owner gives it.
    """
    if scheduler == "slurm":
        named = [profile.queue] if profile.queue and "," not in profile.queue else []
        # --all: also those that are hidden, or for other groups.
        arguments, read = ["scontrol", "--oneliner", "--all", "show", "partition", *named], _partitions
    elif scheduler == "sge":
        arguments, read = ["qconf", "-sq", profile.queue or "*"], _queues
    else:
        return [], ""
    try:
        reply = call(arguments, timeout)
    except (CommandNotRun, CommandTimeout) as error:
        return [], str(error)
    return ([], reply.complaint) if reply.code else (read(reply.out), "")


def _partitions(text: str) -> list[QueueLimit]:
    found = []
    for line in text.splitlines():
        facts = dict(word.partition("=")[::2] for word in line.split())
        if name := facts.get("PartitionName"):
            written = facts.get("MaxTime", "")
            found.append(QueueLimit(name, written, _seconds(written), facts.get("Default") == "YES"))
    return found


def _queues(text: str) -> list[QueueLimit]:
    found, name = [], ""
    # A line that is too long goes on in the next one after a backslash.
    for line in text.replace("\\\n", "").splitlines():
        key, _, value = line.partition(" ")
        if key == "qname":
            name = value.strip()
        elif key == "h_rt" and name:
            written = "".join(value.split())
            found.append(QueueLimit(name, written, _seconds(written)))
    return found


def _seconds(written: str) -> float | None:
    try:
        return float(written) if written.isdecimal() else parse_duration(written)
    except ValueError:
        return None

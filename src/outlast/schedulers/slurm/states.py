"""Slurm's states and reasons: what they mean for us, and in words.

Slurm has some thirty states and more than a hundred reasons; those that a training meets have a sentence
here, any other is passed on as Slurm says it.
"""

from __future__ import annotations

from outlast.node.protocol import Outcome
from outlast.schedulers.base import JobPhase, Submission, SubmitAnswer
from outlast.schedulers.command_runner import CommandOutput

#: States of a job that has a node. COMPLETING: its processes are being ended, its end is not known yet.
_RUNNING = frozenset(
    (
        *("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING"),
        *("STAGE_OUT", "POWER_UP_NODE"),
    )
)
#: Of a job that has none, or none any more. In these the reason says more than the state.
_WAITING = frozenset(
    ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT", "EXPEDITING")
)

_ENDED: dict[str, tuple[Outcome | None, str]] = {
    "COMPLETED": (None, ""),
    "FAILED": (None, ""),
    "TIMEOUT": (Outcome.OVER_TIME, "ended by Slurm at its wall-time limit"),
    "DEADLINE": (Outcome.OVER_TIME, "ended by Slurm at the deadline it was given"),
    "OUT_OF_MEMORY": (Outcome.OUT_OF_MEMORY, "killed because it used more memory than it had asked for"),
    "NODE_FAIL": (Outcome.NODE_TROUBLE, "its node failed"),
    "BOOT_FAIL": (Outcome.NODE_TROUBLE, "its node could not be booted"),
    "LAUNCH_FAILED": (Outcome.NODE_TROUBLE, "it could not be started on its node"),
    "RECONFIG_FAIL": (Outcome.NODE_TROUBLE, "its node could not be configured"),
    "PREEMPTED": (Outcome.EVICTED, "preempted by a job of higher priority"),
    "REQUEUED": (Outcome.EVICTED, "put back into the queue"),
    "CANCELLED": (Outcome.CANCELLED, "cancelled with scancel, or by an administrator"),
    "REVOKED": (Outcome.CANCELLED, "taken over by another cluster of the federation"),
}

#: Slurm itself put the job aside, and it waits for somebody.
_HOLDS: dict[str, tuple[Outcome | None, str]] = {
    "launch failed requeued held": (
        Outcome.NODE_TROUBLE,
        "it could not be started on its node, and Slurm holds it",
    ),
    "JobHoldMaxRequeue": (
        Outcome.NODE_TROUBLE,
        "it has been put back into the queue as often as Slurm allows, and Slurm holds it",
    ),
}
_SPECIAL_EXIT = "it ended with an exit code that this cluster answers with a hold"

_WAITS: dict[str, str] = {
    "None": "waits to be looked at by Slurm",
    "Priority": "waits for other jobs of higher priority",
    "Resources": "waits for resources to become free",
    "Dependency": "waits for the end of the job before it",
    "DependencyNeverSatisfied": "waits for a job that will never end as this one needs it",
    "BeginTime": "waits for its earliest start; Slurm holds a requeued job back for about two minutes",
    "Cleaning": "waits until its earlier start has been cleaned up",
    "JobHeldUser": "held back by its owner; `scontrol release` lets it go",
    "JobHeldAdmin": "held back by an administrator",
    "job requeued in held state": "put back into the queue and held by an administrator",
    "JobArrayTaskLimit": "waits because its array may not run more tasks at once",
    "Licenses": "waits for a licence",
    "Reservation": "waits for its reservation to begin",
    "ReservationDeleted": "asks for a reservation that was deleted",
    "ReqNodeNotAvail": "needs nodes that are down, drained or reserved, perhaps for maintenance",
    "NodeDown": "needs a node that is down",
    "PartitionDown": "waits because its partition is closed",
    "PartitionInactive": "waits because its partition does not start jobs now",
    "PartitionNodeLimit": "asks for more nodes than its partition allows",
    "PartitionTimeLimit": "asks for more time than its partition allows: lower resources.time",
    "BadConstraints": "asks for what no node has",
    "InvalidAccount": "names an account that does not exist: see `project` in the cluster's profile",
    "InvalidQOS": "names a quality of service that its account may not use",
    "AccountNotAllowed": "its account may not use this partition",
    "QOSNotAllowed": "its quality of service may not be used in this partition",
    "SchedDefer": "waits for Slurm's next round of scheduling",
    "Prolog": "its node is being prepared",
}
#: Of the reasons that name a limit, by their first letters.
_LIMITS = (
    ("Assoc", "waits because a limit of its account or user is reached"),
    ("QOS", "waits because a limit of its quality of service is reached"),
    ("MaxMemPerLimit", "asks for more memory per cpu than this cluster allows"),
)


def phase_of(state: str, reason: str) -> JobPhase:
    if state in _RUNNING:
        return JobPhase.RUNNING
    if state == "SPECIAL_EXIT" or (state in _WAITING and reason in _HOLDS):
        return JobPhase.HELD
    # A state this version has not heard of must not be taken for the end of a job.
    return JobPhase.ENDED if state in _ENDED and state not in _WAITING else JobPhase.QUEUED


def outcome_of(state: str, reason: str) -> Outcome | None:
    """What Slurm says became of a job that ended, was held, or (in its accounting) was started again."""
    told = _HOLDS.get(reason) if state in _WAITING and state != "REQUEUED" else _ENDED.get(state)
    return told[0] if told else None


def sentence(state: str, reason: str) -> str:
    """Why it waits, is held, or how it ended; empty where exit code and signal say it all."""
    if state in _RUNNING:
        return {"CONFIGURING": "its node is being prepared", "SUSPENDED": "suspended by Slurm"}.get(state, "")
    if state == "SPECIAL_EXIT":
        return "%s (SPECIAL_EXIT)" % _SPECIAL_EXIT
    if state in _WAITING:
        return _why_it_waits(state, reason)
    if state in _ENDED:
        words = _ENDED[state][1]
        return "%s (%s)" % (words, state) if words else ""
    return "Slurm says %s" % state


def _why_it_waits(state: str, reason: str) -> str:
    # Some reasons carry details: "ReqNodeNotAvail, UnavailableNodes:n[1-4]".
    plain = reason.split(",", maxsplit=1)[0].strip("() ")
    if reason in _HOLDS:
        words = _HOLDS[reason][1]
    elif reason in _WAITS or plain in _WAITS:
        words = _WAITS.get(reason) or _WAITS[plain]
    else:
        words = next((words for begin, words in _LIMITS if plain.startswith(begin)), "waits")
    told = reason if reason not in ("", "None") else state
    return "%s (%s)" % (words, told)


# What sbatch and its sisters say when they do not do as asked.
#: The controller was not reached, or its answer did not come back: it may have done what was asked.
_SILENCE = (
    *("timed out", "unable to contact", "zero bytes", "connection refused", "connection reset"),
    *("communication", "transport", "unexpected message", "can't find an address", "host unreachable"),
    *("backup controller", "in standby", "authentication", "munge", "credential"),
)
#: Said when the same request may be taken later.
_LATER = (
    *("accounting/qos policy", "temporarily", "try again", "too many", "not available now", "busy"),
    *("required partition not available", "partition is down", "in drain", "i/o error", "no space"),
    # It is being replaced, or its file system is away.
    *("configuration file", "configuration source", "fetch config"),
)
#: Said when it never will be.
_NEVER = (
    *("invalid", "not available", "not permitted", "denied", "too long", "too large", "too small"),
    *("more processors", "requested time limit", "requested partition", "unspecified error", "no partition"),
    *("not supported", "unsupported", "dependency", "does not match", "must be", "must specify", "missing"),
)
_FAILED = "batch job submission failed:"


def is_silence(said: str) -> bool:
    return any(words in said.lower() for words in _SILENCE)


def answer_of(reply: CommandOutput) -> Submission:
    """What became of an sbatch --parsable; its job is the array's id alone."""
    said = reply.complaint
    if reply.code == 0:
        # "ID" or "ID;CLUSTER", below whatever the site's sbatch has to say.
        last = reply.out.strip().rpartition("\n")[2].partition(";")[0]
        if last.isdigit():
            return Submission(SubmitAnswer.ACCEPTED, job=last)
        return Submission(SubmitAnswer.UNKNOWN, reason="sbatch gave no job id: %s" % said)
    if reply.code < 0 or is_silence(said):
        return Submission(SubmitAnswer.UNKNOWN, reason=said)
    if reply.code in (126, 127):
        # `env` could not start sbatch.
        return Submission(SubmitAnswer.REJECTED, reason=said, transient=True)
    why = said.lower().rpartition(_FAILED)[2]
    if any(words in why for words in _LATER):
        return Submission(SubmitAnswer.REJECTED, reason=_plain(said), transient=True)
    # Without those words sbatch has not asked Slurm at all: an option or a line of the script is wrong.
    if _FAILED not in said.lower() or any(words in why for words in _NEVER):
        return Submission(SubmitAnswer.REJECTED, reason=_plain(said))
    return Submission(SubmitAnswer.UNKNOWN, reason=_plain(said))


def _plain(said: str) -> str:
    return " ".join(said.replace("sbatch: error: ", "").split())

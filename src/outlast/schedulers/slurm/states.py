"""Slurm's job states, pending reasons and sbatch errors: their meaning for Outlast, and a sentence for each.

Slurm has some thirty states and more than a hundred reasons. Those that training runs meet have a sentence
here; any other is shown as Slurm prints it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from outlast.node.protocol import Outcome
from outlast.schedulers.base import JobPhase, Removal, Submission, SubmitStatus
from outlast.schedulers.command_runner import CommandOutput

# Job states.


@dataclass(frozen=True)
class _State:
    phase: JobPhase
    #: Empty: exit code and signal are enough, or the reason says more (see `_PENDING_REASONS`).
    sentence: str = ""
    outcome: Outcome | None = None
    removed: Removal = Removal.NO


_QUEUED, _RUNNING, _HELD, _ENDED = JobPhase.QUEUED, JobPhase.RUNNING, JobPhase.HELD, JobPhase.ENDED

_STATE_MAP: dict[str, _State] = {
    "PENDING": _State(_QUEUED),
    "REQUEUE_FED": _State(_QUEUED),
    "REQUEUE_HOLD": _State(_QUEUED),
    "RESV_DEL_HOLD": _State(_QUEUED),
    "EXPEDITING": _State(_QUEUED),
    # In accounting: the end of a start that another one followed.
    "REQUEUED": _State(_QUEUED, outcome=Outcome.EVICTED),
    "SPECIAL_EXIT": _State(
        _HELD, "held, because it ended with an exit code for which this cluster holds jobs"
    ),
    "RUNNING": _State(_RUNNING),
    "CONFIGURING": _State(_RUNNING, "its node is being prepared"),
    "SUSPENDED": _State(_RUNNING, "suspended by Slurm"),
    "STOPPED": _State(_RUNNING),
    "SIGNALING": _State(_RUNNING),
    "RESIZING": _State(_RUNNING),
    "STAGE_OUT": _State(_RUNNING),
    "POWER_UP_NODE": _State(_RUNNING),
    # Its processes are being ended; how it ended is not known yet.
    "COMPLETING": _State(_RUNNING),
    "COMPLETED": _State(_ENDED),
    "FAILED": _State(_ENDED),
    "TIMEOUT": _State(_ENDED, "ended by Slurm at its wall-time limit", Outcome.OVER_TIME),
    "DEADLINE": _State(_ENDED, "ended by Slurm at its deadline", Outcome.OVER_TIME),
    "OUT_OF_MEMORY": _State(
        _ENDED, "killed because it used more memory than requested", Outcome.OUT_OF_MEMORY
    ),
    "NODE_FAIL": _State(_ENDED, "its node failed", Outcome.NODE_TROUBLE),
    "BOOT_FAIL": _State(_ENDED, "its node could not be booted", Outcome.NODE_TROUBLE),
    "LAUNCH_FAILED": _State(_ENDED, "it could not be started on its node", Outcome.NODE_TROUBLE),
    "RECONFIG_FAIL": _State(_ENDED, "its node could not be configured", Outcome.NODE_TROUBLE),
    "PREEMPTED": _State(_ENDED, "preempted by a job of higher priority", Outcome.EVICTED),
    "CANCELLED": _State(
        _ENDED, "cancelled with scancel, or by an administrator", Outcome.CANCELLED, Removal.YES
    ),
    "REVOKED": _State(_ENDED, "taken over by another cluster of the federation", Outcome.CANCELLED),
}

# Reasons of pending jobs.

#: Slurm itself holds the job until it is released.
_HOLDS: dict[str, tuple[Outcome, str]] = {
    "launch failed requeued held": (
        Outcome.NODE_TROUBLE,
        "held by Slurm, because it could not be started on its node",
    ),
    "JobHoldMaxRequeue": (
        Outcome.NODE_TROUBLE,
        "held by Slurm, because it was requeued as often as Slurm allows",
    ),
}

_PENDING_REASONS: dict[str, str] = {
    "None": "pending; not yet considered by Slurm",
    "Priority": "pending behind jobs of higher priority",
    "Resources": "pending until resources are free",
    "Dependency": "pending until the job before it ends",
    "DependencyNeverSatisfied": "pending on a job whose end can never satisfy the dependency",
    "BeginTime": "pending until its earliest start; Slurm delays a requeued job by about two minutes",
    "Cleaning": "pending until its previous start is cleaned up",
    "JobHeldUser": "held by its owner; `scontrol release` releases it",
    "JobHeldAdmin": "held by an administrator",
    "job requeued in held state": "requeued and held by an administrator",
    "JobArrayTaskLimit": "pending, because its array may not run more tasks at once",
    "Licenses": "pending until a licence is free",
    "Reservation": "pending until its reservation begins",
    "ReservationDeleted": "requests a reservation that was deleted",
    "ReqNodeNotAvail": "needs nodes that are down, drained or reserved, perhaps for maintenance",
    "NodeDown": "needs a node that is down",
    "PartitionDown": "pending, because its partition is closed",
    "PartitionInactive": "pending, because its partition does not start jobs now",
    "PartitionNodeLimit": "requests more nodes than its partition allows",
    "PartitionTimeLimit": "requests more time than its partition allows: lower resources.time",
    "BadConstraints": "requests resources that no node has",
    "InvalidAccount": "names an account that does not exist: see `project` in the cluster's profile",
    "InvalidQOS": "names a quality of service that its account may not use",
    "AccountNotAllowed": "its account may not use this partition",
    "QOSNotAllowed": "its quality of service may not be used in this partition",
    "SchedDefer": "pending until Slurm's next scheduling cycle",
    "Prolog": "its node is being prepared",
}
#: Reasons that name a limit, by their prefix.
_LIMIT_REASONS = (
    ("Assoc", "pending, because a limit of its account or user is reached"),
    ("QOS", "pending, because a limit of its quality of service is reached"),
    ("MaxMemPerLimit", "requests more memory per cpu than this cluster allows"),
)


#: Reasons of cancelled jobs that Slurm itself ended, as root or as its own user.
_ENDED_BY_SLURM = frozenset(
    {"DependencyNeverSatisfied", "TimeLimit", "InactiveLimit", "DeadLine"}
    | {"NodeDown", "SystemFailure", "JobLaunchFailure"}
)


def phase_of(state: str, reason: str) -> JobPhase:
    """Return the phase of a job. An unknown state must not be taken for the end of a job: it is QUEUED."""
    if state not in _STATE_MAP:
        return JobPhase.QUEUED
    phase = _STATE_MAP[state].phase
    return JobPhase.HELD if phase is JobPhase.QUEUED and reason in _HOLDS else phase


def outcome_of(state: str, reason: str) -> Outcome | None:
    """Return the outcome that Slurm claims for an ended or held job; None if only its exit code counts."""
    native = _STATE_MAP.get(state)
    if native is None:
        return None
    if native.phase in (JobPhase.QUEUED, JobPhase.HELD) and reason in _HOLDS and state != "REQUEUED":
        return _HOLDS[reason][0]
    return native.outcome


def is_ended_by_slurm(reason: str) -> bool:
    """Return True if Slurm cancelled the job by itself: nobody asked it to."""
    return reason in _ENDED_BY_SLURM


def removal_of(state: str) -> Removal:
    """Return whether the state of an ended job shows that somebody removed it."""
    return _STATE_MAP[state].removed if state in _STATE_MAP else Removal.NO


def describe_state(state: str, reason: str) -> str:
    """Return why a job waits or is held, or how it ended; empty if exit code and signal are enough."""
    native = _STATE_MAP.get(state)
    if native is None:
        return "Slurm reports state %s" % state
    if native.phase is JobPhase.QUEUED:
        return _describe_reason(state, reason)
    return "%s (%s)" % (native.sentence, state) if native.sentence else ""


def describe_requeue(state: str, host: str) -> str:
    """Return why a job was requeued, by the state in which its last start ended on `host`."""
    if state == "NODE_FAIL":
        return "requeued, node %s failed" % host if host else "requeued, its node failed"
    if state == "PREEMPTED":
        return "requeued, preempted on %s" % host if host else "requeued, preempted"
    return "requeued from %s" % host if host else "requeued"


def _describe_reason(state: str, reason: str) -> str:
    # Some reasons have details: "ReqNodeNotAvail, UnavailableNodes:n[1-4]".
    plain = reason.split(",", maxsplit=1)[0].strip("() ")
    if reason in _HOLDS:
        sentence = _HOLDS[reason][1]
    elif reason in _PENDING_REASONS or plain in _PENDING_REASONS:
        sentence = _PENDING_REASONS.get(reason) or _PENDING_REASONS[plain]
    elif _LIMIT_PER_JOB.search(plain):
        sentence = "requests more than its account or quality of service allows for one job"
    else:
        sentence = next((text for prefix, text in _LIMIT_REASONS if plain.startswith(prefix)), "pending")
    native = state if reason in ("", "None") else reason
    return sentence if native == "PENDING" else "%s (%s)" % (sentence, native)


# Errors of sbatch and the other programs.

#: The controller was not reached, or its response was lost: it may have done what was requested.
_UNREACHABLE = (
    *("timed out", "unable to contact", "zero bytes", "connection refused", "connection reset"),
    *("communication", "transport", "unexpected message", "can't find an address", "host unreachable"),
    *("backup controller", "in standby", "authentication", "munge", "credential"),
)
#: The same request may be accepted later.
_TRANSIENT = (
    *("accounting/qos policy", "temporarily", "try again", "too many", "not available now", "busy"),
    *("required partition not available", "partition is down", "in drain", "i/o error", "no space"),
    # The configuration is being replaced, or its file system is not mounted.
    *("configuration file", "configuration source", "fetch config"),
)
#: The same request is never accepted.
_PERMANENT = (
    *("invalid", "not available", "not permitted", "denied", "too long", "too large", "too small"),
    *("more processors", "requested time limit", "requested partition", "unspecified error", "no partition"),
    *("not supported", "unsupported", "dependency", "does not match", "must be", "must specify", "missing"),
)
#: A limit on the number of jobs is reached: fewer may be accepted, or the same later.
_NO_ROOM = (
    *("invalid job array specification", "accounting/qos policy", "resource temporarily unavailable"),
    *("submitjob", "job queue full", "temporarily unable to accept job"),
)
#: A limit on each single job, which Slurm names before "accounting/QOS policy": fewer jobs are no remedy.
_LIMIT_PER_JOB = re.compile(r"\b(?:Assoc|QOS)\w*(?:PerJob|WallDuration|PerNode)\w*")
#: sbatch prints this before it waits and submits again, for two minutes.
RETRYING = "sleeping and retrying"
#: Without this, sbatch failed before it contacted Slurm: an option or a line of the script is wrong.
_SUBMISSION_FAILED = "batch job submission failed:"


def is_unreachable(message: str) -> bool:
    """Return True if a program's error means that it could not reach Slurm's controller."""
    return any(words in message.lower() for words in _UNREACHABLE)


def is_no_room(result: Submission) -> bool:
    """Return True if a job was rejected for a limit on the number of jobs, or on the size of an array."""
    reason = result.reason.lower()
    return (
        result.status is SubmitStatus.REJECTED
        and any(words in reason for words in _NO_ROOM)
        and not _LIMIT_PER_JOB.search(result.reason)
    )


def parse_sbatch_output(output: CommandOutput) -> Submission:
    """Return the result of `sbatch --parsable`; its job is the id of the whole array."""
    message = output.error_message
    if output.code == 0:
        # "ID" or "ID;CLUSTER", below anything that the site's sbatch prints.
        last = output.out.strip().rpartition("\n")[2].partition(";")[0]
        if last.isdigit():
            return Submission(SubmitStatus.ACCEPTED, job=last)
        return Submission(SubmitStatus.UNKNOWN, reason="sbatch printed no job id: %s" % message)
    if RETRYING in message and _SUBMISSION_FAILED not in message.lower():
        # It was ended before it submitted the job again.
        return Submission(SubmitStatus.REJECTED, reason=_without_prefix(message), transient=True)
    if output.code < 0 or is_unreachable(message):
        return Submission(SubmitStatus.UNKNOWN, reason=message)
    if output.code in (126, 127):
        # `env` could not start sbatch.
        return Submission(SubmitStatus.REJECTED, reason=message, transient=True)
    cause = message.lower().rpartition(_SUBMISSION_FAILED)[2]
    if _LIMIT_PER_JOB.search(message):
        return Submission(SubmitStatus.REJECTED, reason=_without_prefix(message))
    if any(words in cause for words in (*_TRANSIENT, *_NO_ROOM)):
        return Submission(SubmitStatus.REJECTED, reason=_without_prefix(message), transient=True)
    if _SUBMISSION_FAILED not in message.lower() or any(words in cause for words in _PERMANENT):
        return Submission(SubmitStatus.REJECTED, reason=_without_prefix(message))
    return Submission(SubmitStatus.UNKNOWN, reason=_without_prefix(message))


def _without_prefix(message: str) -> str:
    return " ".join(message.replace("sbatch: error: ", "").split())

"""Grid Engine's job states, `failed` codes and qsub errors: their meaning for Outlast, and sentences."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from outlast.domain.model import Outcome
from outlast.domain.observation import JobPhase, Removal
from outlast.schedulers.base import Submission, SubmitStatus

if TYPE_CHECKING:
    from outlast.schedulers.sge.listing import AccountingRecord

# States of listed tasks: strings of letters, one for each fact (`Eqw`, `hRwq`, `dRr`).


def phase_of(state: str) -> JobPhase:
    """Return the phase of a task in this state."""
    if "E" in state:
        return JobPhase.HELD
    return JobPhase.QUEUED if set(state) & set("qw") else JobPhase.RUNNING


def describe_state(state: str) -> str:
    """Return why a task does not make progress; empty if the state does not show it (`qw`, `r`)."""
    if "d" in state:
        return "being deleted (%s)" % state
    if phase_of(state) is JobPhase.QUEUED:
        if "h" in state:
            return "on hold, or pending until the job before it ends (%s); `qrls` releases a hold" % state
        return "rescheduled, and pending again (%s)" % state if "R" in state else ""
    if set(state) & set("sST"):
        return "suspended (%s)" % state
    return "being sent to its host (%s)" % state if "t" in state else ""


# The error state.

#: A pattern in the error reason, the outcome of the attempt, and a sentence.
_START_ERRORS: Sequence[tuple[str, Outcome, str]] = (
    (r"no space left", Outcome.OUT_OF_DISK, "a disk is full"),
    (
        r"can't (open|stat|chdir|make)|no such file|permission denied|stale",
        Outcome.NODE_TROUBLE,
        "a file or directory cannot be reached from the node",
    ),
    (r"job start = 100|application error", Outcome.CRASHED, "it exited with 100, which requests this state"),
    (r"prolog|epilog|pe_start|starter", Outcome.NODE_TROUBLE, "the site's own start script failed"),
)


def explain_error(message: str) -> tuple[Outcome, str]:
    """Return outcome and sentence for a task in the error state with this error reason."""
    for pattern, outcome, meaning in _START_ERRORS:
        if re.search(pattern, message, re.IGNORECASE):
            return outcome, "could not be started: %s (%s)" % (meaning, message)
    return Outcome.NODE_TROUBLE, "could not be started (%s)" % (message or "Grid Engine reports no reason")


# Reasons of pending tasks.

#: The most informative line of `scheduling info`: request, host or queue, lacking resource, its amount.
_OFFERS_ONLY = re.compile(
    r"\(-l (.*)\) cannot run (?:at host|in queue) \"(.+?)\" because it offers only "
    r"(?:\w\w:)?(\w+)=(\S+?)(?:\.0+)?$"
)
#: Other lines, the most informative first, and their sentences.
_PENDING_REASONS: Sequence[tuple[str, str]] = (
    (r"exceeds limit \"[^\"]*\" in rule \"([^\"]*)\"", r"pending, because a quota is used up (rule \1)"),
    (
        r"cannot run in PE \"([^\"]+)\" because it only offers \d+ slots",
        r"pending for cpus: no host has as many free in parallel environment \1",
    ),
    (r"has no permission for (.*)", r"may not use \1"),
    (
        r"queue instance \"([^\"]+)\" dropped because it is (full|overloaded|disabled|temporarily not.*)",
        r"pending: \1 is \2",
    ),
    (
        r"cannot run (?:in|at) (queue|host|cluster queue) \"([^\"]+)\" because (.*)",
        r"cannot run in \1 \2, because \3",
    ),
    (r"job dropped because of (.*)", r"pending, because of \1"),
)
#: Printed for every queue that the job did not request: true, but not why it is pending.
_IRRELEVANT = re.compile(r"not contained in its hard (queue|host) list|Job is in error|turned off|^$")


def explain_pending(scheduling_info: Sequence[str]) -> str:
    """Return a sentence for the most informative line of `scheduling info`."""
    lines = sorted(line for line in scheduling_info if not _IRRELEVANT.search(line))
    for line in lines:
        match = _OFFERS_ONLY.search(line)
        if match:
            requests, where, resource, offered = match.groups()
            request = next((one for one in requests.split(",") if one.startswith(resource + "=")), resource)
            if resource == "hostname":
                return "avoids every host that could run it (%s)" % request
            return "requests %s, and no host has that free (%s: %s)" % (request, where, offered)
    for pattern, sentence in _PENDING_REASONS:
        for line in lines:
            match = re.search(pattern, line)
            if match:
                return match.expand(sentence).rstrip(". ")
    return lines[0].rstrip(". ") if lines else "pending; Grid Engine reports no reason"


# How a start ended: `failed` codes, see sge_status(5).

ENFORCED_LIMIT, RESCHEDULED, EXIT_100, AFTER_JOB = 37, 25, 30, 100
#: The job ran until it was rescheduled, or until its node or its shepherd died.
CUT_SHORT = {RESCHEDULED, 18, 19}
#: The job ran and left its exit status; what failed came after it, or is what ended it.
_HAS_EXIT_STATUS = {0, 12, 13, 14, 15, 16, 17, 24, 25, EXIT_100, ENFORCED_LIMIT, AFTER_JOB}


class JobEnd(NamedTuple):
    """The end of a start, according to Grid Engine."""

    #: None: only exit code and signal are known.
    outcome: Outcome | None
    sentence: str
    removed: Removal = Removal.NO


def code_and_signal(record: AccountingRecord) -> tuple[int | None, int | None]:
    """Return exit code or signal of a start; both None if it left no exit status.

    An exit status above 128 is a signal only if Grid Engine saw the script itself die of it.
    """
    if record.failed not in _HAS_EXIT_STATUS:
        return None, None
    if record.status > 128 and record.failed != 0:
        return None, record.status - 128
    return record.status, None


def explain_end(record: AccountingRecord) -> JobEnd:
    """Return how a start ended."""
    code, number = code_and_signal(record)
    failed = record.failed
    if failed == ENFORCED_LIMIT:
        return _explain_limit(record)
    if failed == RESCHEDULED:
        return JobEnd(Outcome.EVICTED, "rescheduled, and then removed from the queue")
    if failed not in _HAS_EXIT_STATUS:
        never_started = record.started is None and failed not in CUT_SHORT
        what = "could not be started on" if never_started else "was lost on"
        sentence = "%s %s: %s (failed %d)" % (what, record.host, record.failed_text, failed)
        return JobEnd(Outcome.NODE_TROUBLE, sentence)
    if number is not None:
        sentence = "killed by %s: by qdel, or on the node (failed %d)" % (_signal_name(number), failed)
        return JobEnd(None, sentence, Removal.MAYBE)
    if failed not in (0, AFTER_JOB):
        return JobEnd(None, "exited with %s; afterwards: %s (failed %d)" % (code, record.failed_text, failed))
    return JobEnd(None, "exited with %s" % code)


def _explain_limit(record: AccountingRecord) -> JobEnd:
    """Tell time from memory by usage and request: `failed` is the same for all limits."""
    in_time = record.time_limit is not None and record.elapsed < record.time_limit - 1
    if in_time and record.memory_limit and record.memory >= 0.9 * record.memory_limit:
        sentence = "used more memory than its limit h_vmem (failed %d)" % record.failed
        return JobEnd(Outcome.OUT_OF_MEMORY, sentence)
    return JobEnd(Outcome.OVER_TIME, "reached its wall-time limit (h_rt)")


def _signal_name(number: int) -> str:
    try:
        return "signal %d (%s)" % (number, signal.Signals(number).name)
    except ValueError:
        return "signal %d" % number


# Errors of qsub.

#: The request or the response was lost: the job may exist.
_UNCLEAR = re.compile(r"qmaster|gdi|commlib|time-?out|connect|receiv|send|communicat", re.IGNORECASE)
#: No qmaster received the request.
_NOT_SENT = re.compile(
    r"connection refused|unable to initialize environment|SGE_ROOT directory", re.IGNORECASE
)
#: The same request may be accepted once other jobs have ended, or an administrator has enabled the queue.
_TRANSIENT = re.compile(
    r"jobs are allowed|job count|too many|limit|drained|disabled|not accepting", re.IGNORECASE
)


def parse_qsub_error(message: str) -> Submission:
    """Return the result of a qsub that printed no job number."""
    reason = re.sub(r"^.*?Unable to run job:\s*|\s*Exiting\.\s*$", "", message)
    if _NOT_SENT.search(message):
        return Submission(
            SubmitStatus.REJECTED, reason="Grid Engine cannot be reached: %s" % reason, transient=True
        )
    if "Unable to run job:" not in message or _UNCLEAR.search(reason):
        return Submission(SubmitStatus.UNKNOWN, reason="qsub: %s" % message)
    return Submission(SubmitStatus.REJECTED, reason=reason, transient=bool(_TRANSIENT.search(reason)))

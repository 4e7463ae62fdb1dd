"""Grid Engine's states, codes and complaints, in our words."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from outlast.domain.model import Outcome
from outlast.domain.observation import JobPhase
from outlast.schedulers.base import Submission, SubmitAnswer
from outlast.schedulers.sge.listing import AccountingRecord

#: `failed` codes (see sge_status(5)) that need words of their own.
ENFORCED_LIMIT, RESCHEDULED, EXIT_100, AFTER_JOB = 37, 25, 30, 100
#: The job ran until it was rescheduled, or until its node or its shepherd died.
CUT_SHORT = {RESCHEDULED, 18, 19}
#: The job ran and left its exit status; what failed came after it, or is what ended it.
_RAN = {0, 12, 13, 14, 15, 16, 17, 24, 25, EXIT_100, ENFORCED_LIMIT, AFTER_JOB}

#: In a complaint of qsub's: the question did not get through, or its answer did not.
_UNCLEAR = re.compile(r"qmaster|gdi|commlib|time-?out|connect|receiv|send|communicat", re.IGNORECASE)
#: Nobody was there to take the job.
_NOT_SENT = re.compile(
    r"connection refused|unable to initialize environment|SGE_ROOT directory", re.IGNORECASE
)
#: It may be taken once other jobs have ended, or an administrator has let the queue go on.
_LATER = re.compile(
    r"jobs are allowed|job count|too many|limit|drained|disabled|not accepting", re.IGNORECASE
)


def refusal(complaint: str) -> Submission:
    """What came of a job that qsub did not say it has submitted."""
    said = re.sub(r"^.*?Unable to run job:\s*|\s*Exiting\.\s*$", "", complaint)
    if _NOT_SENT.search(complaint):
        return Submission(
            SubmitAnswer.REJECTED, reason="Grid Engine cannot be reached: %s" % said, transient=True
        )
    if "Unable to run job:" not in complaint or _UNCLEAR.search(said):
        return Submission(SubmitAnswer.UNKNOWN, reason="qsub: %s" % complaint)
    return Submission(SubmitAnswer.REJECTED, reason=said, transient=bool(_LATER.search(said)))


def reason_of(state: str, phase: JobPhase) -> str:
    """Why a task in this state does not get on, as far as the state tells; of `qw` it tells nothing."""
    if "d" in state:
        return "is being deleted (%s)" % state
    if phase is JobPhase.QUEUED:
        if "h" in state:
            return "is on hold, or waits for the job before it (%s); `qrls` ends a hold" % state
        return "was put back and waits in the queue (%s)" % state if "R" in state else ""
    if set(state) & set("sST"):
        return "is suspended (%s)" % state
    return "is being sent to its host (%s)" % state if "t" in state else ""


#: What an error reason is about, and what that means for the attempt.
_ERRORS: Sequence[tuple[str, Outcome, str]] = (
    (r"no space left", Outcome.OUT_OF_DISK, "a disk is full"),
    (
        r"can't (open|stat|chdir|make)|no such file|permission denied|stale",
        Outcome.NODE_TROUBLE,
        "a file or directory cannot be reached from the node",
    ),
    (r"job start = 100|application error", Outcome.CRASHED, "it asked for this by exit code 100"),
    (r"prolog|epilog|pe_start|starter", Outcome.NODE_TROUBLE, "the site's own start script failed"),
)


def error_of(message: str) -> tuple[Outcome, str]:
    """Of a task in the error state."""
    for pattern, outcome, meaning in _ERRORS:
        if re.search(pattern, message, re.IGNORECASE):
            return outcome, "could not be started: %s (%s)" % (meaning, message)
    return Outcome.NODE_TROUBLE, "could not be started (%s)" % (message or "Grid Engine does not say why")


#: What says most in `scheduling info`: what was asked for, where, what there is too little of, and how much.
_OFFERS = re.compile(
    r"\(-l (.*)\) cannot run (?:at host|in queue) \"(.+?)\" because it offers only "
    r"(?:\w\w:)?(\w+)=(\S+?)(?:\.0+)?$"
)
#: The others, in this order.
_WAITS: Sequence[tuple[str, str]] = (
    (r"exceeds limit \"[^\"]*\" in rule \"([^\"]*)\"", r"waits because a quota is used up (rule \1)"),
    (
        r"cannot run in PE \"([^\"]+)\" because it only offers \d+ slots",
        r"waits for cpus: no host has as many free in parallel environment \1",
    ),
    (r"has no permission for (.*)", r"may not use \1"),
    (
        r"queue instance \"([^\"]+)\" dropped because it is (full|overloaded|disabled|temporarily not.*)",
        r"waits: \1 is \2",
    ),
    (
        r"cannot run (?:in|at) (queue|host|cluster queue) \"([^\"]+)\" because (.*)",
        r"cannot run in \1 \2, because \3",
    ),
    (r"job dropped because of (.*)", r"waits because of \1"),
)
#: Said of every queue that the job did not ask for: true, and no reason to wait.
_BESIDE_THE_POINT = re.compile(r"not contained in its hard (queue|host) list|Job is in error|turned off|^$")


def waits_because(lines: Sequence[str]) -> str:
    """The reason in `scheduling info` that says most."""
    telling = sorted(line for line in lines if not _BESIDE_THE_POINT.search(line))
    for line in telling:
        match = _OFFERS.search(line)
        if match:
            asked, where, resource, offered = match.groups()
            wish = next((one for one in asked.split(",") if one.startswith(resource + "=")), resource)
            if resource == "hostname":
                return "avoids every host that could take it (%s)" % wish
            return "asks for %s, and no host has that free (%s: %s)" % (wish, where, offered)
    for pattern, words in _WAITS:
        for line in telling:
            match = re.search(pattern, line)
            if match:
                return match.expand(words).rstrip(". ")
    return telling[0].rstrip(". ") if telling else "waits in the queue, and Grid Engine does not say why"


def code_and_signal(record: AccountingRecord) -> tuple[int | None, int | None]:
    """An exit status above 128 is a signal only if Grid Engine saw the script itself die of it."""
    if record.failed not in _RAN:
        return None, None
    if record.status > 128 and record.failed != 0:
        return None, record.status - 128
    return record.status, None


def ending_of(record: AccountingRecord) -> tuple[Outcome | None, str]:
    """What Grid Engine says became of a start, and the sentence for it."""
    code, number = code_and_signal(record)
    if record.failed == ENFORCED_LIMIT:
        return _limit(record)
    if record.failed == RESCHEDULED:
        return Outcome.EVICTED, "was put back into the queue and then taken out of it"
    if record.failed not in _RAN:
        unstarted = record.started is None and record.failed not in CUT_SHORT
        where = "could not be started on" if unstarted else "was lost on"
        return Outcome.NODE_TROUBLE, "%s %s: %s (failed %d)" % (
            where,
            record.host,
            record.what,
            record.failed,
        )
    if number is not None:
        return None, "was ended by %s: by qdel, or on the node (failed %d)" % (_signal(number), record.failed)
    if record.failed not in (0, AFTER_JOB):
        return None, "exited with %s; afterwards: %s (failed %d)" % (code, record.what, record.failed)
    return None, "exited with %s" % code


def _limit(record: AccountingRecord) -> tuple[Outcome, str]:
    """`failed` is the same for all limits; what was asked for and what was used tell them apart."""
    in_time = record.time_limit is not None and record.elapsed < record.time_limit - 1
    if in_time and record.memory_limit and record.memory >= 0.9 * record.memory_limit:
        return Outcome.OUT_OF_MEMORY, "used more memory than its limit h_vmem (failed %d)" % record.failed
    return Outcome.OVER_TIME, "reached its wall-time limit (h_rt)"


def _signal(number: int) -> str:
    try:
        return "signal %d (%s)" % (number, signal.Signals(number).name)
    except ValueError:
        return "signal %d" % number

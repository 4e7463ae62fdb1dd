"""What sbatch and its sisters say when they do not do as asked."""

from __future__ import annotations

from outlast.schedulers.base import Answer, Submission
from outlast.schedulers.programs import Reply

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


def answer_of(reply: Reply) -> Submission:
    """What became of an sbatch --parsable; its job is the array's id alone."""
    said = reply.complaint
    if reply.code == 0:
        # "ID" or "ID;CLUSTER", below whatever the site's sbatch has to say.
        last = reply.out.strip().rpartition("\n")[2].partition(";")[0]
        if last.isdigit():
            return Submission(Answer.ACCEPTED, job=last)
        return Submission(Answer.UNKNOWN, reason="sbatch gave no job id: %s" % said)
    if reply.code < 0 or is_silence(said):
        return Submission(Answer.UNKNOWN, reason=said)
    if reply.code in (126, 127):
        # `env` could not start sbatch.
        return Submission(Answer.REJECTED, reason=said, transient=True)
    why = said.lower().rpartition(_FAILED)[2]
    if any(words in why for words in _LATER):
        return Submission(Answer.REJECTED, reason=_plain(said), transient=True)
    # Without those words sbatch has not asked Slurm at all: an option or a line of the script is wrong.
    if _FAILED not in said.lower() or any(words in why for words in _NEVER):
        return Submission(Answer.REJECTED, reason=_plain(said))
    return Submission(Answer.UNKNOWN, reason=_plain(said))


def _plain(said: str) -> str:
    return " ".join(said.replace("sbatch: error: ", "").split())

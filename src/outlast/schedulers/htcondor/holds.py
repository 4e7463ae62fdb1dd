"""Why HTCondor holds a job, in plain words, and what follows from it.

A hold is HTCondor's way to say "somebody has to look". What it means is in a code and, for some, a subcode:
https://htcondor.readthedocs.io/en/latest/codes-other-values/hold-reason-codes.html
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass

from outlast.domain.model import Outcome
from outlast.node.staging import condor_plugin_codes
from outlast.node.staging.errors import FINAL, OUTCOMES, ErrorKind

#: The code of a job that was put on hold by hand; that is somebody's wish and no trouble.
BY_HAND = 1
#: Submitted on hold; held while its input files are brought to the access point.
NOT_YET = frozenset({15, 16})


@dataclass(frozen=True)
class Hold:
    outcome: Outcome
    words: str
    #: The same job may do better at its next start.
    releasable: bool = False
    #: What tells it from other failures, if it will be the same for the next job.
    lasting: str = ""


_FAILED_THERE = Outcome.NODE_TROUBLE
HOLDS: dict[int, Hold] = {
    3: Hold(Outcome.REJECTED, "a condition in its submit description holds it"),
    6: Hold(_FAILED_THERE, "the program could not be started there", releasable=True),
    7: Hold(Outcome.OUT_OF_DISK, "its log file could not be opened on the access point"),
    11: Hold(Outcome.NETWORK, "a transfer of its files was cut off", releasable=True),
    12: Hold(Outcome.NETWORK, "its results could not be brought back", releasable=True),
    13: Hold(Outcome.NETWORK, "its input could not be brought to the site", releasable=True),
    14: Hold(Outcome.NOT_FOUND, "its directory on the access point cannot be entered"),
    17: Hold(_FAILED_THERE, "HTCondor's daemons do not understand each other", releasable=True),
    18: Hold(Outcome.NETWORK, "a transfer of its files was cut off", releasable=True),
    19: Hold(_FAILED_THERE, "the site could not prepare for it", releasable=True),
    21: Hold(_FAILED_THERE, "the site put it aside", releasable=True),
    22: Hold(Outcome.OUT_OF_DISK, "HTCondor cannot write its event log on the access point"),
    23: Hold(_FAILED_THERE, "the site has no account to run it under", releasable=True),
    26: Hold(Outcome.REJECTED, "a rule of this access point holds it"),
    32: Hold(
        Outcome.REJECTED,
        "it brings more input than this access point lets HTCondor carry (MAX_TRANSFER_INPUT_MB); let the"
        " training fetch its data by http or osdf, or keep fewer checkpoints",
    ),
    33: Hold(
        Outcome.REJECTED,
        "it brings back more than this access point lets HTCondor carry (MAX_TRANSFER_OUTPUT_MB); keep fewer"
        " checkpoints, or make them smaller",
    ),
    34: Hold(Outcome.OUT_OF_MEMORY, "it used more memory than it asked for"),
    35: Hold(Outcome.NOT_FOUND, "its container image could not be used", releasable=True),
    36: Hold(Outcome.NETWORK, "a checkpoint could not be brought back", releasable=True),
    45: Hold(_FAILED_THERE, "the site could not start a container", releasable=True),
    # What it saved when it was told to stop is kept for its next start, and lost if the job is removed.
    46: Hold(Outcome.OVER_TIME, "it reached its limit (allowed_job_duration)", releasable=True),
    47: Hold(Outcome.OVER_TIME, "it reached its wall-time limit (allowed_execute_duration)", releasable=True),
    48: Hold(_FAILED_THERE, "the access point could not prepare for it", releasable=True),
}
_UNKNOWN = Hold(_FAILED_THERE, "HTCondor put it on hold")

#: What a transfer's words say beyond its code. Input that is missing here is so at the next start too.
_DETAILS: tuple[tuple[int, str, Hold], ...] = (
    (
        13,
        r"reading from file .*errno %d\b" % errno.ENOENT,
        Hold(Outcome.NOT_FOUND, "a file that it was to bring along is not on the access point any more"),
    ),
    (45, r"could not open image", Hold(Outcome.NOT_FOUND, "its container image is not at the site")),
    (13, r"\b(404|410|403|401)\b", Hold(Outcome.NOT_FOUND, "a URL among its input cannot be fetched")),
    (
        12,
        r"errno %d\b" % errno.ENOENT,
        Hold(_FAILED_THERE, "it ended without the directory that its results are in", releasable=True),
    ),
)
#: How HTCondor puts the words of a plugin.
_OF_PLUGIN = re.compile(r"Details: (.*?)\s*(?:\( URL file = .*)?\|?$")
_FULL = Hold(Outcome.OUT_OF_DISK, "there was no room for its files", releasable=True)
_OUT_OF_MEMORY = re.compile(r"memory", re.IGNORECASE)


def by_hand(job: str, said: str) -> str:
    """Of a job that somebody put on hold, who alone knows what for."""
    return "somebody put it on hold (%s); `condor_release %s` lets it go on" % (" ".join(said.split()), job)


def explain(code: int, subcode: int, said: str) -> Hold:
    """What this hold means. `said` is HTCondor's own reason, which ends the sentence."""
    # The subcode of a failed plugin is its exit code, eight bits further up.
    kind = condor_plugin_codes.error_kind_of(subcode >> 8) if code in (11, 13) else None
    if kind is not None:
        return _without_data(kind, said)
    hold = _meaning(code, subcode, said)
    number = "%d/%d" % (code, subcode) if subcode else "%d" % code
    said = " ".join(said.split()).rstrip(".") or "no reason given"
    return Hold(hold.outcome, "held: %s (hold %s: %s)" % (hold.words, number, said[:400]), hold.releasable)


def _without_data(kind: ErrorKind, said: str) -> Hold:
    """Our own plugin's words are better than any about them."""
    found = _OF_PLUGIN.search(" ".join(said.split()))
    words = found[1] if found else said
    lasting = "data %s %s" % (words.partition(" ")[0], kind.value) if kind in FINAL else ""
    return Hold(OUTCOMES[kind], words[:400], releasable=not lasting, lasting=lasting)


def _meaning(code: int, subcode: int, said: str) -> Hold:
    if code in (12, 13) and ("errno %d" % errno.ENOSPC in said or "errno %d" % errno.EDQUOT in said):
        return _FULL
    for about, pattern, hold in _DETAILS:
        if code == about and re.search(pattern, said):
            return hold
    if code in (3, 26) and _OUT_OF_MEMORY.search(said):
        # Many sites watch over memory by a rule of their own.
        return HOLDS[34]
    return HOLDS.get(code, _UNKNOWN)

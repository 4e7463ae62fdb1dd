"""Why HTCondor holds a job, in plain words, and what follows from it.

A hold is HTCondor's way to say "somebody has to look". What it means is in a code and, for some, a subcode:
https://htcondor.readthedocs.io/en/latest/codes-other-values/hold-reason-codes.html
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass, replace

from outlast.domain.model import Cause, Outcome
from outlast.node.sandbox.layout import TRAVEL
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
    #: Who caused it; None: as the outcome says.
    cause: Cause | None = None


_FAILED_THERE = Outcome.NODE_TROUBLE
HOLDS: dict[int, Hold] = {
    3: Hold(Outcome.REJECTED, "a condition in its submit description holds it"),
    6: Hold(_FAILED_THERE, "the program could not be started there", releasable=True),
    7: Hold(
        Outcome.OUT_OF_DISK, "its log file could not be opened on the access point", cause=Cause.ACCESS_POINT
    ),
    11: Hold(Outcome.NETWORK, "a transfer of its files was cut off", releasable=True),
    12: Hold(Outcome.NETWORK, "its results could not be brought back", releasable=True),
    13: Hold(Outcome.NETWORK, "its input could not be brought to the site", releasable=True),
    14: Hold(
        Outcome.NOT_FOUND, "its directory on the access point cannot be entered", cause=Cause.ACCESS_POINT
    ),
    17: Hold(_FAILED_THERE, "HTCondor's daemons do not understand each other", releasable=True),
    18: Hold(Outcome.NETWORK, "a transfer of its files was cut off", releasable=True),
    19: Hold(_FAILED_THERE, "the site could not prepare for it", releasable=True),
    21: Hold(_FAILED_THERE, "the site put it aside", releasable=True),
    22: Hold(
        Outcome.OUT_OF_DISK,
        "HTCondor cannot write its event log on the access point",
        cause=Cause.ACCESS_POINT,
    ),
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
    48: Hold(
        _FAILED_THERE, "the access point could not prepare for it", releasable=True, cause=Cause.ACCESS_POINT
    ),
}
_UNKNOWN = Hold(_FAILED_THERE, "HTCondor put it on hold")

_NO_IMAGE = Hold(Outcome.NOT_FOUND, "its container image is not at the site")
#: The URL is the same at every site.
_NO_URL = Hold(Outcome.NOT_FOUND, "a URL among its input cannot be fetched", cause=Cause.UNKNOWN)
_NO_RESULTS = Hold(_FAILED_THERE, "it ended without the directory that its results are in", releasable=True)
_UNCLEAR = Hold(Outcome.NETWORK, "a transfer of its files failed", releasable=True, cause=Cause.UNKNOWN)

#: Who met the error: the access point or the site. Newer versions of HTCondor begin with it.
_MET_AT = re.compile(r"^Transfer (input|output) files failure at (access|(?:the )?execution) point")
#: Older ones name the daemon: the shadow works on the access point, the starter at the site. The one that has
#: details met the error; "failed to send file(s) to <ADDRESS>;" only repeats that the other one failed.
_MET_BY = re.compile(
    r"(SHADOW|STARTER) at \S+ (?:failed to (send) file\(s\) to (?:<[^>]*>|disconnected socket): "
    r"|- \|Error: (?:receiving|writing)|failed to (?:write to|create|receive) )"
)
#: What it could not do, with which path, and why.
_ERROR = re.compile(
    r"(reading from|writing to|write to|create directory)(?: file)? (?P<path>\S.*?): "
    r"(?:\(errno (?P<number>\d+)\) (?P<why>[^;|]+)|(?P<why_first>[^;|:/(]+) \(errno (?P<number_last>\d+)\))"
)
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
_PERMIT = "give the owner of the job permission to %s there"
_OCCUPIED = "something else has that name: move it away"
#: What to do on the access point, by the error that it met; others may pass by themselves.
_TO_WRITE = {
    errno.EACCES: _PERMIT % "write",
    errno.EPERM: _PERMIT % "write",
    errno.EROFS: "make its file system writable",
    errno.ENOSPC: "free space on its disk",
    errno.EDQUOT: "free space within the quota",
    errno.ENOTDIR: _OCCUPIED,
    errno.EISDIR: _OCCUPIED,
    errno.EEXIST: _OCCUPIED,
    # HTCondor reports this also where it was not allowed to make the directory; each attempt has its own.
    errno.ENOENT: "see that %s is there and that the owner of the job may write to it and to new ones"
    " beside it",
}
_TO_READ = {
    errno.EACCES: _PERMIT % "read",
    errno.EPERM: _PERMIT % "read",
    errno.ENOENT: "put it back",
    errno.ENOTDIR: "put it back",
}
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
    return replace(hold, words="held: %s (hold %s: %s)" % (hold.words, number, said[:400]))


def _without_data(kind: ErrorKind, said: str) -> Hold:
    """Our own plugin's words are better than any about them."""
    found = _OF_PLUGIN.search(" ".join(said.split()))
    words = found[1] if found else said
    lasting = "data %s %s" % (words.partition(" ")[0], kind.value) if kind in FINAL else ""
    return Hold(OUTCOMES[kind], words[:400], releasable=not lasting, lasting=lasting)


def _meaning(code: int, subcode: int, said: str) -> Hold:
    if code in (12, 13):
        return _of_transfer(code, " ".join(said.split()))
    if code == 45 and "could not open image" in said:
        return _NO_IMAGE
    if code in (3, 26) and _OUT_OF_MEMORY.search(said):
        # Many sites watch over memory by a rule of their own.
        return HOLDS[34]
    return HOLDS.get(code, _UNKNOWN)


def _of_transfer(code: int, reason: str) -> Hold:
    """Explain a failed transfer. Where the reason does not show who met the error, nobody is blamed."""
    error = _ERROR.search(reason)
    met = {(found[2] == "access", found[1] == "input") for found in _MET_AT.finditer(reason)}
    for daemon, sends in _MET_BY.findall(reason):
        met.add((daemon == "SHADOW", (daemon == "SHADOW") is bool(sends)))
    if not met and error is not None:
        # Input is read on the access point and written at the site, results the other way round.
        is_input = code == 13
        met = {((error[1] == "reading from") is is_input, is_input)}
    if len(met) != 1:
        return replace(_of_site(code == 13, error, reason, _UNCLEAR), cause=Cause.UNKNOWN)
    ((on_access_point, is_input),) = met
    usual = HOLDS[13 if is_input else 12]
    if on_access_point:
        return _of_access_point(is_input, error, usual)
    return _of_site(is_input, error, reason, usual)


def _of_access_point(is_input: bool, error: re.Match[str] | None, usual: Hold) -> Hold:
    """Explain what the access point could not do: the path, the cause, and what to repair."""
    if error is None:
        return replace(usual, cause=Cause.ACCESS_POINT)
    # Input is listed relative to the job's directory.
    path, number = os.path.normpath(error["path"]), _number(error)
    why = (error["why"] or error["why_first"]).rstrip(" .")
    words = "the access point could not %s %s (%s)" % ("read" if is_input else "write", path, why)
    repair = (_TO_READ if is_input else _TO_WRITE).get(number)
    if repair is None:
        return Hold(Outcome.NETWORK, words, releasable=True, cause=Cause.ACCESS_POINT)
    if "%s" in repair:
        repair %= path.rpartition("/%s/" % TRAVEL)[0] or path.rpartition("/")[0]
    outcome = Outcome.OUT_OF_DISK if number in _FULL_DISK else Outcome.REJECTED
    if is_input and number in (errno.ENOENT, errno.ENOTDIR):
        outcome = Outcome.NOT_FOUND
    lasting = "access point %s errno %d" % (path, number)
    return Hold(outcome, "%s; %s" % (words, repair), lasting=lasting, cause=Cause.ACCESS_POINT)


def _of_site(is_input: bool, error: re.Match[str] | None, reason: str, usual: Hold) -> Hold:
    number = _number(error)
    if number in _FULL_DISK:
        return _FULL
    if is_input and re.search(r"\b(404|410|403|401)\b", reason):
        return _NO_URL
    if error is not None and not is_input and usual is not _UNCLEAR:
        if number == errno.ENOENT and error["path"].endswith("/" + TRAVEL):
            return _NO_RESULTS
        return Hold(_FAILED_THERE, "its results could not be read at the site", releasable=True)
    return usual


def _number(error: re.Match[str] | None) -> int:
    return int(error["number"] or error["number_last"]) if error is not None else 0

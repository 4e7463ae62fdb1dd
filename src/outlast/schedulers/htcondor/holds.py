"""Explain HTCondor's holds: the sentence for each, the outcome, and whether a release may help.

HTCondor holds a job until somebody releases or removes it. A code and, for some, a subcode show the cause:
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

#: The code of a job that a person put on hold; that is no error.
BY_HAND = 1
#: Submitted on hold; held while its input files are spooled to the access point.
NOT_YET = frozenset({15, 16})


@dataclass(frozen=True)
class Hold:
    """The meaning of a hold."""

    outcome: Outcome
    sentence: str
    #: True if the next start of the same job may succeed.
    releasable: bool = False
    #: The signature of the failure, if the next job would meet it again.
    lasting: str = ""
    #: Who caused it; None: as the outcome implies.
    cause: Cause | None = None


_SITE_FAILED = Outcome.NODE_TROUBLE
HOLDS: dict[int, Hold] = {
    3: Hold(Outcome.REJECTED, "a condition in its submit description holds it"),
    6: Hold(_SITE_FAILED, "the program could not be started at the site", releasable=True),
    7: Hold(
        Outcome.OUT_OF_DISK, "its log file could not be opened on the access point", cause=Cause.ACCESS_POINT
    ),
    11: Hold(Outcome.NETWORK, "a transfer of its files was interrupted", releasable=True),
    12: Hold(Outcome.NETWORK, "its results could not be transferred back", releasable=True),
    13: Hold(Outcome.NETWORK, "its input could not be transferred to the site", releasable=True),
    14: Hold(
        Outcome.NOT_FOUND, "its directory on the access point cannot be entered", cause=Cause.ACCESS_POINT
    ),
    17: Hold(_SITE_FAILED, "HTCondor's daemons disagree about the protocol", releasable=True),
    18: Hold(Outcome.NETWORK, "a transfer of its files was interrupted", releasable=True),
    19: Hold(_SITE_FAILED, "the site could not prepare for it", releasable=True),
    21: Hold(_SITE_FAILED, "the site held it", releasable=True),
    22: Hold(
        Outcome.OUT_OF_DISK,
        "HTCondor cannot write its event log on the access point",
        cause=Cause.ACCESS_POINT,
    ),
    23: Hold(_SITE_FAILED, "the site has no account to run it under", releasable=True),
    26: Hold(Outcome.REJECTED, "a rule of this access point holds it"),
    32: Hold(
        Outcome.REJECTED,
        "it has more input than this access point lets HTCondor transfer (MAX_TRANSFER_INPUT_MB); let the"
        " job fetch its data by http or osdf, or keep fewer checkpoints",
    ),
    33: Hold(
        Outcome.REJECTED,
        "it has more output than this access point lets HTCondor transfer (MAX_TRANSFER_OUTPUT_MB); keep"
        " fewer checkpoints, or make them smaller",
    ),
    34: Hold(Outcome.OUT_OF_MEMORY, "it used more memory than requested"),
    35: Hold(Outcome.NOT_FOUND, "its container image could not be used", releasable=True),
    36: Hold(Outcome.NETWORK, "a checkpoint could not be transferred back", releasable=True),
    45: Hold(_SITE_FAILED, "the site could not start a container", releasable=True),
    # What it saved at the stop signal is kept for its next start, and lost if the job is removed.
    46: Hold(Outcome.OVER_TIME, "it reached its limit (allowed_job_duration)", releasable=True),
    47: Hold(Outcome.OVER_TIME, "it reached its wall-time limit (allowed_execute_duration)", releasable=True),
    48: Hold(
        _SITE_FAILED, "the access point could not prepare for it", releasable=True, cause=Cause.ACCESS_POINT
    ),
}
_UNKNOWN = Hold(_SITE_FAILED, "HTCondor put it on hold")

_NO_IMAGE = Hold(Outcome.NOT_FOUND, "its container image is not at the site")
#: The URL is the same at every site.
_NO_URL = Hold(Outcome.NOT_FOUND, "a URL among its input cannot be fetched", cause=Cause.UNKNOWN)
_NO_RESULTS = Hold(_SITE_FAILED, "it ended without its results directory", releasable=True)
_UNCLEAR_TRANSFER = Hold(
    Outcome.NETWORK, "a transfer of its files failed", releasable=True, cause=Cause.UNKNOWN
)

#: Where the error occurred: access point or site. Newer versions of HTCondor begin with it.
_MET_AT = re.compile(r"^Transfer (input|output) files failure at (access|(?:the )?execution) point")
#: Older ones name the daemon: the shadow runs on the access point, the starter at the site. The one with
#: details met the error; "failed to send file(s) to <ADDRESS>;" only repeats that the other one failed.
_MET_BY = re.compile(
    r"(SHADOW|STARTER) at \S+ (?:failed to (send) file\(s\) to (?:<[^>]*>|disconnected socket): "
    r"|- \|Error: (?:receiving|writing)|failed to (?:write to|create|receive) )"
)
#: The failed operation, its path, and the cause.
_ERROR = re.compile(
    r"(reading from|writing to|write to|create directory)(?: file)? (?P<path>\S.*?): "
    r"(?:\(errno (?P<number>\d+)\) (?P<why>[^;|]+)|(?P<why_first>[^;|:/(]+) \(errno (?P<number_last>\d+)\))"
)
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
_PERMIT = "give the owner of the job permission to %s there"
_OCCUPIED = "something else has that name: move it away"
#: The repair on the access point by error number; other errors may pass by themselves.
_TO_WRITE = {
    errno.EACCES: _PERMIT % "write",
    errno.EPERM: _PERMIT % "write",
    errno.EROFS: "make its file system writable",
    errno.ENOSPC: "free space on its disk",
    errno.EDQUOT: "free space within the quota",
    errno.ENOTDIR: _OCCUPIED,
    errno.EISDIR: _OCCUPIED,
    errno.EEXIST: _OCCUPIED,
    # HTCondor also reports this if it was not allowed to make the directory; each attempt has its own.
    errno.ENOENT: "make sure that %s exists and that the owner of the job may write to it and to new"
    " directories beside it",
}
_TO_READ = {
    errno.EACCES: _PERMIT % "read",
    errno.EPERM: _PERMIT % "read",
    errno.ENOENT: "put it back",
    errno.ENOTDIR: "put it back",
}
#: The message of a transfer plugin in HTCondor's reason.
_PLUGIN_MESSAGE = re.compile(r"Details: (.*?)\s*(?:\( URL file = .*)?\|?$")
_FULL = Hold(Outcome.OUT_OF_DISK, "there was no space for its files", releasable=True)
_OUT_OF_MEMORY = re.compile(r"memory", re.IGNORECASE)


def describe_manual_hold(job: str, reason: str) -> str:
    """Return the sentence for a job that a person put on hold."""
    return "held by somebody (%s); `condor_release %s` releases it" % (" ".join(reason.split()), job)


def explain_hold(code: int, subcode: int, reason: str) -> Hold:
    """Return the meaning of a hold. HTCondor's own `reason` is part of the sentence."""
    # The subcode of a failed plugin is its exit code, shifted by eight bits.
    kind = condor_plugin_codes.error_kind_of(subcode >> 8) if code in (11, 13) else None
    if kind is not None:
        return _explain_plugin_error(kind, reason)
    hold = _explain_code(code, reason)
    number = "%d/%d" % (code, subcode) if subcode else "%d" % code
    reason = " ".join(reason.split()).rstrip(".") or "no reason given"
    return replace(hold, sentence="held: %s (hold %s: %s)" % (hold.sentence, number, reason[:400]))


def _explain_plugin_error(kind: ErrorKind, reason: str) -> Hold:
    """Return the meaning of an error of Outlast's transfer plugin; its own message is the sentence."""
    found = _PLUGIN_MESSAGE.search(" ".join(reason.split()))
    message = found[1] if found else reason
    lasting = "data %s %s" % (message.partition(" ")[0], kind.value) if kind in FINAL else ""
    return Hold(OUTCOMES[kind], message[:400], releasable=not lasting, lasting=lasting)


def _explain_code(code: int, reason: str) -> Hold:
    if code in (12, 13):
        return _explain_transfer(code, " ".join(reason.split()))
    if code == 45 and "could not open image" in reason:
        return _NO_IMAGE
    if code in (3, 26) and _OUT_OF_MEMORY.search(reason):
        # Many sites limit memory by a rule of their own.
        return HOLDS[34]
    return HOLDS.get(code, _UNKNOWN)


def _explain_transfer(code: int, reason: str) -> Hold:
    """Explain a failed transfer. The cause is UNKNOWN if the reason does not show which end met the error."""
    error = _ERROR.search(reason)
    met = {(found[2] == "access", found[1] == "input") for found in _MET_AT.finditer(reason)}
    for daemon, sends in _MET_BY.findall(reason):
        met.add((daemon == "SHADOW", (daemon == "SHADOW") is bool(sends)))
    if not met and error is not None:
        # Input is read on the access point and written at the site, results the other way round.
        is_input = code == 13
        met = {((error[1] == "reading from") is is_input, is_input)}
    if len(met) != 1:
        return replace(_explain_site_error(code == 13, error, reason, _UNCLEAR_TRANSFER), cause=Cause.UNKNOWN)
    ((on_access_point, is_input),) = met
    usual = HOLDS[13 if is_input else 12]
    if on_access_point:
        return _explain_access_point_error(is_input, error, usual)
    return _explain_site_error(is_input, error, reason, usual)


def _explain_access_point_error(is_input: bool, error: re.Match[str] | None, usual: Hold) -> Hold:
    """Explain what the access point could not do: the path, the cause, and the repair."""
    if error is None:
        return replace(usual, cause=Cause.ACCESS_POINT)
    # Paths of input are relative to the job's directory.
    path, number = os.path.normpath(error["path"]), _error_number(error)
    why = (error["why"] or error["why_first"]).rstrip(" .")
    fact = "the access point could not %s %s (%s)" % ("read" if is_input else "write", path, why)
    repair = (_TO_READ if is_input else _TO_WRITE).get(number)
    if repair is None:
        return Hold(Outcome.NETWORK, fact, releasable=True, cause=Cause.ACCESS_POINT)
    if "%s" in repair:
        repair %= path.rpartition("/%s/" % TRAVEL)[0] or path.rpartition("/")[0]
    outcome = Outcome.OUT_OF_DISK if number in _FULL_DISK else Outcome.REJECTED
    if is_input and number in (errno.ENOENT, errno.ENOTDIR):
        outcome = Outcome.NOT_FOUND
    lasting = "access point %s errno %d" % (path, number)
    return Hold(outcome, "%s; %s" % (fact, repair), lasting=lasting, cause=Cause.ACCESS_POINT)


def _explain_site_error(is_input: bool, error: re.Match[str] | None, reason: str, usual: Hold) -> Hold:
    number = _error_number(error)
    if number in _FULL_DISK:
        return _FULL
    if is_input and re.search(r"\b(404|410|403|401)\b", reason):
        return _NO_URL
    if error is not None and not is_input and usual is not _UNCLEAR_TRANSFER:
        if number == errno.ENOENT and error["path"].endswith("/" + TRAVEL):
            return _NO_RESULTS
        return Hold(_SITE_FAILED, "its results could not be read at the site", releasable=True)
    return usual


def _error_number(error: re.Match[str] | None) -> int:
    return int(error["number"] or error["number_last"]) if error is not None else 0

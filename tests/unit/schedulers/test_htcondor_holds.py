"""Holds of failed transfers: who met the error, and what follows from it.

The reasons are those of real pools, with other paths and names.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from outlast.domain.model import Cause, Outcome
from outlast.schedulers.htcondor.holds import explain_hold
from outlast.schedulers.htcondor.job_history import JobHistory, mark_held

AT_ACCESS_POINT = (
    "Transfer output files failure at access point ap.example while receiving files from execution point"
    " slot1_1@node. Details: "
)
INPUT_AT_ACCESS_POINT = (
    "Transfer input files failure at access point ap.example while sending files to execution point"
    " slot1_1@node. Details: 1 total failures: first failure: "
)
AT_SITE = (
    "Transfer output files failure at execution point slot1_1@node while sending files to access point"
    " ap.example. Details: 1 total failures: first failure: "
)
INPUT_AT_SITE = (
    "Transfer input files failure at execution point slot1_1@node while receiving files from access point"
    " ap.example. Details: "
)
PLACE = "/exp/runs/a/001"
SCRATCH = "/pool/execute/dir_8921/scratch"
SHADOW = (
    "Error from slot1_1@node: STARTER at 10.0.0.7 failed to send file(s) to <10.0.0.1:9618>;"
    " SHADOW at 10.0.0.1 "
)
MAKE = AT_ACCESS_POINT + SHADOW + "failed to create directory %s/travel: " % PLACE
WRITE = AT_ACCESS_POINT + "writing to file %s/travel/a: " % PLACE
GONE, DENIED = "(errno 2) No such file or directory", "(errno 13) Permission denied"
ACCESS_POINT, UNKNOWN = Cause.ACCESS_POINT, Cause.UNKNOWN


@dataclass(frozen=True)
class Case:
    code: int
    subcode: int
    reason: str
    outcome: Outcome
    #: A part of the explanation.
    words: str
    cause: Cause | None = None
    releasable: bool = False


CASES = {
    # The access point writes results.
    "make directory": Case(
        12,
        13,
        MAKE + "Permission denied (errno 13)",
        Outcome.REJECTED,
        "the access point could not write %s/travel (Permission denied); give the owner" % PLACE,
        ACCESS_POINT,
    ),
    "directory not made, then its first file": Case(
        12,
        2,
        WRITE + GONE,
        Outcome.REJECTED,
        "could not write %s/travel/a (No such file or directory); make sure that %s exists" % (PLACE, PLACE),
        ACCESS_POINT,
    ),
    "directory not made, then a directory in it": Case(
        12,
        2,
        AT_ACCESS_POINT
        + SHADOW
        + "failed to create directory %s/travel/output: No such file or directory (errno 2)" % PLACE,
        Outcome.REJECTED,
        "%s/travel/output (No such file or directory); make sure that %s exists" % (PLACE, PLACE),
        ACCESS_POINT,
    ),
    "directory of another user": Case(
        12,
        13,
        WRITE + DENIED,
        Outcome.REJECTED,
        "could not write %s/travel/a (Permission denied)" % PLACE,
        ACCESS_POINT,
    ),
    "directory in place of a file": Case(
        12,
        21,
        WRITE + "(errno 21) Is a directory",
        Outcome.REJECTED,
        "(Is a directory); something else has that name",
        ACCESS_POINT,
    ),
    "file in place of a directory": Case(
        12,
        20,
        MAKE + "Not a directory (errno 20)",
        Outcome.REJECTED,
        "(Not a directory); something else has that name",
        ACCESS_POINT,
    ),
    "full disk": Case(
        12,
        28,
        WRITE + "(errno 28) No space left on device",
        Outcome.OUT_OF_DISK,
        "%s/travel/a (No space left on device); free space on its disk" % PLACE,
        ACCESS_POINT,
    ),
    "quota": Case(
        12,
        122,
        WRITE + "(errno 122) Disk quota exceeded",
        Outcome.OUT_OF_DISK,
        "free space within the quota",
        ACCESS_POINT,
    ),
    "file server that may come back": Case(
        12,
        116,
        WRITE + "(errno 116) Stale file handle",
        Outcome.NETWORK,
        "could not write %s/travel/a (Stale file handle)" % PLACE,
        ACCESS_POINT,
        True,
    ),
    "access point without details": Case(
        12,
        0,
        AT_ACCESS_POINT + "unexpected",
        Outcome.NETWORK,
        "results could not be transferred back",
        ACCESS_POINT,
        True,
    ),
    # The access point reads input.
    "input gone": Case(
        13,
        2,
        INPUT_AT_ACCESS_POINT + "reading from file %s/code.tar: %s" % (PLACE, GONE),
        Outcome.NOT_FOUND,
        "the access point could not read %s/code.tar (No such file or directory); put it back" % PLACE,
        ACCESS_POINT,
    ),
    "input listed relative to the job's directory": Case(
        13,
        2,
        INPUT_AT_ACCESS_POINT + "reading from file %s/../../../code.tar: %s" % (PLACE, GONE),
        Outcome.NOT_FOUND,
        "the access point could not read /exp/code.tar (No such",
        ACCESS_POINT,
    ),
    "input unreadable": Case(
        13,
        13,
        INPUT_AT_ACCESS_POINT + "reading from file %s/code.tar: %s" % (PLACE, DENIED),
        Outcome.REJECTED,
        "could not read %s/code.tar (Permission denied); give the owner of the job permission to read"
        % PLACE,
        ACCESS_POINT,
    ),
    # The site.
    "no results": Case(
        12,
        2,
        AT_SITE + "reading from file %s/travel: %s" % (SCRATCH, GONE),
        Outcome.NODE_TROUBLE,
        "it ended without its results directory",
        None,
        True,
    ),
    "one result unreadable": Case(
        12,
        13,
        AT_SITE + "reading from file %s/travel/a: %s" % (SCRATCH, DENIED),
        Outcome.NODE_TROUBLE,
        "its results could not be read at the site",
        None,
        True,
    ),
    "site full": Case(
        13,
        28,
        INPUT_AT_SITE + "writing to file %s/big: (errno 28) No space left on device" % SCRATCH,
        Outcome.OUT_OF_DISK,
        "there was no space for its files",
        None,
        True,
    ),
    "URL missing": Case(
        13,
        256,
        "Transfer input files failure at execution point slot1_1@node using protocol http. Details: The"
        " requested URL returned error: 404 ( URL file = http://h/none )|",
        Outcome.NOT_FOUND,
        "a URL among its input cannot be fetched",
        UNKNOWN,
    ),
    "plugin for results": Case(
        12,
        256,
        "Transfer output files failure at execution point slot1_1@node using protocol http. Details: The"
        " requested URL returned error: 501 ( URL file = http://h/x )|",
        Outcome.NETWORK,
        "its results could not be transferred back",
        None,
        True,
    ),
    # Older versions: 13 is an error of the sender, 12 of the receiver, in either direction.
    "older, input gone": Case(
        13,
        2,
        "Error from glidein_3@node: SHADOW at 10.0.0.1 failed to send file(s) to <10.0.0.7:44309>: error"
        " reading from %s/code.tar: %s; STARTER failed to receive file(s) from <10.0.0.1:9618>"
        % (PLACE, GONE),
        Outcome.NOT_FOUND,
        "the access point could not read %s/code.tar (No such" % PLACE,
        ACCESS_POINT,
    ),
    "older, no results": Case(
        13,
        2,
        "Error from glidein_9@node: STARTER at 10.0.0.7 failed to send file(s) to <10.0.0.1:40485>: error"
        " reading from %s/travel: %s; SHADOW failed to receive file(s) from <10.0.0.7:50805>"
        % (SCRATCH, GONE),
        Outcome.NODE_TROUBLE,
        "it ended without its results directory",
        None,
        True,
    ),
    "older, results not written": Case(
        12,
        2,
        SHADOW + "failed to write to file %s/out: %s" % (PLACE, GONE),
        Outcome.REJECTED,
        "the access point could not write %s/out (No such file or directory); make sure that %s"
        % (PLACE, PLACE),
        ACCESS_POINT,
    ),
    "older, between the two": Case(
        12,
        2,
        SHADOW + "- |Error: writing to file %s/travel/a: %s" % (PLACE, GONE),
        Outcome.REJECTED,
        "the access point could not write %s/travel/a (No such" % PLACE,
        ACCESS_POINT,
    ),
    "older, site full": Case(
        12,
        28,
        "Error from slot1@node: SHADOW at 10.0.0.1 failed to send file(s) to <10.0.0.7:44309>; STARTER at"
        " 10.0.0.7 failed to write to file %s/big: (errno 28) No space left on device" % SCRATCH,
        Outcome.OUT_OF_DISK,
        "there was no space for its files",
        None,
        True,
    ),
    "older, plugin": Case(
        12,
        256,
        "Error from slot3@node: FILETRANSFER:1:non-zero exit (1) from /usr/libexec/condor/curl_plugin. Error:"
        " Could not resolve host: h (http://h/x)|",
        Outcome.NETWORK,
        "held: a transfer of its files failed (",
        UNKNOWN,
        True,
    ),
    # Unclear.
    "no details": Case(
        12,
        0,
        "Error from slot1@node: STARTER at 10.0.0.7 failed to send file(s) to <10.0.0.1:9618>",
        Outcome.NETWORK,
        "held: a transfer of its files failed (",
        UNKNOWN,
        True,
    ),
    "contradiction": Case(
        12,
        13,
        AT_ACCESS_POINT
        + "STARTER at 10.0.0.7 failed to send file(s) to <10.0.0.1:9618>: error reading from %s: %s"
        % (SCRATCH, DENIED),
        Outcome.NETWORK,
        "held: a transfer of its files failed (",
        UNKNOWN,
        True,
    ),
    "no reason": Case(12, 0, "", Outcome.NETWORK, "held: a transfer of its files failed (", UNKNOWN, True),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_failed_transfer_is_explained_by_who_met_the_error(case: Case) -> None:
    hold = explain_hold(case.code, case.subcode, case.reason)
    assert case.words in hold.sentence
    assert (hold.outcome, hold.cause, hold.releasable) == (case.outcome, case.cause, case.releasable)
    number = "%d/%d" % (case.code, case.subcode) if case.subcode else "%d" % case.code
    assert "(hold %s: " % number in hold.sentence


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_only_what_the_user_has_to_repair_on_the_access_point_lasts(case: Case) -> None:
    hold = explain_hold(case.code, case.subcode, case.reason)
    assert bool(hold.lasting) is (case.cause is ACCESS_POINT and not case.releasable)


@pytest.mark.parametrize("code", [7, 14, 22, 48])
def test_other_trouble_of_the_access_point_blames_no_site(code: int) -> None:
    assert explain_hold(code, 0, "x").cause is ACCESS_POINT


def test_the_cause_of_a_hold_is_part_of_what_is_known_of_the_job() -> None:
    story = mark_held(JobHistory("b-1", "7.0"), 12, 13, CASES["make directory"].reason)
    assert story.view().cause is ACCESS_POINT and story.view().lasting

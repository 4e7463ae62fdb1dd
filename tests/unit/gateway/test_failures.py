"""Why a run has no result: a code, a sentence and advice for every way in which a run can end without one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outlast.domain.accounts import AttemptAccount, ItemAccount
from outlast.domain.model import (
    Attempt,
    AttemptState,
    Cause,
    Ending,
    Limits,
    Outcome,
    Resources,
    Run,
    RunState,
    Spec,
)
from outlast.gateway.planning.failures import MOST_TEXT, failure_of
from outlast.gateway.requests import FailureCode, RequestFailure
from outlast.gateway.settings import Ceilings, InputRule, Parameter, Template
from outlast.node.staging.errors import ErrorKind
from outlast.node.staging.item import DataItem

C = FailureCode
TEMPLATE = Template(
    "pages",
    Path("/lab/templates/pages"),
    parameters={"key": Parameter("text", secret=True)},
    inputs={"book": InputRule("book.zip", most=5 * 10**6)},
    ceilings=Ceilings(memory=8 * 10**9),
)
BOOK = DataItem(("https://app.example.org/x",), file_name="book.zip", hosts=("app.example.org",))
OWN = DataItem(("file:///data/weights.bin",))
SPEC = Spec(
    "pages",
    "python train.py",
    resources=Resources(memory=10**9, time=3600.0),
    data=(OWN, BOOK),
    limits=Limits(total=86400.0, memory=4 * 10**9, disk=20 * 10**9),
)
RUN = Run("pages-000001", 0, 1, {"key": "k3y-value"}, RunState.FAILED, 0.0, 0.0, attempts=3, ran=3)


def failed(
    outcome: Outcome | None,
    *,
    account: AttemptAccount = AttemptAccount(),  # noqa: B008 - frozen
    spec: Spec = SPEC,
    state: RunState = RunState.FAILED,
    run: dict[str, Any] | None = None,
    **ending: Any,
) -> RequestFailure:
    last = None if outcome is None else Ending(3, "t", outcome, ending.pop("detail", "why"), 100.0, **ending)
    attempt = Attempt(RUN.name, 3, "t", AttemptState.ENDED, 0.0, outcome=outcome, account=account)
    found = failure_of(replace(RUN, state=state, last=last, **(run or {})), attempt, spec, TEMPLATE)
    assert found.attempts == 3 and found.message and "k3y-value" not in f"{found.message}{found.advice}"
    return found


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.FINISHED])
@pytest.mark.parametrize("computed", [True, False])
@pytest.mark.parametrize("state", [RunState.FAILED, RunState.CANCELLED])
def test_every_end_has_a_code_a_sentence_and_advice(
    outcome: Outcome, computed: bool, state: RunState
) -> None:
    found = failed(outcome, computed=computed, state=state)
    assert found.code is C.CANCELLED if state is RunState.CANCELLED else found.advice
    assert found.message.endswith(".")


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (ErrorKind.FORBIDDEN, C.INPUT_REFUSED),
        (ErrorKind.BAD_ARCHIVE, C.INPUT_REFUSED),
        (ErrorKind.WRONG_DIGEST, C.INPUT_REFUSED),
        (ErrorKind.WRONG_LENGTH, C.INPUT_REFUSED),
        (ErrorKind.TOO_LARGE, C.OVER_CEILING),
        (ErrorKind.MISSING, C.INPUT_UNAVAILABLE),
        (ErrorKind.REFUSED, C.INPUT_UNAVAILABLE),
        (ErrorKind.TRUNCATED, C.INPUT_UNAVAILABLE),
        (ErrorKind.NO_ANSWER, C.INPUT_UNAVAILABLE),
    ],
)
@pytest.mark.parametrize("outcome", [Outcome.NOT_FOUND, Outcome.CORRUPT_INPUT, Outcome.NETWORK])
def test_an_input_that_did_not_arrive_is_named_with_its_cause(
    kind: ErrorKind, code: FailureCode, outcome: Outcome
) -> None:
    items = (ItemAccount("weights.bin"), ItemAccount("book.zip", arrived=False, failed=kind.value))
    found = failed(outcome, account=AttemptAccount(data=items))
    assert found.code is code and found.retryable == (code is C.INPUT_UNAVAILABLE)
    assert found.message.startswith("The input book ")
    assert ("5 MB" in found.advice) == (code is C.OVER_CEILING)


def test_the_wording_of_an_error_decides_nothing() -> None:
    items = (ItemAccount("book.zip", arrived=False, failed=ErrorKind.STALL.value),)
    found = failed(
        Outcome.STALLED, account=AttemptAccount(data=items), detail="forbidden, too large, out of memory"
    )
    assert found.code is C.INPUT_UNAVAILABLE


def test_data_of_the_template_itself_is_the_sites_affair() -> None:
    items = (ItemAccount("weights.bin", arrived=False, failed=ErrorKind.MISSING.value),)
    assert failed(Outcome.NOT_FOUND, account=AttemptAccount(data=items)).code is C.SITE_UNAVAILABLE


def test_a_file_that_never_stopped_arriving_was_not_available() -> None:
    items = (ItemAccount("book.zip", arrived=False),)
    assert failed(Outcome.OVER_TIME, account=AttemptAccount(data=items)).code is C.INPUT_UNAVAILABLE


def test_out_of_memory_says_how_much_it_had_and_what_it_could_have() -> None:
    found = failed(Outcome.OUT_OF_MEMORY, run={"memory": 4 * 10**9}, lacked_memory=True, computed=True)
    assert (found.code, found.retryable) == (C.OUT_OF_MEMORY, False)
    assert "4 GB" in found.message and "8 GB" in found.advice
    spec = replace(SPEC, limits=replace(SPEC.limits, memory=8 * 10**9))
    found = failed(Outcome.OUT_OF_MEMORY, spec=spec, run={"memory": 8 * 10**9}, lacked_memory=True)
    assert "Allow more" not in found.advice
    assert "GPU" in failed(Outcome.OUT_OF_MEMORY, computed=True).message


def test_out_of_time_says_which_time() -> None:
    unsaved = failed(Outcome.OVER_TIME, computed=True, unsaved=True)
    assert (unsaved.code, "1 h" in unsaved.message) == (C.OUT_OF_TIME, True)
    stuck = failed(Outcome.CONTINUE, computed=True, run={"stuck": 3})
    assert (stuck.code, "1 h" in stuck.message) == (C.OUT_OF_TIME, True)
    for outcome in (Outcome.OVER_TIME, Outcome.EVICTED, Outcome.CANCELLED):
        overdue = failed(outcome, computed=True, run={"saved": True})
        assert (overdue.code, "24 h" in overdue.message) == (C.OUT_OF_TIME, True)


def test_a_run_that_never_got_a_job_found_no_place() -> None:
    assert failed(None).code is C.SITE_UNAVAILABLE
    assert failed(Outcome.CANCELLED).code is C.SITE_UNAVAILABLE
    assert failed(Outcome.REJECTED, transient=False).code is C.SITE_UNAVAILABLE
    assert failed(Outcome.LOST, computed=True, run={"ran": 50, "saved": True}).code is C.SITE_UNAVAILABLE
    assert failed(Outcome.CRASHED, cause=Cause.ACCESS_POINT).code is C.SITE_UNAVAILABLE
    assert failed(Outcome.NODE_TROUBLE, run={"blocked_since": 1.0}).code is C.SITE_UNAVAILABLE


def test_a_result_that_could_not_be_stored_is_no_fault_of_the_request() -> None:
    assert failed(Outcome.FINISHED, run={"unpublished": True}).code is C.INTERNAL


def test_a_training_that_failed_shows_the_end_of_its_output_bounded_and_harmless() -> None:
    lines = ("\x1b[31mred\r", "x" * 10_000, *(["line"] * 100), 'ValueError: "k3y-value"')
    found = failed(
        Outcome.CRASHED, account=AttemptAccount(tail=lines), computed=True, detail="ValueError\n: k3y-value"
    )
    assert found.code is C.TRAINING_FAILED and not found.retryable
    assert found.message.splitlines()[-1] == 'ValueError: "(secret)"'
    assert len(found.message) < MOST_TEXT + 700 and len(found.message.splitlines()) <= 21
    assert all(line.isprintable() for line in found.message.splitlines())
    hostile = failed(Outcome.CRASHED, account=AttemptAccount(tail=lines[:2]), computed=True)
    assert "\x1b" not in hostile.message and len(hostile.message) < 500


def test_a_job_that_failed_before_the_training_is_no_fault_of_the_request() -> None:
    assert failed(Outcome.CRASHED).code is C.INTERNAL


def test_a_full_disk_is_over_the_ceiling_only_if_the_run_had_all_that_it_may_have() -> None:
    assert failed(Outcome.OUT_OF_DISK).code is C.SITE_UNAVAILABLE
    assert failed(Outcome.OUT_OF_DISK, run={"disk": 20 * 10**9}).code is C.OVER_CEILING

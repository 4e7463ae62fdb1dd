"""Records of runs and attempts are read as they were written, also if an earlier version wrote them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outlast.domain.accounts import AttemptAccount, LegAccount, Save, read_account
from outlast.domain.model import (
    Attempt,
    AttemptState,
    Cause,
    Ending,
    Outcome,
    Phase,
    Removal,
    Run,
    RunState,
)
from outlast.journal.codec import dump, read_attempt, read_run

ACCOUNT = AttemptAccount(
    slot=9.5,
    spans=((Phase.COMPUTE, 8.0),),
    saves=(Save(5.0, 3),),
    earlier=(LegAccount("n1", Outcome.EVICTED),),
)
ATTEMPT = Attempt(
    "r",
    2,
    "t",
    AttemptState.ENDED,
    intended=1.0,
    avoid=("bad",),
    condemned=(Outcome.NETWORK, "no route"),
    cause=Cause.ACCESS_POINT,
    outcome=Outcome.NETWORK,
    account=ACCOUNT,
)


def test_an_attempt_with_its_account_is_read_as_it_was_written() -> None:
    assert read_attempt(dump(ATTEMPT)) == ATTEMPT
    assert json.loads(dump(ATTEMPT))["account"] == ACCOUNT.to_dict()


def all_fields(record: Run | Attempt) -> dict[str, Any]:
    """Return the JSON form that earlier versions wrote: all fields, also those that have their default."""

    def plain(value: Any) -> Any:
        return value.to_dict() if isinstance(value, AttemptAccount) else vars(value)

    raw: dict[str, Any] = json.loads(json.dumps(vars(record), default=plain))
    return raw


def test_fields_that_have_their_default_are_not_written() -> None:
    attempt = Attempt("r", 1, "t", AttemptState.QUEUED, 1.0, job="7")
    expected = {"run": "r", "number": 1, "token": "t", "state": "queued", "intended": 1.0, "job": "7"}
    assert json.loads(dump(attempt)) == expected
    run = Run("r", 0, 1, {}, RunState.WAITING, 1.0, 1.0, last=Ending(1, "t", Outcome.EVICTED, "", 3.0))
    assert json.loads(dump(run))["last"] == {
        "number": 1,
        "token": "t",
        "outcome": "evicted",
        "detail": "",
        "at": 3.0,
    }
    assert read_attempt(dump(attempt)) == attempt and read_run(dump(run)) == run


@pytest.mark.parametrize("key", ["run", "number", "token", "state", "intended"])
def test_an_attempt_record_without_a_required_key_is_refused(key: str) -> None:
    raw = json.loads(dump(ATTEMPT))
    del raw[key]
    with pytest.raises((KeyError, TypeError)):
        read_attempt(json.dumps(raw))
    # One that is too many does not make up for it.
    with pytest.raises((KeyError, TypeError)):
        read_attempt(json.dumps({**raw, "mood": 1}))


def test_a_record_is_one_json_value() -> None:
    with pytest.raises(ValueError, match="more than one"):
        read_attempt(dump(ATTEMPT) + "{}")


#: The keys that every version has written.
FIRST_KEYS = (
    "run",
    "number",
    "token",
    "state",
    "intended",
    "reason",
    "avoid",
    "job",
    "host",
    "queued",
    "started",
    "ended",
    "missed",
    "cancel_sent",
    "condemned",
    "outcome",
    "detail",
    "account",
)


def test_an_attempt_record_without_the_newer_keys_is_readable() -> None:
    raw = all_fields(ATTEMPT)
    newer = sorted(raw.keys() - set(FIRST_KEYS))
    for missing in (newer, *([key] for key in newer)):
        kept = {key: value for key, value in raw.items() if key not in missing}
        attempt = read_attempt(json.dumps(kept))
        assert (attempt.token, attempt.account) == ("t", ACCOUNT)
        assert attempt.condemned == (Outcome.NETWORK, "no route")
    attempt = read_attempt(json.dumps({key: raw[key] for key in FIRST_KEYS}))
    assert (attempt.jobs, attempt.restarts, attempt.cause, attempt.twin) == (1, 0, None, False)


def test_an_attempt_record_with_an_empty_account_is_readable() -> None:
    raw = {**json.loads(dump(ATTEMPT)), "account": {}}
    assert read_attempt(json.dumps(raw)).account == AttemptAccount() == read_account({})


@pytest.mark.parametrize("removed", Removal)
def test_a_run_is_read_with_how_its_last_attempt_was_removed(removed: Removal) -> None:
    last = Ending(1, "t", Outcome.EVICTED, "gone", at=3.0, cause=Cause.CLUSTER, removed=removed)
    run = Run("r", 0, 1, {"lr": "1"}, RunState.WAITING, 1.0, 1.0, last=last, sour_hosts=(("n1", 2.0),))
    assert read_run(dump(run)) == run


def test_a_run_record_without_the_newer_keys_of_its_last_attempt_is_readable() -> None:
    last = Ending(1, "t", Outcome.EVICTED, "gone", at=3.0)
    raw = all_fields(Run("r", 0, 1, {}, RunState.WAITING, 1.0, 1.0, last=last))
    assert read_run(json.dumps(raw)).last == last
    for key in ("cause", "removed", "transient"):
        del raw["last"][key]
    assert read_run(json.dumps(raw)).last == last

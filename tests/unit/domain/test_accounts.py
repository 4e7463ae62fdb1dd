"""The account of an attempt survives the journal unchanged, also one that an earlier version wrote."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from outlast.domain.accounts import (
    AttemptAccount,
    ErrorTotal,
    ItemAccount,
    LegAccount,
    Save,
    Saved,
    read_account,
    sum_errors,
)
from outlast.domain.data_costs import read_item
from outlast.domain.model import Outcome, Phase
from outlast.node.staging.errors import ErrorKind

ITEM = ItemAccount(
    name="train.tar",
    arrived=False,
    found=True,
    carried=True,
    seconds=1.5,
    bytes=2**40,
    waited=2.25,
    vouched="pinned",
    sources=("http://a/train.tar", "http://b/train.tar"),
    troubles={kind.value: ErrorTotal(1 + n, n, n / 8) for n, kind in enumerate(ErrorKind)},
    failed="missing",
)
LEG: dict[str, Any] = {
    "spans": tuple((phase, 1.125) for phase in Phase),
    "saves": (Save(5.0, 3), Save(7.5, None)),
    "saved": Saved(2, 0.75, 0.5, "every 5 min"),
    "saving": 0.25,
    "cpu": 8.25,
    "resident": 2**31,
    "gpu": 0.625,
    "loaded": True,
    "resumed": 2,
    "code": 85,
    "signal": 15,
    "notes": ("checkpoint 8 was put aside: checksum",),
    "data": (ITEM, ItemAccount("b")),
}
WHOLE = AttemptAccount(
    **LEG,
    slot=12.5,
    queue=60.5,
    tail=("the last line", "ü"),
    memory=2**33,
    bringing=3.5,
    in_vain=1.5,
    earlier=(LegAccount(host="n1", outcome=Outcome.EVICTED, **LEG), LegAccount(host="n2")),
)


def stored(account: AttemptAccount) -> AttemptAccount:
    return read_account(json.loads(json.dumps(account.to_dict())))


def test_an_account_with_every_field_set_survives_the_journal() -> None:
    attempts_own = {"host", "outcome"}  # `Attempt` has them
    empty = [field.name for field in fields(WHOLE) if getattr(WHOLE, field.name) == field.default]
    assert set(empty) == attempts_own, "a new field needs a value here"
    first = WHOLE.earlier[0]
    assert not [field.name for field in fields(first) if getattr(first, field.name) == field.default]
    assert not [field.name for field in fields(ITEM) if getattr(ITEM, field.name) == field.default]
    assert stored(WHOLE) == WHOLE


@pytest.mark.parametrize("name", [field.name for field in fields(AttemptAccount)])
def test_each_field_survives_the_journal_alone(name: str) -> None:
    alone = replace(AttemptAccount(), **{name: getattr(WHOLE, name)})
    assert stored(alone) == alone
    assert set(alone.to_dict()) <= {name}


@pytest.mark.parametrize("outcome", Outcome)
def test_each_outcome_of_an_earlier_start_survives_the_journal(outcome: Outcome) -> None:
    account = AttemptAccount(slot=1.0, earlier=(LegAccount(host="n1", outcome=outcome),))
    assert stored(account) == account


def test_an_account_of_which_nothing_is_known_is_empty() -> None:
    assert AttemptAccount().to_dict() == {}
    assert read_account({}) == AttemptAccount()
    assert stored(AttemptAccount(slot=0.0)).slot == 0.0, "it held no slot: that is known"


def test_seconds_are_stored_in_milliseconds() -> None:
    account = AttemptAccount(slot=1.0, spans=((Phase.COMPUTE, 1.23456),), saves=(Save(0.98765, 1),))
    assert account.to_dict() == {"slot": 1.0, "spans": [["compute", 1.235]], "saves": [[0.988, 1]]}


#: As the version before this one wrote it.
EARLIER_VERSION: dict[str, Any] = {
    "slot": 12.5,
    "spans": [["claim", 0.1], ["compute", 11.0]],
    "saves": [[5.0, 3]],
    "saving": 0.2,
    "saved": {"times": 1, "seconds": 0.2, "slowest": 0.2},
    "loaded": True,
    "resumed": 2,
    "data": [
        {
            "name": "x",
            "arrived": True,
            "bytes": 5,
            "waited": 1.0,
            "sources": ["http://a/x"],
            "troubles": {"stall": {"count": 1, "bytes": 0, "seconds": 2.0}},
        }
    ],
    "earlier": [{"host": "n1", "outcome": "evicted", "spans": [["compute", 3.0]]}],
}


def test_an_account_that_an_earlier_version_wrote_is_read_and_written_back_unchanged() -> None:
    account = read_account(EARLIER_VERSION)
    assert account.to_dict() == EARLIER_VERSION
    assert (account.slot, account.loaded, account.resumed) == (12.5, True, 2)
    assert account.spans == ((Phase.CLAIM, 0.1), (Phase.COMPUTE, 11.0))
    assert (account.saved_step, account.saving, account.saved) == (3, 0.2, Saved(1, 0.2, 0.2))
    (item,) = account.items
    assert (item.name, item.arrived, item.found, item.bytes) == ("x", True, False, 5)
    assert item.troubles == {ErrorKind.STALL.value: ErrorTotal(1, 0, 2.0)}
    (first,) = account.earlier
    assert (first.host, first.outcome, first.computed) == ("n1", Outcome.EVICTED, 3.0)


def test_a_key_of_a_later_version_is_passed_over() -> None:
    assert read_account({**EARLIER_VERSION, "of_a_later_version": 1}) == read_account(EARLIER_VERSION)


def test_sums_are_taken_over_all_legs_in_their_order() -> None:
    account = read_account({**EARLIER_VERSION, "earlier": [{"data": [{"name": "w"}]}]})
    assert [item.name for item in account.items] == ["w", "x"]
    assert [leg.logged for leg in account.legs] == [0.0, pytest.approx(11.1)]
    assert (account.computed, account.earlier[0].saved_step) == (11.0, None)


def test_errors_of_several_items_are_summed_by_kind_the_most_costly_first() -> None:
    items = [
        ItemAccount("a", troubles={"reset": ErrorTotal(1, 10, 1.0), "stall": ErrorTotal(1, 0, 2.0)}),
        ItemAccount("b", troubles={"reset": ErrorTotal(2, 5, 4.0)}),
    ]
    assert list(sum_errors(items).items()) == [
        ("reset", ErrorTotal(3, 15, 5.0)),
        ("stall", ErrorTotal(1, 0, 2.0)),
    ]


def test_the_cause_for_which_an_item_did_not_arrive_is_one_of_the_known_kinds() -> None:
    line = {"name": "a", "arrived": False, "failed": "too large"}
    item = read_item(line)
    assert item.failed == "too large"
    assert ItemAccount.from_dict(item.to_dict()) == item
    for odd in ("rm -rf", "\x1b", 7, None, ["too large"]):
        assert read_item({**line, "failed": odd}).failed == ""
    assert "failed" not in ItemAccount("a").to_dict()

"""Sentences for entries of the journal."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.domain.describe import of_entry
from outlast.domain.model import ATTEMPT_KINDS, Attempt, AttemptState, EntryKind, JournalEntry

ATTEMPT = Attempt("r", 2, "t", AttemptState.RUNNING, intended=0.0)
#: Data with the keys that any entry needs.
DATA: dict[str, Any] = {
    "number": 2,
    "reason": "why",
    "job": "17",
    "host": "n1",
    "outcome": "evicted",
    "detail": "gone",
    "slot": 7.0,
}


def sentence(kind: EntryKind, **data: Any) -> str:
    attempt = ATTEMPT if kind in ATTEMPT_KINDS else None
    return of_entry(JournalEntry(1.0, "r", kind, "t", {**DATA, **data}), attempt)


@pytest.mark.parametrize("kind", EntryKind)
def test_every_kind_of_entry_has_a_sentence(kind: EntryKind) -> None:
    assert sentence(kind)


def test_a_new_attempt_shows_what_was_decided_and_not_again_what_happened() -> None:
    reason = "attempt 1 ended as crashed; retrying once"
    assert sentence(EntryKind.INTENDED, reason=reason, decided="retrying once") == "attempt 2: retrying once"
    avoiding = sentence(EntryKind.INTENDED, reason=reason, decided="continue", avoid=["n1", "n2"])
    assert avoiding == "attempt 2: continue; not on n1, n2"


def test_a_new_attempt_in_an_older_journal_shows_the_whole_reason() -> None:
    assert sentence(EntryKind.INTENDED, reason="attempt 1 ended as lost; waited") == (
        "attempt 2: attempt 1 ended as lost; waited"
    )


def test_an_end_shows_the_outcome_and_the_steps() -> None:
    text = sentence(EntryKind.ENDED, step=9, account={"slot": 1.0, "loaded": True, "resumed": 4})
    assert text == "attempt 2 ended as evicted: gone; resumed from step 4; step 9 is saved"


def test_control_characters_of_other_machines_are_not_printed() -> None:
    for kind in (EntryKind.REQUEUED, EntryKind.WAITS, EntryKind.RELEASED, EntryKind.FAILED):
        assert "\x1b" not in sentence(kind, reason="\x1b[31m")
    assert "\x1b" not in sentence(EntryKind.ENDED, detail="\x1b[31m")


@pytest.mark.parametrize("kind", EntryKind)
def test_no_sentence_passes_terminal_commands_on(kind: EntryKind) -> None:
    escape = "\x1b]0;owned\x07"
    hostile = {"reason": escape, "detail": escape, "host": escape, "job": escape}
    assert sentence(kind, **hostile, decided=escape, avoid=[escape]).isprintable()

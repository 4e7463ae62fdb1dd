"""Journals for tests: entries, and a journal that is open for writing."""

from __future__ import annotations

from pathlib import Path

from outlast.domain.model import EntryKind, JournalEntry, OutputRule, Spec
from outlast.journal.journal import Journal

SPEC = Spec("digits", "train", outputs=(OutputRule("m", check=("true", "x")),))


def writer(path: Path) -> Journal:
    journal = Journal(path, create=True)
    epoch, _ = journal.lease()
    assert journal.acquire_lease(epoch, {"pid": 1})
    return journal


def added(name: str, position: int = 0) -> JournalEntry:
    return JournalEntry(
        1.0, name, EntryKind.ADDED, None, {"position": position, "spec": 1, "params": {"lr": "1e-3"}}
    )


def intended(name: str, token: str, number: int = 1) -> JournalEntry:
    return JournalEntry(
        2.0, name, EntryKind.INTENDED, token, {"number": number, "reason": "first", "avoid": ["bad"]}
    )


def ended(name: str, token: str, outcome: str = "evicted") -> JournalEntry:
    account = {"slot": 9.5, "spans": [["compute", 8.0]], "tail": ["ü"]}
    return JournalEntry(
        3.0, name, EntryKind.ENDED, token, {"outcome": outcome, "detail": "why", "account": account}
    )

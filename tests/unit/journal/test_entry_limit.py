"""What a node or a scheduler reports cannot fill the journal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outlast.domain.ledger import book
from outlast.journal.entry_limit import limit
from support.journals import added, ended, intended, writer

HUGE = {
    "tail": {"tail": ["\x1b" * 10_000] * 1000},
    "legs": {"earlier": [{"host": "h" * 200, "notes": ["ü" * 300] * 9, "spans": [["stage", 1.0]] * 9}] * 999},
    "data": {"data": [{"name": "x" * 5000, "sources": ["y" * 5000] * 100, "troubles": {}}] * 500},
    "kinds": {"data": [{"name": "x", "troubles": {"z%d" % n: {"count": 1, "bytes": 1, "seconds": 1.0}
                                                  for n in range(5000)}}]},
}  # fmt: skip


@pytest.mark.parametrize("account", HUGE.values(), ids=HUGE)
def test_a_report_adds_a_few_kilobytes_at_most_whatever_it_contains(
    tmp_path: Path, account: dict[str, Any]
) -> None:
    journal = writer(tmp_path / "journal.sqlite")
    journal.append([added("a"), intended("a", "t1")])
    end = ended("a", "t1")
    detail = "why " * 100_000
    full = {"slot": 9.5, "spans": [["compute", 8.0]], **account}
    journal.append([replace(end, data={**end.data, "detail": detail, "reason": detail, "account": full})])
    sizes = journal._db.execute(
        "SELECT max(length(data)) FROM entries UNION SELECT length(record) FROM attempts"
    )
    assert max(size for (size,) in sizes) < 40_000
    attempt = journal.attempt("t1")
    run = journal.run("a")
    assert attempt is not None and run is not None
    assert attempt.account.slot == 9.5 and attempt.account.computed == 8.0
    assert attempt.detail.startswith("why why") and len(attempt.detail) <= 2000
    (booking,) = book(run, [attempt])
    assert sum(booking.uses.values()) == pytest.approx(9.5)
    journal.close()


def test_an_entry_within_the_limit_is_recorded_as_it_is() -> None:
    entry = ended("a", "t1")
    assert limit(entry) is entry
    parameters = replace(added("a"), data={"params": {"prompt": "x" * 100_000}})
    assert limit(parameters) is parameters, "it is the user's own"

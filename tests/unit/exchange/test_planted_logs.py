"""Logs that a node planted cost the controller a bounded number of bytes, lines and journal space."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from outlast.domain.attempt_end import end_by_report
from outlast.domain.model import Attempt, AttemptState, Phase, Run, RunState
from outlast.domain.observation import Save
from outlast.exchange import attempt_log, combined_legs
from outlast.exchange.attempt_log import read_attempt
from outlast.node import jsonl

MEGABYTES_4 = 4 * 2**20
RUN = Run("r", 0, 1, {}, RunState.ACTIVE, added=900.0, since=900.0, attempts=1, current="a")
ATTEMPT = Attempt("r", 1, "a", AttemptState.RUNNING, intended=900.0, job="17", started=910.0)
END = b'{"event":"end","mono":9e9,"outcome":"evicted"}\n'
PHASES = ["stage", "compute", "validate"]


def tiny_lines() -> bytes:
    return b"{}\n" * (MEGABYTES_4 // 3)


def many_phases() -> bytes:
    line = b'{"event":"phase","phase":"%s","mono":%d,"at":1}\n'
    return b"".join(line % (PHASES[number % 3].encode(), number) for number in range(30_000))


def many_items() -> bytes:
    line = b'{"event":"data","mono":%d,"name":"%s","sources":{"%s":1}}\n'
    return b"".join(line % (number, b"n" * 300, b"s" * 300) for number in range(5000))


def long_texts() -> bytes:
    end = {"event": "end", "mono": 5, "outcome": "crashed", "detail": "d" * 10**6, "tail": "t\n" * 10**6}
    return (json.dumps(end) + "\n").encode()


def huge_numbers() -> bytes:
    return (b'{"event":"phase","phase":"compute","mono":' + b"9" * 400 + b"}\n") * 8000


def brackets() -> bytes:
    return (b"[" * 60_000 + b"\n") * 60


LOGS = {
    log.__name__: log for log in (tiny_lines, many_phases, many_items, long_texts, huge_numbers, brackets)
}


def plant(exchange: Path, content: bytes, legs: int) -> None:
    """Make the same log that of every leg: hard links take no space."""
    (exchange / "events.jsonl").write_bytes(content)
    (exchange / "claim.json").write_text('{"host": "node"}')
    for number in range(2, legs + 1):
        leg = exchange / f"leg-{number}"
        leg.mkdir()
        for name in ("events.jsonl", "claim.json"):
            os.link(exchange / name, leg / name)
        os.link(exchange / "events.jsonl", leg / "progress.jsonl")


@pytest.mark.parametrize("kind", LOGS)
def test_planted_logs_cost_little_memory_and_little_of_the_journal(tmp_path: Path, kind: str) -> None:
    plant(tmp_path, LOGS[kind]() + END, 60)
    tracemalloc.start()
    try:
        report = read_attempt(tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert report is not None
    assert peak < 100 * 2**20
    assert len(report.legs) <= combined_legs.MOST_LEGS
    entry = end_by_report(RUN, ATTEMPT, None, report, 2000.0)
    assert len(json.dumps(dict(entry.data))) + len(entry.reason) < 30_000
    assert len(report.detail) <= 2000


def test_the_bytes_read_of_all_legs_are_bounded_and_the_last_leg_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path, tiny_lines(), 60)
    last = tmp_path / "leg-60" / "events.jsonl"
    last.unlink()
    last.write_text(
        '{"event":"phase","phase":"compute","mono":1}\n{"event":"end","mono":9,"outcome":"evicted"}\n'
    )
    read: list[bytes] = []

    def counted(
        path: Path, head: int, tail: int, most_lines: int = jsonl.MAX_LINES
    ) -> jsonl.JsonLinesReader | None:
        log = original(path, head, tail, most_lines)
        read.append(log.content if log is not None else b"")
        return log

    original = jsonl.read
    monkeypatch.setattr(jsonl, "read", counted)
    report = read_attempt(tmp_path)
    assert report is not None and report.logged_outcome is not None
    assert report.logged_outcome.value == "evicted"
    assert sum(map(len, read)) < 1.5 * attempt_log.MOST_BYTES
    assert sum(content.count(b"\n") for content in read) < 1.5 * attempt_log.MOST_LINES


def test_of_too_many_lines_the_first_and_the_last_are_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b'{"n":"first"}\n' + b"{}\n" * 200_000 + b'{"n":"last"}\n')
    log = jsonl.read(path, 2**20, 2**20)
    assert log is not None
    lines = list(log.lines())
    assert (lines[0], lines[-1]) == ({"n": "first"}, {"n": "last"})
    assert len(lines) <= 60_001


def test_repeated_phases_are_added_up(tmp_path: Path) -> None:
    plant(tmp_path, many_phases(), 1)
    report = read_attempt(tmp_path)
    assert report is not None
    assert [phase.value for phase, _ in report.spans] == PHASES
    assert sum(seconds for _, seconds in report.spans) == pytest.approx(29_999)


def test_of_many_legs_the_oldest_are_added_up_and_no_second_is_lost(tmp_path: Path) -> None:
    legs = 100
    for number in range(1, legs + 1):
        leg = tmp_path if number == 1 else tmp_path / f"leg-{number}"
        leg.mkdir(exist_ok=True)
        (leg / "claim.json").write_text('{"host": "node"}')
        events = [
            {"event": "claimed", "at": 1, "mono": 0, "host": "node"},
            {"event": "phase", "phase": "stage", "mono": 0},
            {"event": "phase", "phase": "compute", "mono": 1},
            {"event": "phase", "phase": "clean-up", "mono": 11},
            {"event": "end", "outcome": "continue", "mono": 12, "code": 85},
        ]
        (leg / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        saved = {"event": "saved", "mono": 10, "step": number, "seconds": 0.5, "blocked": 0.5}
        loaded = {"event": "loaded", "mono": 1, "step": number - 1 or None}
        (leg / "progress.jsonl").write_text(json.dumps(loaded) + "\n" + json.dumps(saved) + "\n")
    report = read_attempt(tmp_path)
    assert report is not None
    assert len(report.legs) == combined_legs.MOST_LEGS
    first, merged = report.legs[0], legs - combined_legs.MOST_LEGS + 1
    assert dict(first.spans)[Phase.COMPUTE] == pytest.approx(10 * merged)
    assert first.saves[-1] == Save(pytest.approx(9 * merged), merged)
    assert first.saved is not None and (first.saved.times, first.saving) == (merged, 0.5 * merged)
    assert sum(dict(leg.spans)[Phase.COMPUTE] for leg in report.legs) == pytest.approx(10 * legs)
    entry = end_by_report(RUN, ATTEMPT, None, report, 2000.0)
    assert len(json.dumps(dict(entry.data))) < 30_000


@pytest.mark.parametrize("line", [b"\n", b"[]\n", b"x" * 20 + b"\n", b"{\n", b"{}\n"])
def test_what_status_reads_of_a_planted_log_is_parsed_within_a_few_thousand_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    (tmp_path / "claim.json").write_text('{"token":"a","job":"17","host":"h","pid":1,"at":1,"fenced":false}')
    for name in ("events.jsonl", "progress.jsonl", "progress.json", "fetching.json"):
        (tmp_path / name).write_bytes(line * (MEGABYTES_4 // len(line)))
    parse, parsed = jsonl.parse_json, 0

    def count(*arguments: Any, **options: Any) -> Any:
        nonlocal parsed
        parsed += 1
        return parse(*arguments, **options)

    monkeypatch.setattr(jsonl, "parse_json", count)
    attempt_log.progress_of(tmp_path)
    attempt_log.fetching_of(tmp_path)
    assert parsed < 10_000
    assert attempt_log.glance(tmp_path) is not None
    assert parsed < 70_000 if line.startswith(b"{") else parsed == 0

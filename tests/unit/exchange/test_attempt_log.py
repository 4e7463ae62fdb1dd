"""Event logs come from another machine: they may be cut anywhere, full of garbage, or missing."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outlast.domain import outcomes
from outlast.domain.model import Outcome, Phase
from outlast.domain.observation import Report, Save, Saved
from outlast.exchange import attempt_log
from outlast.exchange.attempt_log import (
    HEAD_BYTES,
    LONGEST_WHY,
    MOST_SAVES,
    TAIL_BYTES,
    last_progress,
    newest_progress,
    read_report,
)

EVENTS: list[dict[str, Any]] = [
    {"event": "phase", "phase": "claim", "mono": 100.0, "at": 1.0},
    {"event": "claimed", "host": "node1", "mono": 100.5, "at": 2.0},
    {"event": "phase", "phase": "stage", "mono": 101.0},
    {"event": "phase", "phase": "compute", "mono": 105.0},
    {"event": "changed", "mono": 130.0},
    {"event": "beat", "mono": 140.0},
    {"event": "phase", "phase": "clean-up", "mono": 160.0},
    {
        "event": "end",
        "mono": 161.0,
        "outcome": "crashed",
        "detail": "ValueError: no (train.py line 3).",
        "code": 1,
        "signal": None,
        "signature": "abc",
        "tail": "one\ntwo",
        "progressed": True,
        "delivered": None,
    },
]
PROGRESS: list[dict[str, Any]] = [
    {"event": "loaded", "step": 4, "mono": 106.0},
    {"event": "saved", "step": 5, "mono": 115.0, "seconds": 0.5},
    {"event": "saved", "step": 7, "mono": 145.0, "seconds": 1.5},
    {"event": "aside", "name": "8", "why": "checksum"},
    {"event": "save-failed", "step": 8, "why": "no space"},
]


class Logs:
    def __init__(self, folder: Path) -> None:
        self.events = folder / "events.jsonl"
        self.progress = folder / "progress.jsonl"
        self.newest = folder / "progress.json"

    def write(self, events: list[dict[str, Any]], progress: list[dict[str, Any]] | None = None) -> None:
        self.events.write_bytes(lines(events))
        if progress is not None:
            self.progress.write_bytes(lines(progress))

    def read(self) -> Report:
        report = read_report(self.events, self.progress)
        assert report is not None
        return report


def lines(content: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in content)


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


def test_no_log_is_no_report(logs: Logs) -> None:
    assert read_report(logs.events, logs.progress) is None
    logs.progress.write_bytes(lines(PROGRESS))
    assert read_report(logs.events, logs.progress) is None


def test_a_whole_log_is_read_with_all_facts(logs: Logs) -> None:
    logs.write(EVENTS, PROGRESS)
    report = logs.read()
    assert (report.claimed, report.host, report.logged_outcome) == (2.0, "node1", Outcome.CRASHED)
    assert report.detail.startswith("ValueError: no (train.py line 3)")
    assert (report.code, report.signal, report.signature) == (1, None, "abc")
    assert report.tail == ("one", "two")
    seconds = [(phase.value, span) for phase, span in report.spans]
    assert seconds == [("claim", 1.0), ("stage", 4.0), ("compute", 55.0), ("clean-up", 1.0)]
    assert (report.loaded, report.resumed) == (True, 4)
    assert report.saves == (Save(10.0, 5), Save(40.0, 7))
    assert (report.saving, report.step, report.computed, report.changed) == (2.0, 7, True, True)
    assert report.saved == Saved(2, 2.0, 1.5), "lines without `blocked` are of saves that block the training"
    assert [word in note for word, note in zip(("checksum", "no space"), report.notes, strict=True)]
    assert report.last_logged == logs.events.stat().st_mtime


def saved(mono: float, seconds: float, **more: Any) -> dict[str, Any]:
    return {"event": "saved", "step": int(mono), "mono": mono, "seconds": seconds, **more}


def test_a_save_holds_the_work_before_it_and_costs_the_time_that_the_training_waited(
    logs: Logs,
) -> None:
    logs.write(EVENTS, [saved(120.0, 3.0, blocked=0.5, why="the first"), saved(150.0, 5.0, blocked=0.25)])
    report = logs.read()
    assert report.saves == (Save(12.5, 120), Save(40.25, 150))
    assert report.saving == 0.75
    assert report.saved == Saved(2, 8.0, 5.0, "the first")


def test_all_saves_are_summed_although_only_the_last_are_kept(logs: Logs) -> None:
    events = [saved(110.0 + n / 100, 0.5, blocked=0.125, why="every %d s" % n) for n in range(1000)]
    logs.write(EVENTS, events)
    report = logs.read()
    assert len(report.saves) == MOST_SAVES
    assert report.saved == Saved(1000, 500.0, 0.5, "every 999 s")
    assert report.saving == pytest.approx(125.0)


def test_waiting_for_the_last_save_before_exit_counts_as_saving(logs: Logs) -> None:
    logs.write(EVENTS, [saved(120.0, 3.0, blocked=0.5), {"event": "left", "mono": 120.0, "waited": 2.5}])
    report = logs.read()
    assert (report.saves, report.saving) == ((Save(15.0, 120),), 3.0)
    logs.write(EVENTS, [{"event": "left", "mono": 120.0, "waited": 2.5}])
    assert logs.read().saving == 0.0


@pytest.mark.parametrize(
    "odd", [{"blocked": "long"}, {"blocked": -1.0}, {"blocked": 1e999}, {"blocked": 99.0}, {"why": ["x"]}]
)
def test_impossible_costs_of_a_save_are_limited(logs: Logs, odd: dict[str, Any]) -> None:
    logs.write(EVENTS, [saved(120.0, 3.0, **odd), saved(130.0, 3.0, why="w" * 10_000)])
    report = logs.read()
    assert 3.0 <= report.saving <= 6.0 and report.saved is not None
    assert report.saved.why == "w" * LONGEST_WHY


def test_a_log_cut_at_any_byte_is_read_as_far_as_it_goes(logs: Logs) -> None:
    logs.write(EVENTS, PROGRESS)
    whole = logs.read()
    events, progress = logs.events.read_bytes(), logs.progress.read_bytes()
    for end in range(len(events)):
        logs.events.write_bytes(events[:end])
        report = logs.read()
        # The last line is complete even if a kill cut off its line end.
        assert report.logged_outcome is (whole.logged_outcome if end >= len(events) - 1 else None)
        assert sum(span for _, span in report.spans) <= sum(span for _, span in whole.spans)
        assert all(span >= 0.0 for _, span in report.spans)
    logs.events.write_bytes(events)
    for end in range(len(progress)):
        logs.progress.write_bytes(progress[:end])
        found = tuple(save for save in logs.read().saves if save.step is not None)
        assert found == whole.saves[: len(found)]


def test_garbage_between_the_lines_is_skipped(logs: Logs) -> None:
    logs.write(EVENTS, PROGRESS)
    whole = logs.read()
    garbage = [
        b"\x00\xff\xfe",
        b"[]",
        b"17",
        b"null",
        b'{"event":"phase","phase":"dance","mono":120}',
        b'{"event":"phase","mono":"soon"}',
        b'{"event":"beat","mono":1e999}',
        b'{"event":"beat","mono":NaN}',
        b'{"event":"beat","mono":%d}' % 10**400,
        b'{"event":"end","outcome":"splendid","mono":120}',
        b'{"event":["end"],"mono":120}',
        b"[" * 100_000,
        b'{"event":"saved","step":"many","mono":-5}'[:20],
    ]
    for path in (logs.events, logs.progress):
        path.write_bytes(b"\n".join(x for line in path.read_bytes().splitlines() for x in (line, *garbage)))
    report = logs.read()
    assert (report.logged_outcome, report.spans, report.saves) == (
        whole.logged_outcome,
        whole.spans,
        whole.saves,
    )


def test_a_killed_training_is_credited_until_its_last_log_line(logs: Logs) -> None:
    cut = EVENTS[:5]
    logs.write(cut, PROGRESS)
    assert dict(logs.read().spans)[Phase.COMPUTE] == 40.0
    logs.write([*cut, EVENTS[6]], PROGRESS)
    assert dict(logs.read().spans)[Phase.COMPUTE] == 55.0


def test_a_script_without_a_log_saves_by_changing_its_directory(logs: Logs) -> None:
    logs.write(EVENTS)
    report = logs.read()
    assert report.saves == (Save(25.0, None),)
    assert (report.loaded, report.step, report.changed) == (False, None, True)


def left_with_85(why: str) -> list[dict[str, Any]]:
    stop = {"event": "stop", "why": why, "signal": 15 if why == "signal" else None, "mono": 150.0}
    return [*EVENTS[:-1], stop, {**EVENTS[-1], "outcome": "continue", "signature": None}]


def test_an_exit_at_the_limit_is_continued_and_an_exit_after_a_signal_is_an_eviction(logs: Logs) -> None:
    for stopped_by, outcome in (("limit", Outcome.CONTINUE), ("signal", Outcome.EVICTED)):
        logs.write(left_with_85(stopped_by), PROGRESS)
        report = logs.read()
        assert (report.logged_outcome, report.stopped_by) == (Outcome.CONTINUE, stopped_by)
        assert outcomes.of_leg(report) is outcome


def test_only_the_last_saves_are_kept(logs: Logs) -> None:
    many = [{"event": "saved", "step": n, "mono": 106.0 + n, "seconds": 0.0} for n in range(100)]
    logs.write(EVENTS, many)
    assert [save.step for save in logs.read().saves] == list(range(100 - MOST_SAVES, 100))


def test_the_attempt_resumed_from_its_first_load(logs: Logs) -> None:
    evaluation = {"event": "loaded", "step": 7, "mono": 146.0}
    logs.write(EVENTS, [*PROGRESS, evaluation])
    assert (logs.read().loaded, logs.read().resumed) == (True, 4)


def test_a_killed_training_is_credited_until_its_newest_progress(logs: Logs) -> None:
    logs.newest.write_bytes(lines([{"event": "progress", "step": 8, "mono": 150.0}]))
    logs.write(EVENTS[:5], PROGRESS)
    assert dict(logs.read().spans)[Phase.COMPUTE] == 45.0
    logs.newest.write_bytes(lines([{"event": "progress", "step": 8, "mono": 120.0}]))
    assert dict(logs.read().spans)[Phase.COMPUTE] == 40.0
    logs.newest.write_bytes(b"")
    assert dict(logs.read().spans)[Phase.COMPUTE] == 40.0


def test_the_newest_progress_is_the_one_in_its_own_file(logs: Logs) -> None:
    assert last_progress(logs.progress) is None
    newest = {"event": "progress", "step": 6, "total": 10, "metrics": {"loss": 0.5}, "at": 3.0, "mono": 118.0}
    logs.newest.write_bytes(lines([newest]))
    assert last_progress(logs.progress) == newest
    logs.progress.write_bytes(lines(PROGRESS))
    assert last_progress(logs.progress) == newest


def test_progress_that_a_script_appends_to_the_lines_is_found_at_their_end(logs: Logs) -> None:
    content = lines([{"event": "progress", "step": n} for n in range(5000)])
    logs.progress.write_bytes(content + b'{"event":"prog')
    newest = last_progress(logs.progress)
    assert newest is not None and newest["step"] == 4999


def test_the_file_of_the_newest_progress_is_never_the_file_of_lines() -> None:
    names = ("/x/progress.jsonl", "/x/log", "/x/log.json", "/x/log.json.jsonl")
    assert [newest_progress(Path(name)).name for name in names] == [
        "progress.json",
        "log.json",
        "log.json.json",
        "log.json.json",
    ]


def make_directory(path: Path) -> None:
    path.mkdir()


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def make_link_to_endless_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


ODD = [make_directory, make_pipe, make_link_to_itself, make_link_to_endless_zeros]


@pytest.mark.parametrize("odd", ODD)
def test_anything_but_a_regular_file_counts_as_missing(logs: Logs, odd: Callable[[Path], None]) -> None:
    logs.write(EVENTS)
    without = logs.read()
    odd(logs.progress)
    odd(logs.newest)
    assert logs.read() == without
    assert last_progress(logs.progress) is None
    logs.events.unlink()
    odd(logs.events)
    assert read_report(logs.events, logs.progress) is None


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ESTALE], ids=errno.errorcode.get)
@pytest.mark.parametrize("call", ["open", "fstat", "pread"])
def test_a_file_that_cannot_be_read_now_counts_as_missing(
    logs: Logs, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    logs.write(EVENTS, PROGRESS)
    logs.newest.write_bytes(lines([{"event": "progress", "step": 6}]))

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    before = len(list(Path("/proc/self/fd").iterdir()))
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        assert read_report(logs.events, logs.progress) is None
        assert last_progress(logs.progress) is None
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert logs.read().logged_outcome is Outcome.CRASHED
    assert last_progress(logs.progress) is not None


def test_the_head_and_the_tail_of_a_huge_log_are_read(logs: Logs) -> None:
    beats = lines([{"event": "beat", "mono": 140.0}]) * (2 * (HEAD_BYTES + TAIL_BYTES) // 30)
    failures = lines([{"event": "save-failed", "step": 6, "why": "x" * 500}] * 10)
    failures *= 2 * (HEAD_BYTES + TAIL_BYTES) // len(failures)
    logs.write(EVENTS, PROGRESS[:4])
    whole = logs.read()
    logs.events.write_bytes(lines(EVENTS[:5]) + beats + lines(EVENTS[5:]))
    logs.progress.write_bytes(lines(PROGRESS[:2]) + failures + lines(PROGRESS[2:4]))
    report = logs.read()
    assert (report.logged_outcome, report.spans, report.host) == (
        whole.logged_outcome,
        whole.spans,
        whole.host,
    )
    assert (report.saves, report.resumed) == (whole.saves, 4)


def test_a_line_across_the_bounds_is_skipped(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_log, "HEAD_BYTES", 40)
    monkeypatch.setattr(attempt_log, "TAIL_BYTES", 40)
    for length in range(60, 200):
        middle = b'{"event":"saved","step":%s1,"mono":2}' % (b" " * length)
        first, last = lines([{"event": "saved", "step": 5}]), lines([{"event": "saved", "step": 7}])
        logs.progress.write_bytes(first + middle + b"\n" + last)
        logs.write(EVENTS[:1])
        assert [save.step for save in logs.read().saves] == [5, 7]

"""Parses the logs of node program and training process into a `Report` of raw facts.

Event logs come from another machine and may be cut anywhere by a kill or a full disk: a line that cannot
be read is skipped, a file that cannot be read counts as missing, and sizes are bounded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outlast.domain import data_costs, untrusted
from outlast.domain.accounts import ItemAccount
from outlast.domain.model import Outcome, Phase
from outlast.domain.observation import Report, Save, Saved
from outlast.exchange.combined_legs import LONGEST_WHY, combine
from outlast.node import claim, jsonl
from outlast.node.jsonl import JsonLinesReader
from outlast.node.legs import Leg, claimed, possible_legs
from outlast.node.progress_file import newest_progress_path
from outlast.node.protocol import STOP_SIGNALLED
from outlast.node.sandbox import layout
from outlast.untrusted_files import open_file

#: Only the head and the tail of a larger file are read. A node program that runs for a week writes 3 MB.
HEAD_BYTES = 2 * 2**20
TAIL_BYTES = 2 * 2**20
#: The bytes and lines that are read of all logs of an attempt together, and of each log after that.
MOST_BYTES = 16 * 2**20
LEAST_BYTES = 8192
MOST_LINES = 150_000
LEAST_LINES = 100
#: How much of the end of the output is kept, in characters.
LONGEST_TAIL = 5000
#: How much of a script's own log is searched for progress, from its end.
PROGRESS_TAIL_BYTES = 8192
#: The longest file with the newest progress, or with what is being fetched, that is read.
NEWEST_BYTES = 65536
NEWEST_LINES = 100
#: How much of the end of each log `glance` reads.
GLANCE_BYTES = 8192
#: How many saves of an attempt the journal keeps.
MOST_SAVES = 20


def log_directory(exchange: Path) -> Path:
    """Return the directory with the files of an attempt's job.

    Without a shared file system these came back with the job or, until then, were sent by it while it ran.
    """
    back, news = exchange / layout.TRAVEL, Path(layout.news_path(str(exchange)))
    if _exists(back / "claim.json"):
        return back
    return news if _exists(news) else exchange


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False  # nothing there can be read this time


def progress_of(exchange: Path) -> Mapping[str, Any] | None:
    """Return the newest progress that the training logged in the last start of the attempt's job."""
    leg = _last_leg(exchange)
    return last_progress(Path(leg.progress_path)) if leg else None


def fetching_of(exchange: Path) -> Mapping[str, Any] | None:
    """Return the newest log line about the data that the last start of the attempt's job waits for."""
    leg = _last_leg(exchange)
    log = _read(Path(leg.fetching_path), NEWEST_BYTES, 0, NEWEST_LINES) if leg else None
    return next(log.lines(), None) if log else None


def _last_leg(exchange: Path) -> Leg | None:
    try:
        held = [leg for leg, holder in claimed(str(log_directory(exchange))) if not holder.fenced]
    except OSError:
        return None  # unreadable now; the next poll tries again
    return held[-1] if held else None


@dataclass(frozen=True)
class Glance:
    """What the last start of a job has logged, from the ends of its logs alone."""

    #: The number of the start, from 1.
    leg: int
    host: str
    #: When it claimed its attempt, and when it last wrote to a log (wall clock).
    claimed: float | None
    last_logged: float
    #: How it ended; None: it has not logged an end.
    outcome: Outcome | None = None
    detail: str = ""
    #: The newest step that it saved.
    step: int | None = None


def glance(exchange: Path) -> Glance | None:
    """Return what the last start of a job has logged; None if no job has claimed the attempt.

    Reads a few kB for each attempt: `status` does this for every run.
    """
    try:
        held = [(leg, holder) for leg, holder in claimed(str(log_directory(exchange))) if not holder.fenced]
    except OSError:
        return None  # unreadable now; the next call tries again
    if not held:
        return None
    leg, holder = held[-1]
    log = _read(Path(leg.events_path), head=0, tail=GLANCE_BYTES)
    if log is not None and not log.last_line() and len(log.content) == GLANCE_BYTES:
        log = _read(Path(leg.events_path), head=0)  # the last line is a long one: the end, with its delivery
    end: Mapping[str, Any] = log.last_line() if log else {}
    facts = _ending(end) if end.get("event") == "end" else {}
    return Glance(
        leg=leg.number,
        host=untrusted.host(holder.host),
        claimed=holder.at or None,
        last_logged=max(
            (log.changed if log else 0.0),
            *(_changed(path) for path in (leg.claim_path, leg.progress_path)),
            _changed(newest_progress_path(leg.progress_path)),
        ),
        outcome=_leg_outcome(facts, log),
        detail=facts.get("detail", ""),
        step=next(
            (step for leg, _ in reversed(held) if (step := _last_saved(Path(leg.progress_path))) is not None),
            None,
        ),
    )


def _leg_outcome(facts: Mapping[str, Any], log: JsonLinesReader | None) -> Outcome | None:
    """Return the outcome in the last line, as `outcomes.of_leg` would decide."""
    outcome: Outcome | None = facts.get("logged_outcome")
    if outcome is not Outcome.CONTINUE or log is None:
        return outcome
    stops = (line for line in log.last_lines() if line.get("event") == "stop")
    return Outcome.EVICTED if _why(next(stops, {})) == STOP_SIGNALLED else outcome


def _last_saved(progress: Path) -> int | None:
    log = _read(progress, head=0, tail=GLANCE_BYTES)
    for line in log.last_lines() if log else ():
        if line.get("event") == "saved":
            return untrusted.integer(line.get("step"))
    return None


def _changed(path: str) -> float:
    try:
        return Path(path).lstat().st_mtime
    except OSError:
        return 0.0


def read_attempt(exchange: Path) -> Report | None:
    """Return the report of the last leg, with those before it; None if no job has claimed the attempt."""
    claimed_legs = []
    for leg in possible_legs(str(exchange)):
        if not _exists(Path(leg.events_path)) and _claimed(Path(leg.claim_path)) is None:
            break
        claimed_legs.append(leg)
    budget = _ReadBudget()
    reports = []
    for leg in reversed(claimed_legs):  # the last one is the most important
        paths = Path(leg.events_path), Path(leg.progress_path)
        report = _read_leg(*paths, budget) or _claimed(Path(leg.claim_path))
        if report is not None:
            reports.append(report)
    if not reports:
        return None
    return combine(reports)


@dataclass
class _ReadBudget:
    """The bytes and lines that may still be read of an attempt's logs."""

    bytes_left: int = MOST_BYTES
    lines_left: int = MOST_LINES

    def read(self, path: Path) -> JsonLinesReader | None:
        """Read a log, or its head and tail as far as the budget goes."""
        share = max(LEAST_BYTES, self.bytes_left) // 2
        most_lines = min(jsonl.MAX_LINES, max(LEAST_LINES, self.lines_left))
        log = jsonl.read(path, min(HEAD_BYTES, share), min(TAIL_BYTES, share), most_lines)
        if log is not None:
            self.bytes_left -= len(log.content)
            self.lines_left -= log.content.count(b"\n")
        return log


def last_lines(log: Path) -> tuple[str, ...]:
    """Return the last lines of what a job printed, as far as the journal keeps them; none if unreadable."""
    try:
        with open_file(log) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LONGEST_TAIL))
            text = file.read(LONGEST_TAIL).decode("utf-8", "replace")
    except OSError:
        return ()
    return _tail(text)


def _tail(text: str) -> tuple[str, ...]:
    return tuple(line[:500] for line in text.splitlines()[-20:])


def _claimed(path: Path) -> Report | None:
    """Return the report of a node program that has claimed its leg and logged nothing yet."""
    try:
        held = claim.read(str(path))
        last_logged = path.stat().st_mtime
    except OSError:
        return None  # nothing can be read this time
    if held is None or held.fenced:
        return None
    return Report(last_logged=last_logged, host=untrusted.host(held.host))


def read_report(events: Path, progress: Path) -> Report | None:
    """Read one leg. None if the node has logged nothing, or its log cannot be read now."""
    return _read_leg(events, progress, _ReadBudget())


def _read_leg(events: Path, progress: Path, budget: _ReadBudget) -> Report | None:
    log = budget.read(events)
    if log is None:
        return None
    facts: dict[str, Any] = {"last_logged": log.changed}
    begins: list[tuple[Phase, float]] = []
    changes: list[float] = []
    data: list[ItemAccount] = []
    snapshot_notes: list[str] = []
    file_notes: list[str] = []
    fetching: Mapping[str, Any] | None = None
    last = 0.0
    for line in log.lines():
        mono = untrusted.seconds(line.get("mono"))
        if mono is None:
            continue
        last = max(last, mono)
        match line.get("event"):
            case "claimed":
                facts.update(claimed=_number(line.get("at")), host=untrusted.host(line.get("host")))
            case "phase":
                phase = _phase(line.get("phase"))
                if phase:
                    begins.append((phase, mono))
            case "changed":
                changes.append(mono)
            case "snapshot":
                snapshot_notes.append(untrusted.text(line.get("text"), LONGEST_WHY))
            case "files":
                file_notes.append(untrusted.text(line.get("text"), LONGEST_WHY))
            case "fetching":
                fetching = line
            case "data":
                fetching = None
                data.append(data_costs.read_item(line))
            case "beat" | "exit":
                facts.update(_usage(line))
            case "stop":
                facts["stopped_by"] = _why(line)
            case "end":
                facts.update(_ending(line))
    compute_began = next((mono for phase, mono in begins if phase is Phase.COMPUTE), last)
    training_logged, training = _training(progress, compute_began, budget)
    if begins and begins[-1][0] is Phase.COMPUTE:
        # The training was at work after the node program's last line.
        last = max(last, training_logged)
    # A log may be cut before its first phase: then it has an end and no beginning.
    ends = [mono for _, mono in begins[1:]] + [last]
    spans: dict[Phase, float] = {}
    for (phase, mono), end in zip(begins, ends, strict=False):
        spans[phase] = spans.get(phase, 0.0) + max(0.0, end - mono)
    facts["spans"] = tuple(spans.items())
    if fetching is not None:
        # It was killed while the data was in transfer.
        waited = max(0.0, last - _number(fetching.get("mono")))
        data.append(data_costs.read_item({**fetching, "arrived": False, "waited": waited}))
    facts["data"] = tuple(data[-data_costs.MOST :])
    if facts.get("started_over"):
        changes.clear()  # it has written the same again
    facts["changed"] = bool(changes) or facts.get("changed", False)
    facts.update(training)
    facts["notes"] = (*snapshot_notes[-3:], *file_notes[-5:], *training["notes"])
    if not facts.get("saves"):
        facts["saves"] = tuple(Save(max(0.0, mono - compute_began), None) for mono in changes[-MOST_SAVES:])
    return Report(**facts)


def newest_progress(progress: Path) -> Path:
    """Return the file with the newest progress; `progress` is the log beside it."""
    return Path(newest_progress_path(str(progress)))


def last_progress(progress: Path) -> Mapping[str, Any] | None:
    """Return the newest progress that the training logged; `progress` is the file of its lines.

    A script without `import outlast` may append progress to the lines: it is found at their end.
    """
    for log in (_read_newest(progress), _read(progress, head=0, tail=PROGRESS_TAIL_BYTES)):
        found = [line for line in log.lines() if line.get("event") == "progress"] if log else []
        if found:
            return found[-1]
    return None


def _training(progress: Path, compute_began: float, budget: _ReadBudget) -> tuple[float, dict[str, Any]]:
    """Return when the training last logged anything, and the facts from all that it logged."""
    facts: dict[str, Any] = {"loaded": False, "saving": 0.0}
    saved: Saved | None = None
    newest = _read_newest(progress)
    last = max((_number(line.get("mono")) for line in newest.lines()), default=0.0) if newest else 0.0
    saves: list[Save] = []
    notes: list[str] = []
    log = budget.read(progress)
    for line in log.lines() if log else ():
        step = untrusted.integer(line.get("step"))
        last = max(last, _number(line.get("mono")))
        match line.get("event"):
            case "loaded" if not facts["loaded"]:
                # A later load is by another process of the attempt, such as an evaluation.
                facts.update(loaded=True, resumed=step)
            case "saved":
                seconds, blocked = _cost(line)
                facts["saving"] += blocked
                # What was computed while it was being written is not in it.
                holds = _number(line.get("mono")) - (seconds - blocked) - compute_began
                saves.append(Save(max(0.0, holds), step))
                saved = _add(saved, seconds, _why(line))
            case "left" if saves:
                # The training waited until its last save was durable: nothing was computed in that time.
                waited = max(0.0, _number(line.get("waited")))
                facts["saving"] += waited
                saves[-1] = replace(saves[-1], offset=saves[-1].offset + waited)
            case "aside":
                name = untrusted.text(line.get("name"), LONGEST_WHY)
                notes.append("checkpoint %s was put aside: %s" % (name, _why(line)))
            case "save-failed":
                notes.append("saving step %s failed: %s" % (step, _why(line)))
    facts.update(saves=tuple(saves[-MOST_SAVES:]), saved=saved, notes=tuple(notes[-5:]))
    return last, facts


def _why(line: Mapping[str, Any]) -> str:
    return untrusted.text(line.get("why"), LONGEST_WHY)


def _cost(line: Mapping[str, Any]) -> tuple[float, float]:
    """Return the seconds until a save was durable, and those the training waited (all, if not logged)."""
    seconds = max(0.0, _number(line.get("seconds")))
    blocked = untrusted.seconds(line.get("blocked"))
    return seconds, seconds if blocked is None else min(max(0.0, blocked), seconds)


def _add(before: Saved | None, seconds: float, why: str) -> Saved:
    before = before or Saved(0, 0.0, 0.0)
    return Saved(before.times + 1, before.seconds + seconds, max(before.slowest, seconds), why or before.why)


def _usage(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the training has used so far, as far as a line has it."""
    cpu, gpu = untrusted.seconds(line.get("cpu")), untrusted.seconds(line.get("gpu"))
    used = {
        "cpu": None if cpu is None else max(0.0, cpu),
        "resident": untrusted.integer(line.get("memory")),
        "gpu": None if gpu is None else min(1.0, max(0.0, gpu)),
    }
    return {name: value for name, value in used.items() if value is not None}


def _ending(line: Mapping[str, Any]) -> dict[str, Any]:
    try:
        outcome = Outcome(untrusted.text(line.get("outcome"), 100))
    except ValueError:
        return {}
    delivered = line.get("delivered")
    return {
        "logged_outcome": outcome,
        "detail": untrusted.text(line.get("detail"), 2000).rstrip("."),
        "code": untrusted.integer(line.get("code"), -(2**31)),
        "signal": untrusted.integer(line.get("signal")),
        "signature": untrusted.text(line.get("signature"), 200) or None,
        "lasting": line.get("lasting") is True,
        "tail": _tail(untrusted.text(line.get("tail"), TAIL_BYTES)[-LONGEST_TAIL:]),
        "changed": bool(line.get("progressed")),
        "made": line.get("made") is True,
        "started_over": line.get("started_over") is True,
        "go_back": untrusted.integer(line.get("go_back")),
        "unsure": bool(line.get("unsure")),
        "delivered": delivered if isinstance(delivered, dict) else None,
        "delivered_total": _read_total(line.get("delivered_total")),
    }


def _read_total(value: object) -> tuple[int, int] | None:
    if not isinstance(value, dict):
        return None
    files, size = untrusted.integer(value.get("files")), untrusted.integer(value.get("bytes"))
    return None if files is None or size is None else (files, size)


def _phase(value: object) -> Phase | None:
    try:
        return Phase(untrusted.text(value, 100))
    except ValueError:
        return None


def _number(value: object) -> float:
    return untrusted.seconds(value) or 0.0


def _read_newest(progress: Path) -> JsonLinesReader | None:
    return _read(newest_progress(progress), NEWEST_BYTES, 0, NEWEST_LINES)


def _read(
    path: Path, head: int | None = None, tail: int | None = None, most_lines: int = jsonl.MAX_LINES
) -> JsonLinesReader | None:
    head = HEAD_BYTES if head is None else head
    return jsonl.read(path, head, TAIL_BYTES if tail is None else tail, most_lines)

"""Requests to the controller: files that `submit`, `cancel` and `retry` leave, whoever holds the journal.

A request is durable before the command that made it returns. The controller records what follows from it
together with its name, then removes the file; doing it twice changes nothing.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.controller.crashpoints import reach
from outlast.domain.model import EntryKind, JournalEntry, RunPlan, RunState, Spec
from outlast.errors import NotWritable
from outlast.filesystem import write_durably
from outlast.journal.codec import dump, read_spec
from outlast.journal.journal import Journal

MOST_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Submit:
    spec: Spec
    runs: tuple[RunPlan, ...]


@dataclass(frozen=True)
class Cancel:
    #: None: all.
    runs: tuple[str, ...] | None
    reason: str


@dataclass(frozen=True)
class Retry:
    spec: Spec
    runs: tuple[str, ...]


Request = Submit | Cancel | Retry


@dataclass(frozen=True)
class Inbox:
    directory: Path

    def put(self, request: Request) -> str:
        """Returns when the request can no longer be lost."""
        name = "%d-%s.json" % (time.time_ns(), secrets.token_hex(4))
        content = {"kind": type(request).__name__.lower(), **request.__dict__}
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_durably(self.directory / name, dump(content).encode())
        except OSError as error:
            raise NotWritable(
                "%s: the request could not be written (%s); nothing was submitted"
                % (self.directory, error.strerror)
            ) from error
        reach("submit.requested")
        return name

    def names(self) -> list[str]:
        return sorted(path.name for path in self.directory.glob("[0-9]*.json") if path.exists())

    def read(self) -> Iterator[tuple[str, Request | None]]:
        """The requests in their order; None for a file that is none."""
        for name in self.names():
            path = self.directory / name
            try:
                if path.stat().st_size > MOST_BYTES:
                    yield name, None
                    continue
                yield name, _parse(json.loads(path.read_bytes()))
            except FileNotFoundError:
                continue
            except (ValueError, TypeError, KeyError, IsADirectoryError, PermissionError):
                yield name, None

    def remove(self, name: str) -> None:
        (self.directory / name).unlink(missing_ok=True)

    def put_aside(self, name: str) -> Path:
        """Out of the way, for a person to look at."""
        target = self.directory / (name + ".unreadable")
        (self.directory / name).replace(target)
        return target


def _parse(raw: Mapping[str, Any]) -> Request:
    match raw["kind"]:
        case "submit":
            plans = tuple(RunPlan(_text(plan["name"]), dict(plan["params"])) for plan in raw["runs"])
            return Submit(read_spec(json.dumps(raw["spec"])), plans)
        case "cancel":
            names = None if raw["runs"] is None else tuple(map(_text, raw["runs"]))
            return Cancel(names, str(raw["reason"]))
        case "retry":
            return Retry(read_spec(json.dumps(raw["spec"])), tuple(map(_text, raw["runs"])))
    raise ValueError("no such request")


def _text(value: object) -> str:
    """A run's name becomes the name of directories."""
    if not isinstance(value, str) or not value or value[0] == "." or "/" in value or "\0" in value:
        raise TypeError("not a name: %r" % value)
    return value


# What follows from the requests in the inbox: who was added, who is to be cancelled or tried again.
def take_requests(journal: Journal, inbox: Inbox, now: float) -> list[str]:
    """Put the requests that are waiting into the journal; notes for people about those that were none."""
    notes: list[str] = []
    for name, request in inbox.read():
        if request is None:
            notes.append("%s could not be read as a request" % inbox.put_aside(name))
            continue
        if not journal.has_request(name):
            elsewhere = "" if isinstance(request, Cancel) else under_way_elsewhere(journal, request.spec)
            if elsewhere:
                notes.append("a request was refused: %s" % elsewhere)
            entries = [] if elsewhere else _consequences(journal, request, now)
            journal.take_request(name, now, entries)
            reach("submit.recorded")
        inbox.remove(name)
        reach("submit.removed")
    return notes


def under_way_elsewhere(journal: Journal, spec: Spec) -> str:
    """One experiment is on one cluster at a time: jobs on the one before would be out of sight."""
    for run in journal.live().values():
        before = journal.spec(run.spec)
        if before.cluster != spec.cluster:
            return (
                "run %s is under way on cluster %s; wait for it or `outlast cancel --all` before "
                "submitting to %s" % (run.name, before.cluster, spec.cluster)
            )
    return ""


def _consequences(journal: Journal, request: Request, now: float) -> list[JournalEntry]:
    match request:
        case Submit(spec, plans):
            number = journal.add_spec(spec)
            known = set(journal.names())
            fresh = [plan for plan in plans if plan.name not in known]
            return [
                JournalEntry(now, plan.name, EntryKind.ADDED, None, {
                    "position": len(known) + index, "spec": number, "params": dict(plan.params),
                })
                for index, plan in enumerate(fresh)
            ]  # fmt: skip
        case Cancel(names, reason):
            chosen = list(journal.live()) if names is None else names
            return [
                JournalEntry(now, run.name, EntryKind.CANCEL_ASKED, None, {"reason": reason})
                for run in map(journal.run, chosen)
                if run is not None and run.state in (RunState.WAITING, RunState.ACTIVE)
            ]
        case Retry(spec, names):
            number = journal.add_spec(spec)
            return [
                JournalEntry(now, run.name, EntryKind.RETRIED, None, {"spec": number})
                for run in map(journal.run, names)
                if run is not None and run.state in (RunState.FAILED, RunState.CANCELLED)
            ]

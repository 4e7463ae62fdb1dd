"""The inbox: requests to the controller, as files that `submit`, `cancel`, `retry` and `accept` write.

A request is durable before the command returns. The controller records the resulting entries together with
the name of the request, then removes the file; processing it twice changes nothing.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.controller.crashpoints import reach
from outlast.controller.type_check import check_types
from outlast.controller.waiting_requests import waiting_requests
from outlast.domain.alike_failures import has_begun
from outlast.domain.model import EntryKind, JournalEntry, Outcome, Run, RunPlan, RunState, Spec
from outlast.errors import NotWritable
from outlast.filesystem import describe_error, write_durably
from outlast.journal.codec import dump, read_spec
from outlast.journal.journal import Journal
from outlast.untrusted_files import parse_json, read_file

#: A larger file is not read as a request.
MOST_BYTES = 256 * 2**20
#: So many runs are looked up one by one.
_FEW = 100
#: Errors that are no fault of the file.
_PASSING = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


@dataclass(frozen=True)
class Submit:
    """A request to add runs."""

    spec: Spec
    runs: tuple[RunPlan, ...]


@dataclass(frozen=True)
class Cancel:
    """A request to cancel runs."""

    #: None: all runs that are not over.
    runs: tuple[str, ...] | None
    reason: str


@dataclass(frozen=True)
class Retry:
    """A request to retry failed, cancelled or held-back runs; with `again`, finished ones too."""

    spec: Spec
    runs: tuple[str, ...]
    again: bool = False
    #: The runs that are held back, too.
    held_back: bool = False
    #: What these runs had saved was moved aside.
    from_scratch: bool = False


@dataclass(frozen=True)
class Accept:
    """A request to take the outputs of failed runs, which failed their checks, as results."""

    runs: tuple[str, ...]


@dataclass(frozen=True)
class Resume:
    """A request to start the runs that are held back, as they were submitted."""

    #: None: all of them.
    runs: tuple[str, ...] | None = None


Request = Submit | Cancel | Retry | Resume | Accept


@dataclass(frozen=True)
class Inbox:
    """The directory with the requests, oldest first by name."""

    directory: Path

    def put(self, request: Request) -> str:
        """Write a request durably and return its name. Raise NotWritable."""
        name = "%d-%s.json" % (time.time_ns(), os.urandom(4).hex())
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
        """Return the names of the waiting requests, oldest first."""
        return waiting_requests(self.directory)

    def read(self) -> Iterator[tuple[str, Request | None]]:
        """Yield name and content of the requests, oldest first; None for a file that is not a request."""
        for name in self.names():
            path = self.directory / name
            try:
                yield name, _parse(parse_json(read_file(path, MOST_BYTES)))
            except FileNotFoundError:
                continue
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                yield name, None
            except OSError as error:
                if error.errno not in _PASSING:  # a later pass reads it
                    yield name, None

    def remove(self, name: str) -> None:
        """Remove a request. Raise OSError."""
        (self.directory / name).unlink(missing_ok=True)

    def put_aside(self, name: str) -> Path:
        """Rename a file that is not a request, so that the user can inspect it; return the new path.

        Raise OSError.
        """
        target = self.directory / (name + ".unreadable")
        (self.directory / name).replace(target)
        return target


def _parse(raw: Mapping[str, Any]) -> Request:
    request = _build(raw)
    check_types(request)
    return request


def _build(raw: Mapping[str, Any]) -> Request:
    match raw["kind"]:
        case "submit":
            plans = tuple(RunPlan(_text(plan["name"]), dict(plan["params"])) for plan in raw["runs"])
            return Submit(read_spec(json.dumps(raw["spec"])), plans)
        case "cancel":
            names = None if raw["runs"] is None else tuple(map(_text, raw["runs"]))
            return Cancel(names, str(raw["reason"]))
        case "retry":
            names = tuple(map(_text, raw["runs"]))
            flags = [raw.get(name) is True for name in ("again", "held_back", "from_scratch")]
            return Retry(read_spec(json.dumps(raw["spec"])), names, *flags)
        case "resume":
            return Resume(None if raw["runs"] is None else tuple(map(_text, raw["runs"])))
        case "accept":
            return Accept(tuple(map(_text, raw["runs"])))
    raise ValueError("unknown kind of request")


def _text(value: object) -> str:
    """Return the name of a run. Raise TypeError if it cannot be the name of a directory."""
    if not isinstance(value, str) or not value or value[0] == "." or "/" in value or "\0" in value:
        raise TypeError("not a name: %r" % value)
    return value


def process_requests(journal: Journal, inbox: Inbox, now: float) -> list[str]:
    """Record the waiting requests in the journal; return notes about refused and unreadable ones."""
    notes: list[str] = []
    for name, request in inbox.read():
        try:
            if request is None:
                notes.append("%s could not be read as a request" % inbox.put_aside(name))
                continue
            if not journal.has_request(name):
                spec = request.spec if isinstance(request, (Submit, Retry)) else None
                elsewhere = under_way_elsewhere(journal, spec) if spec is not None else ""
                if elsewhere:
                    notes.append("a request was refused: %s" % elsewhere)
                entries = [] if elsewhere else _entries_for(journal, request, now)
                journal.record_request(name, now, entries)
                reach("submit.recorded")
            inbox.remove(name)
            reach("submit.removed")
        except OSError as error:
            # It stays where it is. If it was recorded, the journal knows its name, and it has no effect.
            notes.append("a request cannot be removed from the inbox: %s" % describe_error(error))
    return notes


def cancel_without_inbox(journal: Journal, request: Cancel, now: float) -> None:
    """Record a cancellation that could not be put into the inbox."""
    journal.append(_entries_for(journal, request, now))


def under_way_elsewhere(journal: Journal, spec: Spec) -> str:
    """Return why `spec` cannot be submitted now; empty if it can.

    All live runs of an experiment are on one cluster: jobs on another cluster would not be polled.
    """
    for run in journal.live().values():
        before = journal.spec(run.spec)
        if before.cluster != spec.cluster:
            return (
                "run %s is under way on cluster %s; wait for it or type `outlast cancel --all` before "
                "submitting to %s" % (run.name, before.cluster, spec.cluster)
            )
    return ""


def _entries_for(journal: Journal, request: Request, now: float) -> list[JournalEntry]:
    """Return the entries that follow from a request."""
    match request:
        case Submit(spec, plans):
            number = journal.add_spec(spec)
            known, position = _known(journal, plans)
            fresh = [plan for plan in plans if plan.name not in known]
            return [
                JournalEntry(now, plan.name, EntryKind.ADDED, None, {
                    "position": position + index, "spec": number, "params": dict(plan.params),
                })
                for index, plan in enumerate(fresh)
            ]  # fmt: skip
        case Cancel(names, reason):
            chosen = list(journal.live()) if names is None else names
            entries: list[JournalEntry] = []
            for run in map(journal.run, chosen):
                if run is None or run.state.over:
                    continue
                entries.append(JournalEntry(now, run.name, EntryKind.CANCEL_ASKED, None, {"reason": reason}))
                if run.attempts == 0:  # nothing has to be cancelled or looked at first
                    entries.append(JournalEntry(now, run.name, EntryKind.CANCELLED, None, {"reason": reason}))
            return entries
        case Retry(spec, names, again, held_back, from_scratch):
            number = journal.add_spec(spec)
            states = [RunState.FAILED, RunState.CANCELLED, RunState.HELD_BACK]
            states += [RunState.FINISHED] if again else []
            others = [run.name for run in _not_begun(journal) if held_back]
            data = {"spec": number, **({"from_scratch": True} if from_scratch else {})}
            return [
                JournalEntry(now, run.name, EntryKind.RETRIED, None, data)
                for run in map(journal.run, dict.fromkeys([*names, *others]))
                if run is not None and run.state in states
            ]
        case Accept(names):
            return [
                JournalEntry(
                    now,
                    run.name,
                    EntryKind.ACCEPTED,
                    run.last.token,
                    {"reason": "accepted by the user", "by": "user"},
                )
                for run in map(journal.run, names)
                if run is not None and run.last is not None and can_accept(run)
            ]
        case Resume(names):
            return [
                JournalEntry(now, run.name, EntryKind.RESUMED)
                for run in _not_begun(journal)
                if names is None or run.name in names
            ]


def _known(journal: Journal, plans: Sequence[RunPlan]) -> tuple[Container[str], int]:
    """Return the names of runs among which those of `plans` are known, and the number of all runs."""
    if len(plans) > _FEW:
        names = journal.names()
        return set(names), len(names)
    # Submitting one run after the other must not take longer with each.
    known = {plan.name for plan in plans if journal.run(plan.name) is not None}
    return known, sum(journal.counts().values())


def can_accept(run: Run) -> bool:
    """Return True if the user may take the outputs of a run that failed because of them as its result."""
    is_rejected = run.last is not None and run.last.outcome is Outcome.WRONG_OUTPUT
    return run.state is RunState.FAILED and is_rejected


def _not_begun(journal: Journal) -> list[Run]:
    """Return the runs that are held back, or that would be: those that have not begun."""
    states = (RunState.WAITING, RunState.ACTIVE)
    return [
        run
        for run in journal.live().values()
        if run.state is RunState.HELD_BACK or (run.state in states and not has_begun(run))
    ]

"""Requests are durable when the command returns and are read in order; garbage is skipped."""

from __future__ import annotations

import copy
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.controller.inbox import Cancel, Inbox, Resume, Retry, Submit, process_requests
from outlast.domain.model import (
    EntryKind,
    JournalEntry,
    Limits,
    OutputRule,
    Removal,
    Run,
    RunPlan,
    RunState,
    Spec,
)
from outlast.errors import NotWritable
from outlast.journal.codec import dump
from outlast.journal.journal import Journal
from outlast.journal.lease import Lease

SPEC = Spec(
    "digits",
    "python train.py --lr {lr}",
    code=("train.py",),
    outputs=(OutputRule("m.json", key="accuracy", at_least=0.9), OutputRule("m", check=("true",))),
    limits=Limits(attempts=7),
)
SUBMIT = Submit(SPEC, (RunPlan("a", {"lr": "1e-3"}), RunPlan("b", {"lr": "1e-2"})))


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    return Inbox(tmp_path / "params" / "inbox")


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    journal = Journal(tmp_path / "journal.sqlite", create=True)
    Lease(journal, "test").acquire()
    return journal


def test_an_inbox_that_was_never_written_is_empty(inbox: Inbox) -> None:
    assert list(inbox.read()) == []


def test_requests_are_read_as_they_were_written_in_order(inbox: Inbox) -> None:
    requests = [SUBMIT, Cancel(None, "all"), Cancel(("a",), "one"), Retry(SPEC, ("a", "b"))]
    requests.append(Retry(SPEC, ("a",), from_scratch=True))
    names = [inbox.put(request) for request in requests]
    assert list(inbox.read()) == list(zip(names, requests, strict=True))


def test_a_request_is_synced_and_whole_before_the_command_returns(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        synced.append(Path("/proc/self/fd/%d" % descriptor).readlink())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    name = inbox.put(SUBMIT)
    assert name in synced[0].name and synced[1:] == [inbox.directory]
    assert [path.name for path in inbox.directory.iterdir()] == [name]


def test_a_request_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "params").write_text("a file where a folder should be")
    with pytest.raises(NotWritable, match="nothing was submitted"):
        Inbox(tmp_path / "params" / "inbox").put(SUBMIT)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'{"kind":"dance"}', b'{"kind":"submit"}', b"\xff\xfe", b'"x"']
)
def test_garbage_is_renamed_and_the_other_requests_are_processed(
    inbox: Inbox, journal: Journal, content: bytes
) -> None:
    inbox.directory.mkdir(parents=True)
    (inbox.directory / "1-garbage.json").write_bytes(content)
    inbox.put(SUBMIT)
    [note] = process_requests(journal, inbox, 1.0)
    assert "1-garbage.json.unreadable" in note
    assert (inbox.directory / "1-garbage.json.unreadable").read_bytes() == content
    assert journal.names() == ["a", "b"] and inbox.names() == []


@pytest.mark.parametrize("method", ["unlink", "replace"])
def test_an_inbox_that_cannot_be_written_does_not_stop_the_controller_and_a_request_counts_once(
    inbox: Inbox, journal: Journal, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    name = inbox.put(SUBMIT)
    (inbox.directory / "9-garbage.json").write_bytes(b"{")

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, method, refuse)
    for _ in range(2):
        notes = process_requests(journal, inbox, 1.0)
        assert any("Permission denied" in note for note in notes)
    assert journal.names() == ["a", "b"] and journal.has_request(name)


def test_half_written_and_unrelated_files_are_no_requests(inbox: Inbox) -> None:
    inbox.directory.mkdir(parents=True)
    for name in (".1-x.json.12.tmp", "notes.txt", "1-x.json.unreadable"):
        (inbox.directory / name).write_text("{}")
    assert list(inbox.read()) == []


def test_a_request_that_was_recorded_but_not_removed_is_not_processed_again(
    inbox: Inbox, journal: Journal
) -> None:
    name = inbox.put(SUBMIT)
    kept = (inbox.directory / name).read_bytes()
    process_requests(journal, inbox, 1.0)
    (inbox.directory / name).write_bytes(kept)
    entries = journal.last_entry()
    process_requests(journal, inbox, 2.0)
    assert journal.last_entry() == entries and inbox.names() == []


def test_submitting_a_known_run_again_adds_only_the_new_ones(inbox: Inbox, journal: Journal) -> None:
    inbox.put(SUBMIT)
    inbox.put(Submit(SPEC, (RunPlan("b"), RunPlan("c"))))
    process_requests(journal, inbox, 1.0)
    assert [(run.name, run.position) for run in journal.runs()] == [("a", 0), ("b", 1), ("c", 2)]


def test_cancel_and_retry_change_only_runs_in_a_suitable_state(inbox: Inbox, journal: Journal) -> None:
    inbox.put(SUBMIT)
    inbox.put(Cancel(("a", "nobody"), "enough"))
    inbox.put(Retry(SPEC, ("b", "nobody")))
    process_requests(journal, inbox, 1.0)
    states = {run.name: (run.state, run.cancel_asked) for run in journal.runs()}
    # A run that was never started has nothing to wait for.
    assert states == {"a": (RunState.CANCELLED, "enough"), "b": (RunState.WAITING, "")}
    inbox.put(Cancel(None, "all"))
    process_requests(journal, inbox, 2.0)
    assert all(run.cancel_asked for run in journal.runs())


@pytest.mark.parametrize("name", ["../out", "a/b", ".hidden", "", "a\0b", 7])
def test_a_run_name_that_cannot_be_a_directory_is_no_request(inbox: Inbox, name: object) -> None:
    inbox.directory.mkdir(parents=True, exist_ok=True)
    content = {"kind": "cancel", "runs": [name], "reason": "x"}
    (inbox.directory / "1-a.json").write_text(json.dumps(content))
    assert list(inbox.read()) == [("1-a.json", None)]


def test_a_broken_link_is_no_request(inbox: Inbox) -> None:
    inbox.directory.mkdir(parents=True, exist_ok=True)
    (inbox.directory / "1-a.json").symlink_to("nowhere")
    assert inbox.names() == []


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a JSON document."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places(each, (*path, key))


def replace_at(value: Any, path: tuple[Any, ...], new: object) -> Any:
    if not path:
        return new
    changed = copy.copy(value)
    changed[path[0]] = replace_at(value[path[0]], path[1:], new)
    return changed


REQUEST = json.loads(dump({"kind": "submit", "spec": SPEC, "runs": [RunPlan("a", {"lr": "1"})]}))


@pytest.mark.parametrize("value", [[[]], "\ud800", float("nan"), True], ids=ascii)
def test_a_request_with_a_value_of_a_wrong_type_anywhere_is_no_request(inbox: Inbox, value: object) -> None:
    """What the journal has accepted, every later pass of the controller has to use."""
    inbox.directory.mkdir(parents=True)
    file = inbox.directory / "1-a.json"
    for path in places(REQUEST):
        if value is True and path[-1:] in (("start_over",), ("hold_back",)):
            continue  # the right type
        file.write_text(json.dumps(replace_at(REQUEST, path, value)))
        ((_, request),) = inbox.read()
        assert request is None, path
    file.write_text(json.dumps(REQUEST))
    ((_, request),) = inbox.read()
    assert request == Submit(SPEC, (RunPlan("a", {"lr": "1"}),))


@pytest.mark.parametrize("depth", [300, 900, 990, 5000, 100_000])
def test_a_request_that_is_nested_deeply_does_not_stop_the_controller(
    inbox: Inbox, journal: Journal, depth: int
) -> None:
    inbox.directory.mkdir(parents=True)
    text = json.dumps(replace_at(REQUEST, ("spec", "profile"), "HERE"))
    nested = text.replace('"HERE"', '{"a":' * depth + "1" + "}" * depth)
    (inbox.directory / "1-a.json").write_text(nested)
    process_requests(journal, inbox, 1.0)
    assert inbox.names() == []


def removed_by_another(journal: Journal, inbox: Inbox) -> Run:
    """Let run a be held back because another user removed its job, and run b be active."""
    inbox.put(SUBMIT)
    process_requests(journal, inbox, 1.0)
    end = {"outcome": "cancelled", "detail": "by uid 0", "removed": "other", "account": {"slot": 9.0}}
    for name in ("a", "b"):
        token = "t" + name
        journal.append(
            [
                JournalEntry(2.0, name, EntryKind.INTENDED, token, {"number": 1}),
                JournalEntry(3.0, name, EntryKind.QUEUED, token, {"job": "17"}),
                JournalEntry(4.0, name, EntryKind.STARTED, token, {"host": "n1", "started": 4.0}),
            ]
        )
    journal.append(
        [
            JournalEntry(5.0, "a", EntryKind.ENDED, "ta", end),
            JournalEntry(6.0, "a", EntryKind.HELD_BACK, None, {"reason": "another user removed its job"}),
        ]
    )
    return run_of(journal, "a")


def run_of(journal: Journal, name: str) -> Run:
    run = journal.run(name)
    assert run is not None
    return run


@pytest.mark.parametrize("names", [None, ("a",), ("a", "b")])
def test_a_run_that_had_begun_and_is_held_back_is_resumed(
    inbox: Inbox, journal: Journal, names: tuple[str, ...] | None
) -> None:
    held = removed_by_another(journal, inbox)
    assert held.ran == 1 and held.state is RunState.HELD_BACK
    inbox.put(Resume(names))
    process_requests(journal, inbox, 7.0)
    for reader in (journal, Journal(journal.path)):
        run = run_of(reader, "a")
        assert (run.state, run.reason, run.since) == (RunState.WAITING, "", 7.0)
        assert run.last is not None and run.last.resumed and run.last.removed is Removal.OTHER


def test_a_request_to_resume_other_runs_leaves_a_held_back_run_as_it_is(
    inbox: Inbox, journal: Journal
) -> None:
    removed_by_another(journal, inbox)
    inbox.put(Resume(("b",)))
    process_requests(journal, inbox, 7.0)
    assert run_of(journal, "a").state is RunState.HELD_BACK


def test_a_retry_of_all_that_failed_releases_a_run_whose_job_another_user_removed(
    inbox: Inbox, journal: Journal
) -> None:
    removed_by_another(journal, inbox)
    inbox.put(Retry(SPEC, (), held_back=True))
    process_requests(journal, inbox, 7.0)
    run = run_of(journal, "a")
    assert (run.state, run.last) == (RunState.WAITING, None)

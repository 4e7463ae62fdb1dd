"""A source that is out, and one that has not got it: who waits, who ends, and what the user is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data_scene import FILES, LOOKING, digests, found, sha256
from laboratory import Lab, open_journal, states
from outlast.journalfile import is_blank
from outlast.model import Attempt, AttemptState, Outcome
from servers.behaviour import PELICAN, Behaviour, seeded
from servers.misbehaving import Misbehaving

CONTENT = seeded(200_000)
#: What an ingress answers while the server behind it restarts.
OUT = Behaviour(status=404, server="")
RUNS = 20
#: Scouts that are turned back before the source comes back.
SCOUTS = 4


@pytest.fixture
def server() -> Iterator[Misbehaving]:
    with Misbehaving({"/a.bin": CONTENT}) as one:
        yield one


def experiment(lab: Lab, url: str, content: bytes = CONTENT, **params: Any) -> Path:
    item = {"url": url, "sha256": sha256(content)}
    directory = lab.experiment("e", FILES, **{**LOOKING, "cluster": "here", "data": [item], **params})
    (directory / "clusters.yaml").write_text(
        "here: {scheduler: local, hosts: {alpha: 2, beta: 2}, transfers: {patience: 1s, stall: 1s}}\n"
    )
    return directory


def attempts(directory: Path) -> list[Attempt]:
    if is_blank(directory / "journal.sqlite"):
        return []
    with open_journal(directory) as journal:
        return list(journal.attempts())


def turned_back(directory: Path) -> list[Attempt]:
    return [one for one in attempts(directory) if one.outcome is Outcome.NOT_FOUND]


def looked_after_by_run(lab: Lab, directory: Path) -> None:
    ended = lab.outlast("run", directory)
    assert ended.returncode == 0, ended.output


def looked_after_by_ticks(lab: Lab, directory: Path) -> None:
    assert lab.outlast("submit", directory).returncode == 0

    def all_over() -> bool:
        done = lab.outlast("tick", directory)
        assert done.returncode == 0, done.output
        return set(states(directory).values()) <= {"finished", "failed", "cancelled"}

    lab.until("the end of all runs", all_over)


@pytest.mark.parametrize("looked_after", [looked_after_by_run, looked_after_by_ticks])
def test_an_outage_costs_twenty_runs_one_try_each_and_then_one_at_a_time(
    lab: Lab, server: Misbehaving, looked_after: Any
) -> None:
    server.always(OUT)
    directory = experiment(lab, server.url("/a.bin"), runs=RUNS, limits={"attempts": 1})
    watched = threading.Thread(target=_end_outage, args=(lab, server, directory))
    watched.start()
    looked_after(lab, directory)
    watched.join()
    assert set(states(directory).values()) == {"finished"}
    wanted = digests({"a.bin": CONTENT})
    assert all(found(directory, run) == wanted for run in states(directory))
    back = turned_back(directory)
    assert RUNS <= len(back) <= RUNS + SCOUTS + 1
    scouts = sorted((one for one in back if one.number > 1), key=lambda one: one.intended)
    for before, after in zip(scouts, scouts[1:], strict=False):
        assert before.ended is not None and before.ended <= after.intended
    assert len(attempts(directory)) == len(back) + RUNS


def _end_outage(lab: Lab, server: Misbehaving, directory: Path) -> None:
    try:
        lab.until("scouts that were turned back", lambda: len(turned_back(directory)) >= RUNS + SCOUTS)
    finally:
        server.always(Behaviour())


@pytest.mark.parametrize(
    "behaviour, pinned, outcome, told",
    [
        (Behaviour(status=404, server=PELICAN), CONTENT, Outcome.NOT_FOUND, "404"),
        (Behaviour(), b"something else", Outcome.CORRUPT_INPUT, "sha256"),
    ],
    ids=["missing", "wrong pin"],
)
def test_what_will_never_be_there_ends_the_run_after_two_attempts_with_the_cause(
    lab: Lab, server: Misbehaving, behaviour: Behaviour, pinned: bytes, outcome: Outcome, told: str
) -> None:
    server.always(behaviour)
    directory = experiment(lab, server.url("/a.bin"), pinned)
    ended = lab.outlast("run", directory)
    assert ended.returncode == 1, ended.output
    assert [one.outcome for one in attempts(directory)] == [outcome] * 2
    print(ended.output)
    for command in ("explain", "status", "report"):
        print(lab.outlast(command, directory).output)
    assert told in lab.outlast("explain", directory / "e").stdout

"""A source that is out, and one that lacks the data: which runs wait or fail, and what the user sees."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.domain.model import Attempt, Outcome
from outlast.journal.sqlite_file import is_blank
from servers.behaviour import PELICAN, Behaviour, seeded
from servers.misbehaving import Misbehaving
from support.data_experiments import FILES, HASH_DATA_KEYS, digests, found, local_experiment, sha256
from support.experiments import Lab, open_journal, states

CONTENT = seeded(200_000)
#: The response of an ingress while the server behind it restarts.
OUT = Behaviour(status=404, server="")
#: Scouts that are turned back before the source comes back.
SCOUTS = 3


@pytest.fixture
def server() -> Iterator[Misbehaving]:
    with Misbehaving({"/a.bin": CONTENT}) as one:
        yield one


def experiment(lab: Lab, url: str, content: bytes = CONTENT, **params: Any) -> Path:
    item = {"url": url, "sha256": sha256(content)}
    transfers = {"patience": "1s", "stall": "1s"}
    profile = {"hosts": {"alpha": 4, "beta": 4}, "transfers": transfers}
    return local_experiment(lab, [item], profile, **params)


def attempts(directory: Path) -> list[Attempt]:
    if is_blank(directory / "journal.sqlite"):
        return []
    with open_journal(directory) as journal:
        return list(journal.attempts())


def turned_back(directory: Path) -> list[Attempt]:
    return [one for one in attempts(directory) if one.outcome is Outcome.NOT_FOUND]


def supervise_by_run(lab: Lab, directory: Path) -> None:
    ended = lab.outlast("run", directory)
    assert ended.returncode == 0, ended.output


def supervise_by_ticks(lab: Lab, directory: Path) -> None:
    assert lab.outlast("submit", directory).returncode == 0

    def all_over() -> bool:
        done = lab.outlast("tick", directory)
        assert done.returncode == 0, done.output
        return set(states(directory).values()) <= {"finished", "failed", "cancelled"}

    lab.until("the end of all runs", all_over)


@pytest.mark.parametrize("supervise, runs", [(supervise_by_run, 20), (supervise_by_ticks, 5)])
def test_an_outage_costs_each_run_one_attempt_and_then_one_scout_at_a_time(
    lab: Lab, server: Misbehaving, supervise: Callable[[Lab, Path], None], runs: int
) -> None:
    server.always(OUT)
    directory = experiment(lab, server.url("/a.bin"), runs=runs, limits={"attempts": 1})
    watched = threading.Thread(target=_end_outage, args=(lab, server, directory, runs + SCOUTS))
    watched.start()
    supervise(lab, directory)
    watched.join()
    assert set(states(directory).values()) == {"finished"}
    wanted = digests({"a.bin": CONTENT})
    assert all(found(directory, run) == wanted for run in states(directory))
    back = turned_back(directory)
    assert runs + SCOUTS <= len(back) <= runs + SCOUTS + 1
    scouts = sorted((one for one in back if one.number > 1), key=lambda one: one.intended)
    for before, after in itertools.pairwise(scouts):
        assert before.ended is not None and before.ended <= after.intended
    assert len(attempts(directory)) == len(back) + runs


def _end_outage(lab: Lab, server: Misbehaving, directory: Path, count: int) -> None:
    try:
        lab.until("scouts that were turned back", lambda: len(turned_back(directory)) >= count)
    finally:
        server.always(Behaviour())


@pytest.mark.parametrize(
    "behaviour, pinned, outcome, cause, advice",
    [
        (Behaviour(status=404, server=PELICAN), CONTENT, Outcome.NOT_FOUND, "404", "`outlast data check"),
        (Behaviour(), b"something else", Outcome.CORRUPT_INPUT, "sha256", "`outlast data pin"),
    ],
    ids=["missing", "wrong pin"],
)
def test_permanently_missing_data_fails_the_run_after_two_attempts_with_the_cause(
    lab: Lab,
    server: Misbehaving,
    behaviour: Behaviour,
    pinned: bytes,
    outcome: Outcome,
    cause: str,
    advice: str,
) -> None:
    server.always(behaviour)
    directory = experiment(lab, server.url("/a.bin"), pinned)
    ended = lab.outlast("run", directory)
    assert ended.returncode == 1, ended.output
    assert [one.outcome for one in attempts(directory)] == [outcome] * 2
    explained = lab.outlast("explain", directory / "e").stdout
    assert cause in explained and cause in lab.outlast("status", directory).stdout
    assert advice in explained and advice in ended.output
    # The advice helps.
    server.always(Behaviour())
    item = {"url": server.url("/a.bin"), "sha256": sha256(CONTENT)}
    lab.params(directory, **HASH_DATA_KEYS, name="e", cluster="here", data=[item], code=list(FILES))
    assert lab.outlast("retry", "e", "-C", directory).returncode == 0
    assert lab.outlast("up", directory).returncode == 0
    assert found(directory, "e") == digests({"a.bin": CONTENT})

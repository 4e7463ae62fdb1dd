"""Exactly one side holds an attempt: a job that claimed it, or the controller that fenced it."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from outlast.node import claim


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_first_claim_holds_and_a_second_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "claim.json")
    assert claim.acquire(path, "token", "17", "alpha")
    assert not claim.acquire(path, "token", "18", "beta")
    holder = claim.read(path)
    assert holder is not None
    assert (holder.token, holder.job, holder.host, holder.pid) == ("token", "17", "alpha", os.getpid())
    assert not holder.fenced
    assert _names(tmp_path) == ["claim.json"]


def test_a_fenced_attempt_can_never_be_claimed(tmp_path: Path) -> None:
    path = str(tmp_path / "claim.json")
    assert claim.fence(path, "controller on login1")
    assert not claim.acquire(path, "token", "17", "alpha")
    holder = claim.read(path)
    assert holder is not None
    assert holder.fenced
    assert holder.by == "controller on login1"


def test_a_controller_that_died_after_fencing_may_fence_again(tmp_path: Path) -> None:
    path = str(tmp_path / "claim.json")
    assert claim.fence(path, "first life")
    assert claim.fence(path, "second life")


def test_an_attempt_that_a_node_program_has_claimed_cannot_be_fenced(tmp_path: Path) -> None:
    path = str(tmp_path / "claim.json")
    assert claim.acquire(path, "token", "17", "alpha")
    assert not claim.fence(path, "controller")
    holder = claim.read(path)
    assert holder is not None
    assert holder.token == "token"


def test_an_attempt_that_was_never_claimed_has_no_holder(tmp_path: Path) -> None:
    assert claim.read(str(tmp_path / "claim.json")) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": "x", "at": null}'])
def test_a_claim_file_without_valid_content_is_still_a_claim(tmp_path: Path, content: str) -> None:
    path = tmp_path / "claim.json"
    path.write_text(content)
    holder = claim.read(str(path))
    assert holder is not None
    assert not holder.fenced
    assert not claim.fence(str(path), "controller")


def test_a_missing_directory_is_an_error_and_neither_claimed_nor_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        claim.acquire(str(tmp_path / "gone" / "claim.json"), "token", "17", "alpha")


@pytest.mark.parametrize("broken", ["link", "fsync"])
def test_without_hard_links_or_space_a_claim_is_still_exclusive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC if broken == "fsync" else errno.EPERM, "refused")

    monkeypatch.setattr(os, broken, refuse)
    path = str(tmp_path / "claim.json")
    assert claim.acquire(path, "token", "17", "alpha")
    assert not claim.acquire(path, "token", "18", "beta")
    assert _names(tmp_path) == ["claim.json"]


def _contend(folder: str, rounds: int, barriers: list[Barrier], fences: bool, wins: Any) -> None:
    for number in range(rounds):
        path = os.path.join(folder, f"{number}.json")
        barriers[number].wait(timeout=30)
        won = (
            claim.fence(path, "controller")
            if fences
            else claim.acquire(path, "token", str(os.getpid()), "host")
        )
        wins.put((number, fences, won))


def test_of_many_that_race_for_an_attempt_exactly_one_side_wins(tmp_path: Path) -> None:
    rounds, claimers, fencers = 40, 4, 2
    context = multiprocessing.get_context("fork")
    barriers = [context.Barrier(claimers + fencers) for _ in range(rounds)]
    wins = context.Queue()
    processes = [
        context.Process(target=_contend, args=(str(tmp_path), rounds, barriers, index < fencers, wins))
        for index in range(claimers + fencers)
    ]
    for process in processes:
        process.start()
    results = [wins.get(timeout=60) for _ in range(rounds * (claimers + fencers))]
    for process in processes:
        process.join(timeout=30)
        assert process.exitcode == 0
    for number in range(rounds):
        fenced = [won for round_, fences, won in results if round_ == number and fences]
        claimed = [won for round_, fences, won in results if round_ == number and not fences]
        assert sum(claimed) + (1 if any(fenced) else 0) == 1
        assert len(set(fenced)) == 1, "two fences of one attempt contradict each other"
        assert json.loads((tmp_path / f"{number}.json").read_text()).get("fenced", False) == any(fenced)

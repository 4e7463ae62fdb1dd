"""The section about random walks at the end of a test run."""

from __future__ import annotations

from attack.random_walk import Account
from attack.summary import summarize


def test_the_counts_of_all_walks_are_added_up_for_each_cluster() -> None:
    walks = [Account("slurm", 1, runs=4), Account("local", 2, runs=4), Account("local", 3, runs=4)]
    walks[0].acts["kill job"] = 5
    walks[2].lost, walks[2].failure = ["train-1"], "AssertionError: x"
    lines = list(summarize([walk.figures() for walk in walks]))
    assert [line.split()[0] for line in lines[:3]] == ["local", "local", "slurm"]
    assert "seed 3: acts 0, runs 4" in lines[1] and lines[1].endswith("FAILED: AssertionError: x")
    assert [" ".join(line.split()) for line in lines[3:6]] == [
        "local walks 2, acts 0, runs 8, retried 0, lost 1, doubled 0, ledgers open 0",
        "slurm walks 1, acts 5, runs 4, retried 0, lost 0, doubled 0, ledgers open 0",
        "all walks 3, acts 5, runs 12, retried 0, lost 1, doubled 0, ledgers open 0",
    ]


def test_a_walk_is_clean_only_if_nothing_was_lost_doubled_or_left_open() -> None:
    assert Account("local", 1).is_clean
    for name in ("lost", "doubled", "open_ledgers"):
        assert not Account("local", 1, **{name: ["train-1"]}).is_clean
    assert not Account("local", 1, failure="TimeoutError").is_clean

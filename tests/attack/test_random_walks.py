"""Kills, freezes, removals and lies at random on every cluster: no result is lost, doubled or wrong.

One walk in `make test`; `make attack` makes 40 on each cluster, side by side, in about an hour.
`OUTLAST_ATTACK_SEED` repeats a walk.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from attack.random_walk import RandomWalk
from contract.experiment_runs import ClusterExperiment

SECONDS = float(os.environ.get("OUTLAST_ATTACK_SECONDS", "20"))
WALKS = int(os.environ.get("OUTLAST_ATTACK_WALKS", "1"))


@pytest.mark.parametrize("number", range(WALKS))
def test_a_random_walk_of_attacks_loses_and_doubles_nothing(
    experiment: ClusterExperiment, number: int, record_property: Callable[[str, object], None]
) -> None:
    seed = int(os.environ.get("OUTLAST_ATTACK_SEED", "0")) or time.time_ns() % 10**9 + number
    walk = RandomWalk(experiment, seed)
    try:
        account = walk.run(SECONDS)
    except BaseException:
        print(walk.account)
        raise
    record_property("seeds", str(account))
    assert not account.lost and not account.doubled and not account.open_ledgers, str(account)

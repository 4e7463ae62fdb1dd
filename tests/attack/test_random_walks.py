"""Kills, freezes, removals and lies at random on every cluster: no result is lost, doubled or wrong.

One walk in `make test`; `make attack` makes 40 on each cluster, side by side, in about an hour.
The summary of pytest prints the seed of each walk; `OUTLAST_ATTACK_SEED` repeats its choices.
`OUTLAST_ATTACK_SECONDS` and `OUTLAST_ATTACK_WALKS` change how long and how many; `OUTLAST_ATTACK_KEEP` names
a directory for the experiments whose walk failed.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from attack.random_walk import RandomWalk
from attack.summary import PROPERTY
from contract.experiment_runs import ClusterExperiment

SECONDS = float(os.environ.get("OUTLAST_ATTACK_SECONDS", "60"))
WALKS = int(os.environ.get("OUTLAST_ATTACK_WALKS", "1"))


@pytest.mark.parametrize("number", range(WALKS))
def test_a_random_walk_of_attacks_loses_and_doubles_nothing(
    experiment: ClusterExperiment, number: int, record_property: Callable[[str, object], None]
) -> None:
    seed = int(os.environ.get("OUTLAST_ATTACK_SEED", "0")) or time.time_ns() % 10**9 + number
    walk = RandomWalk(experiment, seed)
    try:
        account = walk.run(SECONDS)
        assert account.is_clean, str(account)
    except BaseException:
        print(walk.account, *walk.history, sep="\n")
        _keep(experiment.directory, "%s-%d" % (experiment.cluster.name, seed))
        raise
    finally:
        record_property(PROPERTY, walk.account.figures())


def _keep(directory: Path, name: str) -> None:
    """Copy an experiment whose walk failed to where it can be looked at."""
    kept = os.environ.get("OUTLAST_ATTACK_KEEP")
    if kept:
        subprocess.run(["cp", "-a", str(directory), str(Path(kept) / name)], timeout=60, check=True)

"""The schedulers that keep the contract. Each has one cluster, so its tests run one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.experiment_runs import Play
from contract.htcondor_harness import HTCondorRehearsal
from contract.scheduler_harness import LocalRehearsal, Rehearsal
from contract.sge_harness import SgeRehearsal
from contract.slurm_harness import SlurmRehearsal
from support.experiments import Lab

REHEARSALS: tuple[type[Rehearsal], ...] = (LocalRehearsal, SlurmRehearsal, SgeRehearsal, HTCondorRehearsal)


@pytest.fixture(params=REHEARSALS, ids=lambda one: one.name)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rehearsal]:
    rehearsal: Rehearsal = request.param(tmp_path)
    yield rehearsal
    rehearsal.close()


@pytest.fixture
def play(cluster: Rehearsal, lab: Lab) -> Play:
    return Play(cluster, lab)

"""The schedulers that keep the contract. Each has one cluster, so its tests run one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.htcondor_rehearsal import HTCondorRehearsal
from contract.rehearsal import LocalRehearsal, Rehearsal
from contract.sge_rehearsal import SgeRehearsal
from contract.slurm_rehearsal import SlurmRehearsal

REHEARSALS: tuple[type[Rehearsal], ...] = (LocalRehearsal, SlurmRehearsal, SgeRehearsal, HTCondorRehearsal)


@pytest.fixture(params=REHEARSALS, ids=lambda one: one.name)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rehearsal]:
    rehearsal: Rehearsal = request.param(tmp_path)
    yield rehearsal
    rehearsal.close()

"""Fixtures of the contract suite: a harness for each scheduler, and an experiment on its cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.experiment_runs import ClusterExperiment
from contract.htcondor_harness import HTCondorHarness
from contract.scheduler_harness import LocalHarness, SchedulerHarness
from contract.sge_harness import SgeHarness
from contract.slurm_harness import SlurmHarness
from support.experiments import Lab

HARNESSES: tuple[type[SchedulerHarness], ...] = (LocalHarness, SlurmHarness, SgeHarness, HTCondorHarness)


@pytest.fixture(params=HARNESSES, ids=lambda one: one.name)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SchedulerHarness]:
    harness: SchedulerHarness = request.param(tmp_path)
    yield harness
    harness.close()


@pytest.fixture
def experiment(cluster: SchedulerHarness, lab: Lab) -> ClusterExperiment:
    return ClusterExperiment(cluster, lab)

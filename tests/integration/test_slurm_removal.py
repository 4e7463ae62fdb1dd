"""A real Slurm on which another user than the owner of a job cancels it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.experiment_runs import ClusterExperiment
from contract.slurm_harness import SlurmHarness
from outlast.domain.model import Outcome
from outlast.schedulers import command_runner
from support.experiments import Lab

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.getuid() != 0 or shutil.which("runuser") is None, reason="only root can act as another user"
    ),
]
#: A user of every system, which may cancel the jobs of others while a test runs.
OPERATOR = "nobody"


def run_command(*words: str) -> None:
    output = command_runner.run_command(list(words), 60.0)
    assert output.code == 0, output.error_message


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[SlurmHarness]:
    harness = SlurmHarness(tmp_path)
    try:
        run_command("sacctmgr", "-i", "add", "user", OPERATOR, "account=root", "adminlevel=operator")
        yield harness
    finally:
        run_command("sacctmgr", "-i", "delete", "user", OPERATOR)
        harness.close()


def test_a_run_whose_job_another_user_cancels_is_held_back_until_it_is_resumed(
    slurm: SlurmHarness, lab: Lab
) -> None:
    experiment = ClusterExperiment(slurm, lab)
    experiment.write("python", "train.py", "150", "0.1", "0")
    process = lab.start("run", experiment.directory)
    experiment.wait_for_step(10)
    run_command("runuser", "-u", OPERATOR, "--", "scancel", experiment.running_job().job)
    output = experiment.finish(process, code=1)
    assert "another user" in output and "cancelled by %s" % OPERATOR in output
    assert experiment.states == {"held-back"} and len(experiment.attempts()) == 1
    lab.outlast("resume", experiment.directory)
    experiment.run()
    legs = experiment.legs()
    assert len(legs) == 2 and legs[1].resumed == legs[0].saved_step >= 10
    assert [attempt.outcome for attempt in experiment.attempts()] == [Outcome.EVICTED, Outcome.FINISHED]
    assert experiment.weights() == experiment.reference_weights("150")
    experiment.assert_nothing_is_left()

"""A real Slurm that preempts jobs with a grace time, and one that refuses jobs for its limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.experiment_runs import ClusterExperiment
from contract.slurm_harness import SlurmHarness
from outlast.domain.model import Outcome
from outlast.schedulers import command_runner
from outlast.schedulers.base import JobPhase
from support.experiments import Lab

pytestmark = pytest.mark.slow


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[SlurmHarness]:
    harness = SlurmHarness(tmp_path)
    yield harness
    harness.close()


def run_command(*words: str) -> str:
    output = command_runner.run_command(list(words), 60.0)
    assert output.code == 0, output.error_message
    return output.out


@pytest.mark.parametrize("mode", ["requeued", "cancelled"])
def test_a_job_that_is_preempted_with_a_grace_time_saves_and_resumes(
    slurm: SlurmHarness, lab: Lab, mode: str
) -> None:
    slurm.profile_keys = {**slurm.profile_keys, "queue": mode}
    experiment = ClusterExperiment(slurm, lab)
    experiment.write("python", "train.py", "400", "0.1", "0")
    process = lab.start("run", experiment.directory)
    experiment.wait_for_step(10)
    token = experiment.running_job().token
    urgent = run_command(
        "sbatch", "--parsable", "-o", "/dev/null", "-p", "urgent", "-n", "2", "--wrap", "sleep 60"
    ).strip()
    try:
        slurm.poll_until(lambda views: views[token].phase is not JobPhase.RUNNING, slurm.scheduler)
    finally:
        run_command("scancel", urgent)
    if mode == "requeued":
        slurm.poll_until(lambda views: views[token].phase is JobPhase.QUEUED, slurm.scheduler)
        slurm.start_now(token)
    experiment.finish(process)
    legs = experiment.legs()
    assert len(legs) == 2 and legs[1].resumed == legs[0].saved_step >= 10
    attempts = experiment.attempts()
    assert len(attempts) == (1 if mode == "requeued" else 2)
    assert attempts[0].outcome is (Outcome.FINISHED if mode == "requeued" else Outcome.EVICTED)
    assert experiment.weights() == experiment.reference_weights("400")
    experiment.assert_nothing_is_left()


def write_with_qos(slurm: SlurmHarness, lab: Lab, qos: str, runs: int) -> ClusterExperiment:
    slurm.profile_keys = {**slurm.profile_keys, "directives": ["#SBATCH --qos=%s" % qos]}
    experiment = ClusterExperiment(slurm, lab)
    experiment.write(
        "python train.py 5 0.1 0 {seed}", sweep={"seed": list(range(runs))}, resources={"time": "5m"}
    )
    return experiment


def test_runs_beyond_the_jobs_that_a_qos_accepts_wait_and_finish(slurm: SlurmHarness, lab: Lab) -> None:
    experiment = write_with_qos(slurm, lab, "one-job", 3)
    experiment.run()
    assert experiment.states == {"finished"}
    experiment.assert_nothing_is_left()


@pytest.mark.parametrize(("qos", "reason"), [("one-minute", "QOSMaxWall"), ("nonsense", "qos")])
def test_a_job_that_a_qos_never_accepts_fails_at_once_with_the_reason(
    slurm: SlurmHarness, lab: Lab, qos: str, reason: str
) -> None:
    experiment = write_with_qos(slurm, lab, qos, 1)
    output = experiment.finish(lab.start("run", experiment.directory), code=1)
    assert reason.lower() in output.lower()
    assert experiment.states == {"failed"} and len(experiment.attempts()) == 1

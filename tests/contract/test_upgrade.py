"""An experiment that an earlier version began is finished by this one, on every cluster."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.experiment_runs import ClusterExperiment
from outlast.domain.model import Outcome

ROOT = Path(__file__).resolve().parents[2]
#: The last commit of version 0.1: flat modules, accounts as plain dictionaries.
EARLIER = "e37f98ffa29cb14e8814ed65e8f87f6ca1f4ee21"


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The package as the earlier version had it, from this checkout's history."""
    packed = subprocess.run(
        ["git", "-C", str(ROOT), "archive", EARLIER, "src"], capture_output=True, check=False, timeout=60
    )
    if packed.returncode:
        why = "the history of this checkout does not reach back to %s" % EARLIER
        (pytest.fail if os.environ.get("CI") else pytest.skip)(why)
    place = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(place)
    yield place / "src"


def test_an_experiment_that_an_earlier_version_began_is_finished_by_this_one(
    experiment: ClusterExperiment, earlier: Path
) -> None:
    """The first attempt, its order, log, checkpoints and journal entries are the earlier version's."""
    every = experiment.cluster.save_interval
    experiment.write("python", "train.py", "130", "0.1", str(every))
    process = experiment.lab.start("run", experiment.directory, PYTHONPATH=str(earlier))
    experiment.wait_for_step(experiment.cluster.kill_step)
    process.kill()
    experiment.lab.finish(process)
    (first,) = experiment.attempts()
    assert "0.1" in experiment.lab.outlast("--version", PYTHONPATH=str(earlier)).stdout
    # The job of the earlier version is still running, and ends without warning; this version resumes it.
    process = experiment.lab.start("up", experiment.directory)
    experiment.cluster.kill_without_warning(experiment.running_job().token)
    experiment.finish(process)
    attempts = experiment.attempts()
    assert attempts[0].token == first.token and attempts[-1].outcome is Outcome.FINISHED
    assert (experiment.legs()[-1].resumed or 0) > 0
    assert experiment.weights() == experiment.reference_weights("130")
    report = experiment.lab.outlast("report", experiment.directory, "--json").json
    assert len(report["attempts"]) == len(attempts) and report["uses"]["useful"] > 0
    assert experiment.lab.outlast("explain", experiment.directory / "train").returncode == 0
    experiment.assert_nothing_is_left()

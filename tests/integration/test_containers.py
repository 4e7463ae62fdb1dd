"""Training runs in a real container (Apptainer) on the real clusters.

The image has a Python and a file that the machine does not have, and the sites are strict: a container sees
only the directories that are bound into it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.experiment_runs import TRAIN, ClusterExperiment
from contract.htcondor_harness import HTCondorHarness
from contract.scheduler_harness import SchedulerHarness
from contract.sge_harness import SgeHarness
from contract.slurm_harness import SlurmHarness
from outlast.domain.model import Outcome
from outlast.journal.sqlite_file import is_blank
from support import clusters
from support.experiments import Lab

pytestmark = pytest.mark.slow

MARK = "/etc/outlast-image"
#: The training script, which also records where it ran.
INSIDE = (
    TRAIN
    + """
with open(os.path.join(directory, "where.json"), "w") as file:
    where = {"version": list(sys.version_info[:2]), "mark": os.path.exists("%s"), "in": os.getcwd()}
    json.dump({**where, "home": os.path.isdir(os.environ["HOME"])}, file)
"""
    % MARK
)


class ContainerExperiment(ClusterExperiment):
    """An experiment in a container. `place` contains the image as a directory and as a file."""

    def __init__(self, cluster: SchedulerHarness, lab: Lab, place: Path) -> None:
        super().__init__(cluster, lab)
        self.place = place
        self.scratch = lab.root / "scratch"
        self.scratch.mkdir()

    def use_image(self, image: Path | str) -> None:
        """Set the image in the profile, with `before` lines that check where they run.

        They run outside the container; HTCondor runs everything inside, and without scratch.
        """
        keys: dict[str, Any] = {"container": str(image), "before": ["test -e %s" % MARK]}
        if self.cluster.name != "htcondor":
            settings = ". %s" % (self.place / "env.sh")
            keys["before"] = [settings, "export APPTAINER_CONTAIN=1", "! test -e %s" % MARK]
            keys["scratch"] = str(self.scratch)
        self.cluster.profile_keys = {**self.cluster.profile_keys, **keys}

    def write_training(self, *arguments: str, **params: Any) -> None:
        outputs = ["weights.json", "where.json"]
        self.write("python", "train.py", *arguments, files={"train.py": INSIDE}, outputs=outputs, **params)

    def assert_was_inside(self) -> None:
        where = json.loads((self.directory / "results" / "train" / "where.json").read_text())
        assert where["mark"] and where["home"]
        python = "usr/bin/python%d.%d" % tuple(where["version"])
        assert (self.place / "image" / python).exists() and not (Path("/") / python).exists()
        top = "/srv" if self.cluster.name == "htcondor" else str(self.scratch)
        assert where["in"].startswith(top)

    def logged_steps(self) -> list[int]:
        """Return the steps that all attempts printed, in order."""
        logs = sorted(self.directory.glob("logs/train/*.log"))
        return [int(step) for log in logs for step in re.findall(r"(?m)^step (\d+)$", log.read_text())]

    def explanation(self) -> str:
        return self.lab.outlast("explain", self.directory / "train").stdout


def _with_container(
    cluster: type[SchedulerHarness], directory: Path, lab: Lab
) -> Iterator[ContainerExperiment]:
    place = Path(clusters.control("apptainer", "up")).parent
    harness: Any = cluster(directory)
    try:
        if harness.name == "htcondor":
            clusters.control("htcondor", "images")
        yield ContainerExperiment(harness, lab, place)
    finally:
        harness.close()


@pytest.fixture(params=(SlurmHarness, SgeHarness, HTCondorHarness), ids=lambda one: one.name)
def experiment(request: pytest.FixtureRequest, tmp_path: Path, lab: Lab) -> Iterator[ContainerExperiment]:
    yield from _with_container(request.param, tmp_path, lab)


@pytest.fixture(params=(HTCondorHarness,), ids=lambda one: one.name)
def pool(request: pytest.FixtureRequest, tmp_path: Path, lab: Lab) -> Iterator[ContainerExperiment]:
    yield from _with_container(request.param, tmp_path, lab)


def test_a_training_run_in_a_container_continues_past_the_wall_time_limit_and_loses_no_step(
    experiment: ContainerExperiment,
) -> None:
    # HTCondor's limit includes the transfer and unpacking of an image file; a directory is used in place.
    experiment.use_image(
        experiment.place / ("image" if experiment.cluster.name == "htcondor" else "image.sif")
    )
    experiment.write_training("90", "0.2", "0", resources={"time": "20s", "memory": "100MB", "disk": "200MB"})
    experiment.run()
    assert len(experiment.legs()) >= 2 and experiment.logged_steps() == list(range(1, 91))
    experiment.assert_was_inside()
    experiment.assert_nothing_is_left()


def test_a_preempted_container_saves_first_and_resumes_from_there(experiment: ContainerExperiment) -> None:
    """HTCondor's sites have this image: it is not transferred."""
    htcondor = experiment.cluster.name == "htcondor"
    experiment.use_image("/cvmfs/outlast.test/image" if htcondor else experiment.place / "image")
    experiment.write_training("50", "0.1", "0")
    process = experiment.lab.start("run", experiment.directory)
    experiment.wait_for_step(5)
    experiment.cluster.preempt(experiment.running_job().token)
    experiment.finish(process)
    legs = experiment.legs()
    assert len(legs) == 2 and legs[1].resumed == legs[0].saved_step >= 5
    experiment.assert_was_inside()
    experiment.assert_nothing_is_left()


def test_the_exit_code_of_a_command_in_a_container_is_reported(experiment: ContainerExperiment) -> None:
    experiment.use_image(
        experiment.place / ("image.sif" if experiment.cluster.name == "htcondor" else "image")
    )
    command = ("sh", "-c", "'test -e %s && exit 33'" % MARK)
    experiment.write(*command, files={}, outputs=[], limits={"attempts": 1})
    experiment.run(code=1)
    # A busy scheduler may reject a job, which is then submitted again.
    ends = [(one.outcome, one.account.code) for one in experiment.attempts() if one.started is not None]
    assert ends == [(Outcome.CRASHED, 33)], experiment.explanation()


def test_a_missing_image_causes_a_warning_and_fails_the_run_with_the_cause(
    experiment: ContainerExperiment,
) -> None:
    image = experiment.lab.root / "nothing.sif"
    experiment.use_image(image)
    experiment.write_training("3", "0", "0")
    warned = experiment.lab.outlast("check", experiment.directory).stderr
    assert "container: %s is not on this machine" % image in warned
    experiment.run(code=1)
    if experiment.cluster.name == "htcondor":
        assert "container: %s does not exist" % image in experiment.explanation()
    else:
        assert "container) failed" in experiment.explanation()
        log = experiment.lab.outlast("logs", experiment.directory / "train").stdout
        assert "before the training: container %s does not exist" % image in log


def test_an_image_that_a_site_does_not_have_is_tried_at_another(pool: ContainerExperiment) -> None:
    pool.use_image("/cvmfs/outlast.test/nothing")
    pool.write_training("3", "0", "0")
    process = pool.lab.start("run", pool.directory)
    pool.wait_for("a journal", lambda: not is_blank(pool.directory / "journal.sqlite"))
    pool.wait_for("the next attempt", lambda: len(pool.attempts()) == 2)
    assert pool.lab.outlast("cancel", "--all", "-C", pool.directory).returncode == 0
    pool.finish(process, code=1)
    first, second = pool.attempts()
    assert first.outcome is Outcome.NOT_FOUND and first.host in second.avoid
    assert "its container image is not at the site" in pool.explanation()

"""Trainings in a real container (Apptainer) on the real clusters.

The image has a Python and a file that the machine has not, and the sites are strict: a container sees nothing
of the node but what it is given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.experiment_runs import TRAIN, Play
from contract.htcondor_harness import HTCondorRehearsal
from contract.scheduler_harness import Rehearsal
from contract.sge_harness import SgeRehearsal
from contract.slurm_harness import SlurmRehearsal
from outlast.domain.model import Outcome
from outlast.journal.sqlite_file import is_blank
from support import clusters
from support.experiments import Lab

pytestmark = pytest.mark.slow

MARK = "/etc/outlast-image"
#: The training, and where it was.
INSIDE = (
    TRAIN
    + """
with open(os.path.join(directory, "where.json"), "w") as file:
    where = {"version": list(sys.version_info[:2]), "mark": os.path.exists("%s"), "in": os.getcwd()}
    json.dump({**where, "home": os.path.isdir(os.environ["HOME"])}, file)
"""
    % MARK
)


class Boxed(Play):
    """An experiment in a container. `place` is where the image is, as a directory and as a file."""

    def __init__(self, cluster: Rehearsal, lab: Lab, place: Path) -> None:
        super().__init__(cluster, lab)
        self.place = place
        self.scratch = lab.root / "scratch"
        self.scratch.mkdir()

    def use(self, image: Path | str) -> None:
        """What comes before the training is run outside; HTCondor runs all of it inside, without scratch."""
        keys: dict[str, Any] = {"container": str(image), "before": ["test -e %s" % MARK]}
        if self.cluster.name != "htcondor":
            settings = ". %s" % (self.place / "env.sh")
            keys["before"] = [settings, "export APPTAINER_CONTAIN=1", "! test -e %s" % MARK]
            keys["scratch"] = str(self.scratch)
        self.cluster.profile_keys = {**self.cluster.profile_keys, **keys}

    def train(self, *arguments: str, **params: Any) -> None:
        outputs = ["weights.json", "where.json"]
        self.set("python", "train.py", *arguments, files={"train.py": INSIDE}, outputs=outputs, **params)

    def assert_was_inside(self) -> None:
        where = json.loads((self.directory / "results" / "play" / "where.json").read_text())
        assert where["mark"] and where["home"]
        python = "usr/bin/python%d.%d" % tuple(where["version"])
        assert (self.place / "image" / python).exists() and not (Path("/") / python).exists()
        top = "/srv" if self.cluster.name == "htcondor" else str(self.scratch)
        assert where["in"].startswith(top)

    def told_steps(self) -> list[int]:
        """Those of all attempts, in order."""
        logs = sorted(self.directory.glob("logs/play/*.log"))
        return [int(step) for log in logs for step in re.findall(r"(?m)^step (\d+)$", log.read_text())]

    def why(self) -> str:
        return self.lab.outlast("explain", self.directory / "play").stdout


def _boxed(cluster: type[Rehearsal], directory: Path, lab: Lab) -> Iterator[Boxed]:
    place = Path(clusters.control("apptainer", "up")).parent
    rehearsal: Any = cluster(directory)
    try:
        if rehearsal.name == "htcondor":
            clusters.control("htcondor", "images")
        yield Boxed(rehearsal, lab, place)
    finally:
        rehearsal.close()


@pytest.fixture(params=(SlurmRehearsal, SgeRehearsal, HTCondorRehearsal), ids=lambda one: one.name)
def boxed(request: pytest.FixtureRequest, tmp_path: Path, lab: Lab) -> Iterator[Boxed]:
    yield from _boxed(request.param, tmp_path, lab)


@pytest.fixture(params=(HTCondorRehearsal,), ids=lambda one: one.name)
def pool(request: pytest.FixtureRequest, tmp_path: Path, lab: Lab) -> Iterator[Boxed]:
    yield from _boxed(request.param, tmp_path, lab)


def test_a_training_in_a_container_goes_past_the_wall_time_limit_and_loses_no_step(boxed: Boxed) -> None:
    # HTCondor's clock runs while a file is brought and unpacked; a directory is used where it is.
    boxed.use(boxed.place / ("image" if boxed.cluster.name == "htcondor" else "image.sif"))
    boxed.train("50", "0.2", "0", resources={"time": "12s", "memory": "100MB", "disk": "200MB"})
    boxed.run()
    assert len(boxed.legs()) >= 2 and boxed.told_steps() == list(range(1, 51))
    boxed.assert_was_inside()
    boxed.assert_nothing_is_left()


def test_a_container_that_is_sent_away_saves_first_and_goes_on_from_there(boxed: Boxed) -> None:
    """HTCondor's sites have this image: it does not travel."""
    htcondor = boxed.cluster.name == "htcondor"
    boxed.use("/cvmfs/outlast.test/image" if htcondor else boxed.place / "image")
    boxed.train("50", "0.1", "0")
    process = boxed.lab.start("run", boxed.directory)
    boxed.until_step(5)
    boxed.cluster.send_away(boxed.view().token)
    boxed.conclude(process)
    legs = boxed.legs()
    assert len(legs) == 2 and legs[1].resumed == legs[0].saved_step >= 5
    boxed.assert_was_inside()
    boxed.assert_nothing_is_left()


def test_the_exit_code_of_a_training_in_a_container_is_told(boxed: Boxed) -> None:
    boxed.use(boxed.place / ("image.sif" if boxed.cluster.name == "htcondor" else "image"))
    command = ("sh", "-c", "'test -e %s && exit 33'" % MARK)
    boxed.set(*command, files={}, outputs=[], limits={"attempts": 1})
    boxed.run(code=1)
    # A scheduler that is busy may refuse a job; nothing has started then, and it is sent again.
    told = [(one.outcome, one.account.code) for one in boxed.attempts() if one.started is not None]
    assert told == [(Outcome.CRASHED, 33)], boxed.why()


def test_an_image_that_is_not_there_is_said_before_and_fails_the_run_with_the_cause(boxed: Boxed) -> None:
    image = boxed.lab.root / "nothing.sif"
    boxed.use(image)
    boxed.train("3", "0", "0")
    warned = boxed.lab.outlast("check", boxed.directory).stderr
    assert "container: %s is not on this machine" % image in warned
    boxed.run(code=1)
    if boxed.cluster.name == "htcondor":
        assert "container: %s is not there" % image in boxed.why()
    else:
        assert "container) failed" in boxed.why()
        log = boxed.lab.outlast("logs", boxed.directory / "play").stdout
        assert "before the training: container %s, which is not there" % image in log


def test_an_image_that_a_site_has_not_got_is_looked_for_at_another(pool: Boxed) -> None:
    pool.use("/cvmfs/outlast.test/nothing")
    pool.train("3", "0", "0")
    process = pool.lab.start("run", pool.directory)
    pool.until("a journal", lambda: not is_blank(pool.directory / "journal.sqlite"))
    pool.until("the next attempt", lambda: len(pool.attempts()) == 2)
    assert pool.lab.outlast("cancel", "--all", "-C", pool.directory).returncode == 0
    pool.conclude(process, code=1)
    first, second = pool.attempts()
    assert first.outcome is Outcome.NOT_FOUND and first.host in second.avoid
    assert "its container image is not at the site" in pool.why()

"""Holds of HTCondor in whole experiments: each is explained and handled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.experiment_runs import TRAIN, ClusterExperiment
from contract.htcondor_harness import HTCondorHarness
from outlast.domain.model import EntryKind, Outcome, Run
from outlast.exchange.experiment import Experiment
from support.experiments import Lab, open_journal

pytestmark = pytest.mark.slow


class HoldingHarness(HTCondorHarness):
    """A pool whose jobs get further lines in their submit descriptions."""

    def with_directives(self, *lines: str) -> None:
        """Set the directives of the profile."""
        self.profile_keys = {**type(self).profile_keys, "directives": list(lines)}

    def hold_codes(self) -> str:
        """Return the hold codes of the held jobs of the experiment."""
        held = self.ours + " && JobStatus == 5"
        return self.tool("condor_q", "-constraint", held, "-af", "HoldReasonCode").strip()


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[HoldingHarness]:
    harness = HoldingHarness(tmp_path)
    yield harness
    harness.close()


@pytest.fixture
def experiment(pool: HoldingHarness, lab: Lab) -> ClusterExperiment:
    return ClusterExperiment(pool, lab)


def reasons_of(experiment: ClusterExperiment, kind: EntryKind) -> list[str]:
    with open_journal(experiment.directory) as journal:
        return [row.entry.data.get("reason", "") for row in journal.entries() if row.entry.kind is kind]


def the_run(experiment: ClusterExperiment) -> Run:
    with open_journal(experiment.directory) as journal:
        (run,) = journal.runs()
    return run


def test_more_input_than_the_pool_transfers_fails_the_run_with_the_cause(
    experiment: ClusterExperiment, pool: HoldingHarness
) -> None:
    pool.with_directives("max_transfer_input_mb = 1")
    experiment.write(
        "python", "train.py", "3", "0", "0", files={"train.py": TRAIN, "big.txt": "x" * 3_000_000}
    )
    experiment.run(code=1)
    (attempt,) = experiment.attempts()
    assert attempt.outcome is Outcome.REJECTED
    assert (
        "more input than this access point"
        in experiment.lab.outlast("explain", experiment.directory / "train").stdout
    )


def test_missing_input_stops_the_run_with_its_path_and_a_retry_finds_it(
    experiment: ClusterExperiment, pool: HoldingHarness
) -> None:
    pool.with_directives("hold = true")
    directory = experiment.write("python", "train.py", "3", "0", "0")
    process = experiment.lab.start("run", directory)
    experiment.wait_for("a job that was submitted on hold", lambda: pool.hold_codes() == "15")
    (code,) = directory.glob("params/code-*.tar")
    code.rename(directory / "put-aside.tar")
    pool.tool("condor_release", "-constraint", pool.ours)
    experiment.finish(process, code=1)
    reason = "the access point could not read %s (No such file or directory); put it back" % code
    assert reason in the_run(experiment).reason
    assert "`outlast retry train`" in the_run(experiment).reason
    (directory / "put-aside.tar").rename(code)
    assert experiment.lab.outlast("retry", "train", "-C", directory).returncode == 0
    process = experiment.lab.start("up", directory)
    experiment.wait_for("another job on hold", lambda: pool.hold_codes() == "15")
    pool.tool("condor_release", "-constraint", pool.ours)
    experiment.finish(process)
    assert [a.outcome for a in experiment.attempts()] == [Outcome.NOT_FOUND, Outcome.FINISHED]


def test_missing_results_hold_the_job_which_is_released_and_succeeds(
    experiment: ClusterExperiment, pool: HoldingHarness, tmp_path: Path
) -> None:
    mark = tmp_path / "removed"
    remove = (
        "import os, pathlib, shutil, sys\n"
        "mark = pathlib.Path(%r)\n"
        "if not mark.exists():\n"
        "    mark.touch()\n"
        "    shutil.rmtree(os.path.dirname(os.environ['OUTLAST_CHECKPOINT_DIR']))\n"
        "    sys.exit(1)\n" % str(mark)
    )
    experiment.write("python", "train.py", "3", "0", "0", files={"train.py": remove + TRAIN})
    experiment.run()
    (reason,) = reasons_of(experiment, EntryKind.RELEASED)
    assert "ended without its results directory" in reason
    assert experiment.weights() == experiment.reference_weights("3")


def test_an_access_point_that_cannot_write_the_results_stops_the_run_and_no_site_is_avoided(
    experiment: ClusterExperiment,
) -> None:
    directory = experiment.write("python", "train.py", "30", "0.1", "0")
    process = experiment.lab.start("run", directory)
    experiment.wait_for_step(1)
    (attempt,) = experiment.attempts()
    # A directory in place of a file: the test pool's user may be allowed to write everywhere.
    path = Experiment(directory).exchange_of(attempt) / "travel" / "events.jsonl"
    path.mkdir(parents=True)
    experiment.finish(process, code=1)
    (attempt,) = experiment.attempts()
    assert (attempt.outcome, attempt.releases) == (Outcome.REJECTED, 0)
    run = the_run(experiment)
    assert "the access point could not write %s (Is a directory)" % path in run.reason
    assert "move it away" in run.reason and "`outlast retry train`" in run.reason
    assert run.reason in experiment.lab.outlast("status", directory).stdout
    assert run.sour_hosts == ()
    assert "clusters.yaml" not in experiment.lab.outlast("explain", directory / "train").stdout
    path.rmdir()
    assert experiment.lab.outlast("retry", "train", "-C", directory).returncode == 0
    experiment.finish(experiment.lab.start("up", directory))
    assert experiment.attempts()[1].avoid == ()
    assert experiment.weights() == experiment.reference_weights("30")


def test_a_job_held_at_its_limit_is_released_and_resumes_from_what_it_saved(
    experiment: ClusterExperiment, pool: HoldingHarness
) -> None:
    pool.with_directives("hold = true")
    experiment.write("python", "train.py", "60", "0.1", "0")
    process = experiment.lab.start("run", experiment.directory)
    experiment.wait_for("a job that was submitted on hold", lambda: pool.hold_codes() == "15")
    pool.tool("condor_qedit", "-constraint", pool.ours, "AllowedExecuteDuration", "4")
    pool.tool("condor_release", "-constraint", pool.ours)
    experiment.finish(process)
    assert any("wall-time limit" in reason for reason in reasons_of(experiment, EntryKind.RELEASED))
    legs = experiment.legs()
    assert len(legs) >= 2 and legs[1].resumed == legs[0].saved_step
    assert experiment.weights() == experiment.reference_weights("60")

"""Controller or scheduler die or freeze at the worst moment of a submission.

Each test runs once in `make test` and 50 times in `make storm`.
"""

from __future__ import annotations

import os

import pytest

from contract.experiment_runs import ClusterExperiment

rounds = pytest.mark.parametrize("number", range(int(os.environ.get("OUTLAST_STORM", "1"))))


@rounds
def test_a_controller_that_dies_between_submission_and_record_duplicates_nothing(
    experiment: ClusterExperiment, number: int
) -> None:
    experiment.write("python", "train.py", "3", "0", "0", runs=3)
    died = experiment.lab.outlast("run", experiment.directory, crash_at="start.submitted")
    assert died.returncode < 0, died.output
    experiment.finish(experiment.lab.start("up", experiment.directory))
    assert experiment.states == {"finished"}
    assert [attempt.number for attempt in experiment.attempts()] == [1, 1, 1]
    experiment.assert_nothing_is_left()


@rounds
def test_a_scheduler_that_is_frozen_while_jobs_are_sent_loses_and_duplicates_nothing(
    experiment: ClusterExperiment, number: int
) -> None:
    experiment.write("python", "train.py", "3", "0", "0", runs=3)
    experiment.cluster.freeze()
    died = experiment.lab.outlast("submit", experiment.directory)
    assert died.returncode == 0, died.output
    experiment.cluster.thaw()
    experiment.finish(experiment.lab.start("up", experiment.directory))
    assert experiment.states == {"finished"}
    experiment.assert_nothing_is_left()


@rounds
def test_a_scheduler_that_is_killed_right_after_the_submission_loses_and_duplicates_nothing(
    experiment: ClusterExperiment,
    number: int,
) -> None:
    experiment.write("python", "train.py", "3", "0", "0", runs=3)
    died = experiment.lab.outlast("run", experiment.directory, crash_at="start.submitted")
    assert died.returncode < 0, died.output
    experiment.cluster.crash_now()
    experiment.finish(experiment.lab.start("up", experiment.directory))
    assert experiment.states == {"finished"}
    experiment.assert_nothing_is_left()

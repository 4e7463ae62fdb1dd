"""Controller and scheduler die or freeze at the worst moment of a submission.

Once in `make test`, 50 times each in `make storm`.
"""

from __future__ import annotations

import os

import pytest

from contract.experiment_runs import Play

rounds = pytest.mark.parametrize("number", range(int(os.environ.get("OUTLAST_STORM", "1"))))


@rounds
def test_a_controller_that_dies_between_submission_and_record_duplicates_nothing(
    play: Play, number: int
) -> None:
    play.set("python", "train.py", "3", "0", "0", runs=3)
    died = play.lab.outlast("run", play.directory, crash_at="start.submitted")
    assert died.returncode < 0, died.output
    play.conclude(play.lab.start("up", play.directory))
    assert play.states == {"finished"}
    assert [attempt.number for attempt in play.attempts()] == [1, 1, 1]
    play.assert_nothing_is_left()


@rounds
def test_a_scheduler_that_is_frozen_while_jobs_are_sent_loses_and_duplicates_nothing(
    play: Play, number: int
) -> None:
    play.set("python", "train.py", "3", "0", "0", runs=3)
    play.cluster.freeze()
    died = play.lab.outlast("submit", play.directory)
    assert died.returncode == 0, died.output
    play.cluster.thaw()
    play.conclude(play.lab.start("up", play.directory))
    assert play.states == {"finished"}
    play.assert_nothing_is_left()


@rounds
def test_a_scheduler_that_is_killed_right_after_the_submission_loses_and_duplicates_nothing(
    play: Play,
    number: int,
) -> None:
    play.set("python", "train.py", "3", "0", "0", runs=3)
    died = play.lab.outlast("run", play.directory, crash_at="start.submitted")
    assert died.returncode < 0, died.output
    play.cluster.crash_now()
    play.conclude(play.lab.start("up", play.directory))
    assert play.states == {"finished"}
    play.assert_nothing_is_left()

"""The controller is killed at every crash point, by a real SIGKILL of a real process, and started again."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from outlast.controller.crashpoints import CRASH_POINTS
from outlast.domain.model import EntryKind
from support.experiments import Ended, Lab, assert_whole, open_journal, states

#: One run that is continued twice, one that fails once, one with a bug, one to be cancelled.
EXPECTED = {
    "mix-kind=plain": "finished",
    "mix-kind=fluke": "finished",
    "mix-kind=bug": "failed",
    "mix-kind=held": "cancelled",
}
HELD = "mix-kind=held"
CANCEL = ("cancel", HELD, "-C")


@pytest.fixture
def mix(lab: Lab) -> Path:
    return lab.experiment(
        "mix",
        command="sh train.sh {kind}",
        sweep={"kind": [name.partition("=")[2] for name in EXPECTED]},
        outputs=["first.txt", "second.txt"],
        checkpoints={"grace": "1s"},
    )


def assert_killed(ended: Ended, point: str) -> None:
    assert ended.returncode == -signal.SIGKILL, "%s was not reached:\n%s" % (point, ended.output)


def die_at(point: str, lab: Lab, mix: Path) -> None:
    """Run the command that reaches the crash point until it is killed there."""
    if point.startswith(("submit.", "start.")):
        assert_killed(lab.outlast("submit", mix, crash_at=point), point)
        return
    if point.startswith("fence."):
        # The intents are committed and no job is submitted: for the next controller the jobs are missing.
        assert_killed(lab.outlast("submit", mix, crash_at="start.intended"), point)
    else:
        assert lab.outlast("submit", mix).returncode == 0
    command = CANCEL if point.startswith("cancel.") else ("up",)
    if command is CANCEL:
        lab.running_job(mix, HELD)
    assert_killed(lab.outlast(*command, mix, crash_at=point), point)


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_a_controller_killed_here_loses_nothing_and_accepts_nothing_twice(
    lab: Lab, mix: Path, point: str
) -> None:
    die_at(point, lab, mix)
    assert lab.outlast("tick", mix).returncode == 0
    assert set(states(mix)) == set(EXPECTED), "a run was lost"
    if states(mix)[HELD] != "cancelled":
        ended = lab.outlast(*CANCEL, mix)
        assert ended.returncode == 0, ended.output
    ended = lab.outlast("up", mix)
    assert ended.returncode == 1, ended.output
    assert_whole(mix, lab.scheduler(mix), EXPECTED)


def test_a_controller_that_crashes_at_the_same_point_again_and_again_still_progresses(
    lab: Lab, mix: Path
) -> None:
    """Every start is killed after it recorded the end of an attempt: each start records one more end."""
    assert lab.outlast("submit", mix).returncode == 0
    deaths = 0
    lab.outlast(*CANCEL, mix)
    while (ended := lab.outlast("up", mix, crash_at="observe.ended")).returncode == -signal.SIGKILL:
        deaths += 1
        assert deaths < 20, "it makes no progress:\n%s" % ended.output
    assert deaths >= 1  # on a busy machine several have ended by the time it polls
    assert_whole(mix, lab.scheduler(mix), EXPECTED)


def test_a_submission_killed_and_repeated_adds_each_run_once(lab: Lab, mix: Path) -> None:
    for point in ("submit.requested", "submit.recorded", "submit.removed"):
        lab.outlast("submit", mix, crash_at=point)
    lab.outlast("submit", mix)
    with open_journal(mix) as journal:
        added = [row.entry.run for row in journal.entries() if row.entry.kind is EntryKind.ADDED]
    assert sorted(added) == sorted(EXPECTED)

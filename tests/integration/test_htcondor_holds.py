"""Holds of HTCondor met by whole experiments: each is said in plain words and answered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.experiment_runs import TRAIN, Play
from contract.htcondor_harness import HTCondorRehearsal
from outlast.domain.model import EntryKind, Outcome, Run
from outlast.exchange.experiment import Experiment
from support.experiments import Lab, open_journal

pytestmark = pytest.mark.slow


class Held(HTCondorRehearsal):
    def with_directives(self, *lines: str) -> None:
        self.profile_keys = {**type(self).profile_keys, "directives": list(lines)}

    def holds(self) -> str:
        """The hold codes of the jobs of the experiment that are held."""
        held = self.ours + " && JobStatus == 5"
        return self.tool("condor_q", "-constraint", held, "-af", "HoldReasonCode").strip()


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Held]:
    rehearsal = Held(tmp_path)
    yield rehearsal
    rehearsal.close()


@pytest.fixture
def play(pool: Held, lab: Lab) -> Play:
    return Play(pool, lab)


def entries(play: Play, kind: EntryKind) -> list[str]:
    with open_journal(play.directory) as journal:
        return [row.entry.data.get("reason", "") for row in journal.entries() if row.entry.kind is kind]


def the_run(play: Play) -> Run:
    with open_journal(play.directory) as journal:
        (run,) = journal.runs()
    return run


def test_more_input_than_the_pool_carries_fails_the_run_with_the_cause(play: Play, pool: Held) -> None:
    pool.with_directives("max_transfer_input_mb = 1")
    play.set("python", "train.py", "3", "0", "0", files={"train.py": TRAIN, "big.txt": "x" * 3_000_000})
    play.run(code=1)
    (attempt,) = play.attempts()
    assert attempt.outcome is Outcome.REJECTED
    assert "more input than this access point" in play.lab.outlast("explain", play.directory / "play").stdout


def test_input_that_is_missing_stops_the_run_with_its_path_and_a_retry_finds_it(
    play: Play, pool: Held
) -> None:
    pool.with_directives("hold = true")
    directory = play.set("python", "train.py", "3", "0", "0")
    process = play.lab.start("run", directory)
    play.until("a job that was submitted on hold", lambda: pool.holds() == "15")
    (code,) = directory.glob("params/code-*.tar")
    code.rename(directory / "put-aside.tar")
    pool.tool("condor_release", "-constraint", pool.ours)
    play.conclude(process, code=1)
    reason = "the access point could not read %s (No such file or directory); put it back" % code
    assert reason in the_run(play).reason
    assert "`outlast retry play`" in the_run(play).reason
    (directory / "put-aside.tar").rename(code)
    assert play.lab.outlast("retry", "play", "-C", directory).returncode == 0
    process = play.lab.start("up", directory)
    play.until("another job on hold", lambda: pool.holds() == "15")
    pool.tool("condor_release", "-constraint", pool.ours)
    play.conclude(process)
    assert [a.outcome for a in play.attempts()] == [Outcome.NOT_FOUND, Outcome.FINISHED]


def test_results_that_are_not_there_hold_the_job_which_is_released_and_does_better(
    play: Play, pool: Held, tmp_path: Path
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
    play.set("python", "train.py", "3", "0", "0", files={"train.py": remove + TRAIN})
    play.run()
    (reason,) = entries(play, EntryKind.RELEASED)
    assert "ended without the directory that its results are in" in reason
    assert play.weights() == play.undisturbed("3")


def test_an_access_point_that_cannot_write_the_results_stops_the_run_and_blames_no_site(play: Play) -> None:
    directory = play.set("python", "train.py", "30", "0.1", "0")
    process = play.lab.start("run", directory)
    play.until_step(1)
    (attempt,) = play.attempts()
    # A directory in place of a file: the test pool's user may be allowed to write everywhere.
    path = Experiment(directory).exchange_of(attempt) / "travel" / "events.jsonl"
    path.mkdir(parents=True)
    play.conclude(process, code=1)
    (attempt,) = play.attempts()
    assert (attempt.outcome, attempt.releases) == (Outcome.REJECTED, 0)
    run = the_run(play)
    assert "the access point could not write %s (Is a directory)" % path in run.reason
    assert "move it away" in run.reason and "`outlast retry play`" in run.reason
    assert run.reason in play.lab.outlast("status", directory).stdout
    assert run.sour_hosts == ()
    assert "clusters.yaml" not in play.lab.outlast("explain", directory / "play").stdout
    path.rmdir()
    assert play.lab.outlast("retry", "play", "-C", directory).returncode == 0
    play.conclude(play.lab.start("up", directory))
    assert play.attempts()[1].avoid == ()
    assert play.weights() == play.undisturbed("30")


def test_a_job_held_at_its_limit_is_released_and_goes_on_from_what_it_saved(play: Play, pool: Held) -> None:
    pool.with_directives("hold = true")
    play.set("python", "train.py", "60", "0.1", "0")
    process = play.lab.start("run", play.directory)
    play.until("a job that was submitted on hold", lambda: pool.holds() == "15")
    pool.tool("condor_qedit", "-constraint", pool.ours, "AllowedExecuteDuration", "4")
    pool.tool("condor_release", "-constraint", pool.ours)
    play.conclude(process)
    assert any("wall-time limit" in reason for reason in entries(play, EntryKind.RELEASED))
    legs = play.legs()
    assert len(legs) >= 2 and legs[1].resumed == legs[0].saved_step
    assert play.weights() == play.undisturbed("60")

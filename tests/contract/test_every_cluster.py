"""What a user may rely on, whichever cluster the runs go to: the same experiments on each of them."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from contract.experiment_runs import Play
from outlast.domain.model import EntryKind, Outcome
from outlast.journal.sqlite_file import is_blank
from support.experiments import open_journal, states


def assert_one_interval_is_lost(play: Play, hurt: Callable[[str], object]) -> None:
    """Hurt the job of a training that saves now and then: it goes on from a save, and ends the same."""
    every = play.cluster.kept_steps
    play.set("python", "train.py", "130", "0.1", str(every))
    process = play.lab.start("run", play.directory)
    play.until_step(play.cluster.safe_step)
    reached = play.cluster.newest_step(play.directory)
    hurt(play.view().token)
    play.conclude(process)
    legs = play.legs()
    assert len(legs) == 2
    assert reached - legs[1].resumed <= play.cluster.lost_steps + 1
    assert play.weights() == play.undisturbed("130")
    play.assert_nothing_is_left()


def test_a_training_goes_past_the_wall_time_limit_and_loses_no_step(play: Play) -> None:
    play.set("python", "train.py", "60", "0.15", "0", resources={"time": "6s", "memory": "100MB"})
    play.run()
    attempts = play.attempts()
    assert len(attempts) >= 2 and [a.outcome for a in attempts[:-1]] == [Outcome.CONTINUE] * (
        len(attempts) - 1
    )
    saved = [attempt.account.saved_step for attempt in attempts[:-1]]
    resumed = [attempt.account.resumed for attempt in attempts[1:]]
    assert saved == resumed
    assert play.weights() == play.undisturbed("60")
    play.assert_nothing_is_left()


def test_a_job_killed_without_warning_loses_one_checkpoint_interval_at_most(play: Play) -> None:
    assert_one_interval_is_lost(play, play.cluster.kill_without_warning)


def test_twenty_runs_are_one_submission_and_all_finish(play: Play) -> None:
    play.set("python", "train.py", "2", "0", "0", runs=20)
    play.run()
    assert play.states == {"finished"} and len(states(play.directory)) == 20
    attempts = play.attempts()
    assert len({attempt.token.rpartition("-")[0] for attempt in attempts}) == 1
    assert len({play.cluster.submission_of(attempt.job) for attempt in attempts}) == 1
    assert {play.weights(run) for run in states(play.directory)} == {play.undisturbed("2")}


def test_runs_that_wait_or_run_are_cancelled(play: Play) -> None:
    play.set("python", "train.py", "6000", "0.1", "0", runs=5, resources={"cpus": 1, "time": "5m"})
    process = play.lab.start("run", play.directory)
    play.until_step(1)
    assert play.lab.outlast("cancel", "--all", "-C", play.directory).returncode == 0
    play.conclude(process, code=1)
    assert play.states == {"cancelled"}
    play.assert_nothing_is_left()


@pytest.mark.parametrize(
    "script, outputs, outcome, told",
    [
        ("raise ValueError('no such layer')", [], Outcome.CRASHED, "no such layer"),
        (
            "import resource as r; r.setrlimit(r.RLIMIT_AS, (10**9, 10**9)); bytearray(10**10)",
            [],
            Outcome.OUT_OF_MEMORY,
            "memory",
        ),
        ("open('m.json', 'w').write('{\"accuracy\": 0.1}')",
         [{"path": "m.json", "key": "accuracy", "at_least": 0.9}], Outcome.WRONG_OUTPUT, "0.9"),
    ],
    ids=["crash", "memory", "output"],
)  # fmt: skip
def test_a_fault_of_the_trainings_own_ends_the_run_soon_and_is_explained(
    play: Play, script: str, outputs: list[object], outcome: Outcome, told: str
) -> None:
    play.set("python", "train.py", files={"train.py": script + "\n"}, outputs=outputs)
    play.run(code=1)
    attempts = play.attempts()
    assert [attempt.outcome for attempt in attempts] == [outcome] * 2
    assert told in play.lab.outlast("explain", play.directory / "play").stdout


def test_what_fails_before_the_training_ends_the_run_soon_and_is_told(play: Play) -> None:
    if play.cluster.name == "local":
        return  # nothing is prepared there
    play.cluster.profile_keys = {**play.cluster.profile_keys, "before": ["cd /no/such/place"]}
    play.set("python", "train.py", "3", "0", "0")
    play.run(code=1)
    assert [attempt.outcome for attempt in play.attempts()] == [Outcome.CRASHED] * 2
    assert "before the training" in play.lab.outlast("explain", play.directory / "play").stdout
    told = play.lab.outlast("logs", play.directory / "play").stdout
    assert "this failed before the training: cd /no/such/place" in told


def test_why_a_job_never_starts_is_explained(play: Play) -> None:
    play.set("python", "train.py", "1", "0", "0", resources={**play.cluster.impossible, "time": "5m"})
    if play.cluster.name == "local":
        # It knows all of its hosts, and says so before anything is submitted.
        refused = play.lab.outlast("run", play.directory)
        assert refused.returncode == 2 and play.cluster.impossible_because in refused.output
        return
    process = play.lab.start("run", play.directory)

    def explained() -> bool:
        if is_blank(play.directory / "journal.sqlite"):
            return False
        with open_journal(play.directory) as journal:
            told = [
                row.entry for row in journal.entries() if row.entry.kind in (EntryKind.WAITS, EntryKind.ENDED)
            ]
        return any(play.cluster.impossible_because in json.dumps(dict(entry.data)) for entry in told)

    play.until("the reason in the journal", explained)
    assert play.cluster.impossible_because in play.lab.outlast("explain", play.directory / "play").stdout
    assert play.lab.outlast("cancel", "--all", "-C", play.directory).returncode == 0
    play.conclude(process, code=1)
    play.assert_nothing_is_left()


def test_a_job_that_is_sent_away_goes_on_from_its_checkpoint(play: Play) -> None:
    play.set("python", "train.py", "60", "0.1", "0")
    process = play.lab.start("run", play.directory)
    play.until_step(10)
    play.cluster.send_away(play.view().token)
    play.conclude(process)
    legs = play.legs()
    assert len(legs) == 2 and legs[1].resumed == legs[0].saved_step >= 10
    assert play.weights() == play.undisturbed("60")
    play.assert_nothing_is_left()


def test_a_job_whose_node_is_lost_goes_on_from_its_checkpoint(play: Play) -> None:
    assert_one_interval_is_lost(play, play.cluster.lose_node)


def test_a_chain_of_six_jobs_that_needs_three_leaves_none_behind(play: Play) -> None:
    if play.cluster.name == "local":
        done = play.lab.outlast("chain", play.set("python", "train.py", "3", "0", "0"), "-n", "6")
        assert done.returncode == 2 and "`outlast run" in done.output
        return
    play.set("python", "train.py", "70", "0.15", "0", resources={"time": "6s", "memory": "100MB"})
    sent = play.lab.outlast("chain", play.directory, "-n", "6")
    assert sent.returncode == 0, sent.output
    play.until_ticks_make_it("finished")
    (attempt,) = play.attempts()
    assert attempt.jobs == 6 and 2 <= len(attempt.account.earlier) <= 4
    assert play.weights() == play.undisturbed("70")
    play.assert_nothing_is_left()


def test_a_chain_ends_with_the_second_failure_of_the_trainings_own(play: Play) -> None:
    if play.cluster.name == "local":
        return  # there are no chains there
    play.set("python", "train.py", files={"train.py": "raise MemoryError('too big')\n"})
    sent = play.lab.outlast("chain", play.directory, "-n", "6")
    assert sent.returncode == 0, sent.output
    play.until_ticks_make_it("failed")
    (attempt,) = play.attempts()
    assert attempt.outcome is Outcome.OUT_OF_MEMORY and len(attempt.account.earlier) == 1
    assert "the same failure twice: MemoryError" in play.explain()["reason"]
    play.assert_nothing_is_left()

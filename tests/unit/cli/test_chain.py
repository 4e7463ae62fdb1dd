"""`outlast chain` on a simulated Slurm."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from outlast.cli.commands import chain, status, submit
from outlast.controller.inbox import Inbox
from outlast.controller.supervisor import control
from outlast.domain.model import Attempt
from outlast.errors import BadInput, JournalHeld
from outlast.exchange.experiment import Experiment
from outlast.journal.journal import Journal
from outlast.journal.lease import Lease
from outlast.schedulers import command_runner
from outlast.schedulers.command_runner import CommandOutput


class Slurm:
    """Accepts every job; calls `before_each` before each submission."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.before_each: Callable[[], object] = lambda: None

    def call(self, words: Sequence[str], *rest: Any, **more: Any) -> CommandOutput:
        if "sbatch" not in words:
            return CommandOutput(0, "", "")
        self.before_each()
        self.sent.append(next(word for word in words if word.startswith("--job-name")))
        return CommandOutput(0, "%d\n" % (100 + len(self.sent)), "")


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    slurm = Slurm()
    monkeypatch.setattr(command_runner, "run_command", slurm.call)
    return slurm


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    directory = tmp_path / "digits"
    directory.mkdir()
    (directory / "params.yaml").write_text("command: 'true'\ncluster: farm\nruns: 4\n")
    with_profile(directory)
    return Experiment(directory)


def with_profile(directory: Path, **keys: object) -> None:
    lines = "".join(", %s: %s" % pair for pair in keys.items())
    (directory / "clusters.yaml").write_text("farm: {scheduler: slurm%s}\n" % lines)


def run_chain(experiment: Experiment, *arguments: str) -> Result:
    return CliRunner().invoke(chain.command, [str(experiment.root), *arguments])


def attempts(experiment: Experiment) -> list[Attempt]:
    journal = Journal(experiment.journal)
    try:
        return list(journal.attempts())
    finally:
        journal.close()


def test_every_run_is_submitted_as_the_given_number_of_jobs(experiment: Experiment, slurm: Slurm) -> None:
    done = run_chain(experiment, "-n", "3")
    assert done.exit_code == 0, done.output
    assert [attempt.jobs for attempt in attempts(experiment)] == [3] * 4
    assert len(slurm.sent) == 12


def test_status_recognises_chains_and_reads_all_runs_only_if_there_may_be_some(
    experiment: Experiment, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def state() -> str:
        return CliRunner().invoke(status.command, [str(experiment.root)], catch_exceptions=False).output

    def never(journal: Journal) -> None:
        raise AssertionError("all runs are read")

    run_chain(experiment, "-n", "3")
    assert "Chains need no supervision. Run `outlast tick" in state()
    (experiment.root / "params.yaml").write_text("command: 'true'\ncluster: farm\nruns: 5\n")
    submitted = CliRunner().invoke(submit.command, [str(experiment.root)], catch_exceptions=False)
    assert submitted.exit_code == 0, submitted.output
    monkeypatch.setattr(Journal, "live", never)
    assert "Not supervised. Run `outlast up" in state()


# One controller at a time


def test_no_other_controller_can_submit_the_runs_before_the_chain(
    experiment: Experiment, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller between the request and the submission of the chain would submit single jobs."""
    refused = []

    def submit_runs(*arguments: Any) -> object:
        submitted = original(*arguments)
        with pytest.raises(JournalHeld) as error, control(experiment, "tick"):
            raise AssertionError("a tick took the experiment in between")
        refused.append(error.value)
        return submitted

    original = chain.submit_runs
    monkeypatch.setattr(chain, "submit_runs", submit_runs)
    assert run_chain(experiment, "-n", "2").exit_code == 0
    assert refused and [attempt.jobs for attempt in attempts(experiment)] == [2] * 4


def test_nothing_is_requested_or_submitted_while_another_controller_supervises(
    experiment: Experiment, slurm: Slurm
) -> None:
    with control(experiment, "up"):
        done = run_chain(experiment, "-n", "2")
    assert isinstance(done.exception, JournalHeld) and "outlast up" in str(done.exception)
    assert Inbox(experiment.inbox).names() == [] and slurm.sent == []


def test_the_lease_is_renewed_before_each_of_many_submissions(
    experiment: Experiment, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewals = [0]
    seen = []
    monkeypatch.setattr(Lease, "renew", lambda self: renewals.append(len(slurm.sent)))
    slurm.before_each = lambda: seen.append(renewals[-1] == len(slurm.sent))
    assert run_chain(experiment, "-n", "5").exit_code == 0
    assert seen == [True] * 20


def test_a_controller_that_was_replaced_submits_no_more_jobs(
    experiment: Experiment, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replaced(self: Lease) -> None:
        if len(slurm.sent) == 3:
            raise JournalHeld("another one took over")

    monkeypatch.setattr(Lease, "renew", replaced)
    assert isinstance(run_chain(experiment, "-n", "5").exception, JournalHeld)
    assert len(slurm.sent) == 3


# Limits of the cluster


@pytest.mark.parametrize(
    ("limit", "words"),
    [("most_jobs", "4 jobs at once (most_jobs)"), ("submit_rate", "4 jobs in a minute (submit_rate)")],
)
def test_a_chain_beyond_the_limits_is_refused_with_what_to_type(
    experiment: Experiment, slurm: Slurm, limit: str, words: str
) -> None:
    with_profile(experiment.root, **{limit: 4})
    refused = run_chain(experiment, "-n", "5")
    assert isinstance(refused.exception, BadInput)
    assert words in str(refused.exception) and "`-n 4`" in str(refused.exception)
    assert Inbox(experiment.inbox).names() == [] and not experiment.journal.exists()
    assert run_chain(experiment, "-n", "4").exit_code == 1 and len(slurm.sent) == 4


@pytest.mark.parametrize("limit", ["most_jobs", "submit_rate"])
def test_each_job_of_a_chain_counts_towards_the_limits(
    experiment: Experiment, slurm: Slurm, limit: str
) -> None:
    with_profile(experiment.root, **{limit: 7})
    done = run_chain(experiment, "-n", "3")
    assert done.exit_code == 1
    assert "digits-003: not submitted: a limit is reached: %s 7\n" % limit in done.output
    assert len(attempts(experiment)) == 2 and len(slurm.sent) == 6
    run_chain(experiment, "-n", "3")
    assert len(slurm.sent) == 6


def test_runs_that_the_time_for_submissions_left_out_are_not_blamed_on_a_limit(
    experiment: Experiment, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_profile(experiment.root, most_jobs=8)
    monkeypatch.setattr(chain, "LONGEST_PASS", -1.0)
    done = run_chain(experiment, "-n", "3")
    reasons = dict(line.split(": not submitted: ") for line in done.output.splitlines() if "not sub" in line)
    in_time, over = "the time for submissions (-1 s) was used up", "a limit is reached: most_jobs 8"
    assert reasons == {"digits-001": in_time, "digits-002": in_time, "digits-003": over, "digits-004": over}
    assert "Run `outlast chain" in done.output and slurm.sent == []


def test_a_scheduler_that_does_not_respond_is_the_reason_for_each_run(
    experiment: Experiment, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*words: Any, **more: Any) -> CommandOutput:
        return CommandOutput(1, "", "slurm_load_jobs error: Unable to contact slurm controller")

    monkeypatch.setattr(command_runner, "run_command", fail)
    done = json.loads(run_chain(experiment, "-n", "3", "--json").stdout)
    assert set(done["not_sent"].values()) == {"not submitted: the scheduler did not respond"}

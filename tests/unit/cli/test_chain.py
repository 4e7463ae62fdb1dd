"""`outlast chain` on a Slurm whose programs answer as they are told."""

from __future__ import annotations

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
    """Takes every job; `before_each` is called before it does."""

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


def chained(experiment: Experiment, *arguments: str) -> Result:
    return CliRunner().invoke(chain.command, [str(experiment.root), *arguments])


def attempts(experiment: Experiment) -> list[Attempt]:
    journal = Journal(experiment.journal)
    try:
        return list(journal.attempts())
    finally:
        journal.close()


def test_every_run_is_sent_as_so_many_jobs(experiment: Experiment, slurm: Slurm) -> None:
    done = chained(experiment, "-n", "3")
    assert done.exit_code == 0, done.output
    assert [attempt.jobs for attempt in attempts(experiment)] == [3] * 4
    assert len(slurm.sent) == 12


def test_status_knows_chains_and_reads_all_runs_only_where_there_may_be_some(
    experiment: Experiment, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def state() -> str:
        return CliRunner().invoke(status.command, [str(experiment.root)], catch_exceptions=False).output

    def never(journal: Journal) -> None:
        raise AssertionError("all runs are read")

    chained(experiment, "-n", "3")
    assert "chains of jobs go on by themselves" in state()
    (experiment.root / "params.yaml").write_text("command: 'true'\ncluster: farm\nruns: 5\n")
    submitted = CliRunner().invoke(submit.command, [str(experiment.root)], catch_exceptions=False)
    assert submitted.exit_code == 0, submitted.output
    monkeypatch.setattr(Journal, "live", never)
    assert "nobody supervises it" in state()


# One controller at a time.


def test_nobody_can_take_the_runs_of_a_chain_before_it_is_sent(
    experiment: Experiment, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever held the experiment between the request and the sending would send single jobs."""
    refused = []

    def hand_over(*arguments: Any) -> object:
        submitted = original(*arguments)
        with pytest.raises(JournalHeld) as error, control(experiment, "tick"):
            raise AssertionError("a tick got in between")
        refused.append(error.value)
        return submitted

    original = chain.hand_over
    monkeypatch.setattr(chain, "hand_over", hand_over)
    assert chained(experiment, "-n", "2").exit_code == 0
    assert refused and [attempt.jobs for attempt in attempts(experiment)] == [2] * 4


def test_where_somebody_supervises_nothing_is_asked_for_and_nothing_sent(
    experiment: Experiment, slurm: Slurm
) -> None:
    with control(experiment, "up"):
        done = chained(experiment, "-n", "2")
    assert isinstance(done.exception, JournalHeld) and "outlast up" in str(done.exception)
    assert Inbox(experiment.inbox).names() == [] and slurm.sent == []


def test_a_submission_of_many_calls_shows_before_each_that_it_is_alive(
    experiment: Experiment, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats = [0]
    seen = []
    monkeypatch.setattr(Lease, "beat", lambda self: beats.append(len(slurm.sent)))
    slurm.before_each = lambda: seen.append(beats[-1] == len(slurm.sent))
    assert chained(experiment, "-n", "5").exit_code == 0
    assert seen == [True] * 20


def test_a_controller_that_was_replaced_sends_no_more(
    experiment: Experiment, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replaced(self: Lease) -> None:
        if len(slurm.sent) == 3:
            raise JournalHeld("another one took over")

    monkeypatch.setattr(Lease, "beat", replaced)
    assert isinstance(chained(experiment, "-n", "5").exception, JournalHeld)
    assert len(slurm.sent) == 3


# What a cluster allows.


@pytest.mark.parametrize(
    ("limit", "words"),
    [("most_jobs", "4 jobs at once (most_jobs)"), ("submit_rate", "4 jobs in a minute (submit_rate)")],
)
def test_a_chain_that_can_never_fit_is_refused_with_what_to_type(
    experiment: Experiment, slurm: Slurm, limit: str, words: str
) -> None:
    with_profile(experiment.root, **{limit: 4})
    refused = chained(experiment, "-n", "5")
    assert isinstance(refused.exception, BadInput)
    assert words in str(refused.exception) and "`-n 4`" in str(refused.exception)
    assert Inbox(experiment.inbox).names() == [] and not experiment.journal.exists()
    assert chained(experiment, "-n", "4").exit_code == 1 and len(slurm.sent) == 4


@pytest.mark.parametrize("limit", ["most_jobs", "submit_rate"])
def test_a_chain_takes_as_much_of_the_limits_as_it_has_jobs(
    experiment: Experiment, slurm: Slurm, limit: str
) -> None:
    with_profile(experiment.root, **{limit: 7})
    done = chained(experiment, "-n", "3")
    assert done.exit_code == 1 and "not sent" in done.output
    assert len(attempts(experiment)) == 2 and len(slurm.sent) == 6
    chained(experiment, "-n", "3")
    assert len(slurm.sent) == 6

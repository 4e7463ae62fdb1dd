"""One controller at a time, and requests of other commands meanwhile: real processes, real signals."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from outlast.domain.model import EntryKind
from support.experiments import GATED, Lab, kill_at_once, open_journal, states


@pytest.fixture
def gate(lab: Lab) -> Path:
    return lab.root / "gate"


@pytest.fixture
def gated(lab: Lab, gate: Path) -> Path:
    """An experiment of one run that continues when `gate` exists."""
    return lab.experiment("one", {"train.sh": GATED}, command="sh train.sh %s" % gate, outputs=["out.txt"])


def test_a_second_controller_names_the_holder_its_host_and_since_when(
    lab: Lab, gated: Path, gate: Path
) -> None:
    first = lab.start("run", gated)
    lab.running_job(gated)
    for command in ("up", "tick"):
        second = lab.outlast(command, gated)
        assert second.returncode == 2
        assert (
            "supervised by `outlast run` (pid %d) on %s since 2" % (first.pid, socket.gethostname())
            in second.stderr
        )
        assert "Traceback" not in second.output
    gate.touch()
    assert lab.finish(first).returncode == 0


def test_a_holder_that_was_killed_is_taken_over_at_once(lab: Lab, gated: Path, gate: Path) -> None:
    first = lab.start("run", gated)
    job = lab.running_job(gated)
    kill_at_once(first.pid)
    second = lab.start("up", gated)
    lab.until(
        "the second controller holds the lease",
        lambda: (lab.outlast("status", gated, "--json").json["controller"] or {}).get("pid") == second.pid,
    )
    gate.touch()
    assert lab.finish(second).returncode == 0
    with open_journal(gated) as journal:
        assert [attempt.token for attempt in journal.attempts()] == [job.token], "the job was not found again"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_up_leaves_the_jobs_running_and_names_the_command_to_continue(
    lab: Lab, gated: Path, gate: Path, number: signal.Signals
) -> None:
    first = lab.start("run", gated)
    job = lab.running_job(gated)
    first.send_signal(number)
    ended = lab.finish(first)
    assert ended.returncode == 130
    assert "`outlast up %s`" % gated in ended.stderr and "Traceback" not in ended.output
    assert lab.running_job(gated).token == job.token
    assert "Not supervised. Run `outlast up" in lab.outlast("status", gated).stdout
    gate.touch()
    assert lab.outlast("up", gated).returncode == 0
    with open_journal(gated) as journal:
        assert [attempt.token for attempt in journal.attempts()] == [job.token]


def test_a_running_up_processes_submit_cancel_and_retry_from_another_terminal(lab: Lab) -> None:
    gates = {name: lab.root / name for name in ("a", "b")}
    params = {"command": "sh train.sh %s/{gate}" % lab.root, "code": ["train.sh"], "outputs": ["out.txt"]}
    many = lab.experiment("many", {"train.sh": GATED}, **params, sweep={"gate": ["a"]})
    up = lab.start("run", many)
    lab.running_job(many, "many-gate=a")

    lab.params(many, name="many", **params, sweep={"gate": ["a", "b"]})
    ended = lab.outlast("submit", many)
    assert ended.returncode == 0 and "it will process this request" in ended.stdout
    lab.running_job(many, "many-gate=b")

    assert "it will process this request" in lab.outlast("cancel", "many-gate=b", "-C", many).stdout
    lab.until("the cancellation", lambda: states(many)["many-gate=b"] == "cancelled")

    assert "it will process this request" in lab.outlast("retry", "many-gate=b", cwd=many).stdout
    lab.running_job(many, "many-gate=b")

    assert up.poll() is None, "the controller left"
    for gate in gates.values():
        gate.touch()
    assert lab.finish(up).returncode == 0
    assert states(many) == {"many-gate=a": "finished", "many-gate=b": "finished"}


def test_an_experiment_can_run_from_submission_to_end_with_ticks_alone(lab: Lab) -> None:
    ticked = lab.experiment("ticked", command="sh train.sh plain", outputs=["first.txt"])
    assert lab.outlast("submit", ticked).returncode == 0

    def tick() -> bool:
        ended = lab.outlast("tick", ticked, "--json")
        assert ended.returncode == 0, ended.output
        return bool(ended.json["runs"] == {"finished": 1})

    lab.until("the end", tick)
    with open_journal(ticked) as journal:
        assert sum(row.entry.kind is EntryKind.INTENDED for row in journal.entries()) == 3


def test_two_experiments_on_one_cluster_do_not_interfere(lab: Lab) -> None:
    directories = [
        lab.experiment(name, command="sh train.sh plain", runs=2, outputs=["first.txt"])
        for name in ("x", "y")
    ]
    commands = [lab.start("run", directory) for directory in directories]
    for command, directory in zip(commands, directories, strict=True):
        ended = lab.finish(command)
        assert ended.returncode == 0, ended.output
        assert set(states(directory).values()) == {"finished"}
        with open_journal(directory) as journal:
            assert len(list(journal.attempts())) == 6

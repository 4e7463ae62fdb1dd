"""Messages about a scheduler that rejects a job or does not respond. Its programs are small scripts here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outlast.domain.model import EntryKind
from support.experiments import Lab, open_journal, states
from support.fake_programs import program

REFUSES = "echo 'sbatch: error: Batch job submission failed: Invalid partition name specified' >&2; exit 1"
NO_RESPONSE = "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1"


@pytest.fixture
def programs(lab: Lab) -> Path:
    """Install Slurm's programs: an empty queue, and an sbatch that rejects every job."""
    place = lab.root / "bin"
    place.mkdir()
    for name, script in (("squeue", "exit 0"), ("sinfo", "exit 0"), ("sacct", "exit 1"), ("sbatch", REFUSES)):
        program(place, name, script)
    lab.environment["PATH"] = "%s:%s" % (place, os.environ["PATH"])
    return place


@pytest.fixture
def experiment(lab: Lab, programs: Path) -> Path:
    path = lab.experiment("no", command="sh train.sh plain", cluster="mine")
    (path / "clusters.yaml").write_text("mine:\n  scheduler: slurm\n  partition: gpu\n  interval: 1s\n")
    return path


def test_submit_run_and_explain_show_a_rejection_with_the_key_its_line_and_what_to_type(
    lab: Lab, experiment: Path
) -> None:
    advice = "correct `partition` in clusters.yaml:3 (`sinfo -s` lists the choices), then run "
    advice += "`outlast retry no -C %s`" % experiment
    submitted = lab.outlast("submit", experiment)
    assert submitted.returncode == 1 and states(experiment) == {"no": "failed"}
    assert submitted.stderr.startswith(
        "no FAILED: the scheduler refused the job: Batch job submission failed"
    )
    assert submitted.stderr.endswith("; %s\n" % advice)
    assert "to continue" not in submitted.stdout, "there is nothing to continue"
    assert advice in lab.outlast("explain", "no", "-C", experiment).stdout
    retried = lab.outlast("retry", "no", "-C", experiment)
    assert retried.returncode == 1 and advice in retried.stderr
    again = lab.experiment("again", command="sh train.sh plain", cluster="mine")
    (again / "clusters.yaml").write_text((experiment / "clusters.yaml").read_text())
    assert "\n  correct `partition` in clusters.yaml:3" in lab.outlast("run", again).stdout


def test_a_job_that_is_refused_for_now_is_reported_and_submitted_again(
    lab: Lab, programs: Path, experiment: Path
) -> None:
    program(programs, "sbatch", REFUSES.replace("Invalid partition name specified", "Job queue full"))
    submitted = lab.outlast("submit", experiment)
    assert submitted.returncode == 0 and states(experiment) == {"no": "waiting"}
    assert submitted.stderr.startswith("no: refused for now: no room for another job: ")
    assert submitted.stderr.endswith("; it will be submitted again\n")


def test_a_scheduler_that_does_not_respond_is_reported_and_nothing_is_lost(
    lab: Lab, programs: Path, experiment: Path
) -> None:
    program(programs, "squeue", NO_RESPONSE)
    submitted = lab.outlast("submit", experiment)
    assert submitted.returncode == 0
    sentence = "Unable to contact slurm controller; the runs are saved and will be submitted once it does"
    assert sentence in submitted.stderr
    assert "nothing is lost, and the next tick tries again" in lab.outlast("tick", experiment).stderr
    up = lab.start("up", experiment)
    assert up.stdout is not None
    line = up.stdout.readline()
    assert "scheduler: not responding: cluster mine: squeue: slurm_load_jobs error" in line
    assert "Nothing is lost: jobs continue, and Outlast keeps trying" in line
    program(programs, "squeue", "exit 0")
    assert "scheduler: responding again, after" in "".join(up.stdout)
    assert up.wait(60) == 1 and states(experiment) == {"no": "failed"}


def test_on_a_machine_without_the_programs_the_message_names_what_to_load(
    lab: Lab, programs: Path, experiment: Path
) -> None:
    (programs / "sbatch").unlink()
    (programs / "squeue").unlink()
    up = lab.start("run", experiment, PATH=str(programs))
    assert up.stdout is not None
    while "scheduler:" not in (line := up.stdout.readline()):
        assert line, lab.finish(up).output
    up.terminate()
    assert "not responding: sbatch, squeue, scancel and scontrol were not found on the PATH: load" in line
    assert lab.finish(up).returncode == 130


def test_retry_prints_which_job_it_submitted(lab: Lab) -> None:
    bug = lab.experiment("bug", command="sh train.sh bug")
    assert lab.outlast("run", bug).returncode == 1
    retried = lab.outlast("retry", "bug", "-C", bug)
    with open_journal(bug) as journal:
        (*_, job) = [row.entry.data["job"] for row in journal.entries() if row.entry.kind is EntryKind.QUEUED]
    assert retried.stdout.splitlines()[:2] == ["retrying: bug", "bug: submitted as job %s" % job]


def test_retry_leaves_it_to_the_user_to_submit_a_chain_again(lab: Lab, experiment: Path) -> None:
    assert lab.outlast("chain", experiment, "-n", "2").returncode == 1
    output = lab.outlast("retry", "no", "-C", experiment).stdout
    assert "Nothing was submitted yet. Run `outlast chain %s` to submit a chain" % experiment in output
    assert states(experiment) == {"no": "waiting"}

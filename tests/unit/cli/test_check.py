"""`outlast check` shows what would run, or all mistakes; it submits nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from outlast.cli.commands.check import command


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    experiment = tmp_path / "digits"
    experiment.mkdir()
    (experiment / "train.py").write_text("")
    (experiment / "params.yaml").write_text(
        "command: python3 train.py --title {title}\n"
        "sweep: {title: [a b, c, d, e]}\n"
        "resources: {time: 90min}\n"
        "outputs: [model.npz, {path: metrics.json, key: accuracy, at_least: 0.9},\n"
        "          {path: metrics.json, key: loss}, {path: x, check: sh -c 'exit 0'}]\n"
    )
    return experiment


def check(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_an_experiment_without_mistakes_is_summarised(directory: Path) -> None:
    result = check(directory)
    assert result.exit_code == 0
    assert result.stderr == ""
    assert result.stdout.splitlines() == [
        "digits: 4 runs (digits-title=a_b, digits-title=c, digits-title=d, …) on cluster local",
        "  command   python3 train.py --title 'a b'",
        "  code      train.py",
        "  attempts  1 h 30 min each; at most 50 and 14 d in total per run",
        "  output    model.npz, must exist and not be empty",
        "  output    metrics.json, accuracy at least 0.9",
        "  output    metrics.json, loss must be present",
        "  output    x, checked by sh -c 'exit 0'",
        "  kept      everything in $OUTLAST_OUTPUT_DIR, and new or changed files in the working directory, "
        "of 2 GB together (other_outputs); larger ones stay in workdir",
        f"No errors. Next: outlast run {directory}",
    ]


def test_checking_leaves_the_directory_as_it_was(directory: Path) -> None:
    before = sorted(directory.rglob("*"))
    check(directory)
    check(directory, "--json")
    assert sorted(directory.rglob("*")) == before


def test_the_current_directory_is_checked_if_none_is_named(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(directory)
    result = check()
    assert result.exit_code == 0
    assert result.stdout.startswith("digits: 4 runs")
    assert result.stdout.endswith("Next: outlast run\n")


def test_all_mistakes_are_printed_and_counted_and_the_exit_code_is_2(directory: Path) -> None:
    (directory / "params.yaml").write_text("command: python3 train.py\nruns: 0\nparallel: 0\nfoo: 1\n")
    result = check(directory)
    assert result.exit_code == 2
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert [line.split(": ")[0] for line in lines[:3]] == ["params.yaml:2", "params.yaml:3", "params.yaml:4"]
    assert lines[3] == "3 errors, nothing was submitted"


def test_every_wrong_entry_of_the_outputs_is_printed(directory: Path) -> None:
    (directory / "params.yaml").write_text(
        'command: python3 train.py\noutputs: [../x, /abs, "", ".", 3, {path: ../y}]\n'
    )
    lines = check(directory).stderr.splitlines()
    assert sorted(line.split(": ")[1] for line in lines[:-1]) == [
        "outputs[1].path",
        "outputs[2].path",
        "outputs[3].path",
        "outputs[4].path",
        "outputs[5]",
        "outputs[6].path",
    ]
    assert lines[-1] == "6 errors, nothing was submitted"


def test_a_single_mistake_is_counted_as_one(directory: Path) -> None:
    (directory / "params.yaml").unlink()
    result = check(directory)
    assert result.exit_code == 2
    assert result.stderr.endswith("1 error, nothing was submitted\n")


def test_a_warning_is_printed_and_does_not_change_the_exit_code(directory: Path) -> None:
    (directory / "params.yaml").write_text("command: python3 train.py\nresources: {time: 30:00}\n")
    result = check(directory)
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: params.yaml:2: resources.time: 30:00 is read as minutes")


def test_programs_of_the_cluster_missing_on_this_machine_are_a_warning(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "params.yaml").write_text("command: sh train.py\ncode: [train.py]\n")
    (directory / "clusters.yaml").write_text(
        "mine: {scheduler: slurm, environment: /nowhere/env, python: /nowhere/python3, container: docker://x}\n"
    )
    monkeypatch.setattr("outlast.schedulers.discovery.shutil.which", lambda name: None)
    result = check(directory, "--cluster", "mine")
    assert result.exit_code == 0
    assert [line for line in result.stderr.splitlines() if "cluster mine" in line] == [
        "warning: cluster mine: sbatch, squeue, scancel and scontrol were not found on the PATH: "
        "load your site's Slurm module, or run this on a login node",
        "warning: cluster mine: environment: /nowhere/env is not on this machine",
    ]
    assert result.stdout.endswith(f"Next: outlast run {directory} --cluster mine\n")


def test_the_number_of_attempts_under_the_time_limit_of_the_cluster_is_shown(directory: Path) -> None:
    (directory / "clusters.yaml").write_text("rehearsal: {scheduler: local, longest: 24h}\n")
    (directory / "params.yaml").write_text(
        "command: python3 train.py\nresources: {time: 14d}\nlimits: {total: 30d}\ncluster: rehearsal\n"
    )
    result = check(directory)
    assert result.stderr == ""
    sentence = "this cluster ends jobs after 24 h; your 14-day training run will take about 15 attempts"
    assert "  attempts  1 d each; at most 50" in result.stdout
    assert sentence in result.stdout
    found = json.loads(check(directory, "--json").stdout)
    assert (found["notes"], found["attempts_needed"], found["job_time"]) == ([sentence], 15, 86400.0)
    assert found["resources"]["time"] == 14 * 86400


def test_a_directory_that_cannot_be_written_is_a_mistake(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may = os.access
    # The tests may run as root, who may write everywhere.
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK and may(path, mode))
    result = check(directory)
    assert result.exit_code == 2
    assert f"{directory}: is not writable, but the journal and the results are written there" in result.stderr


def test_the_summary_as_json_has_every_run_and_the_first_command(directory: Path) -> None:
    result = check(directory, "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    assert found["ok"] is True
    assert found["mistakes"] == []
    assert [run["name"] for run in found["runs"]][3] == "digits-title=e"
    assert found["first_command"] == ["python3", "train.py", "--title", "a b"]
    assert found["resources"]["time"] == 5400.0
    assert found["outputs"][1] == {
        "path": "metrics.json",
        "key": "accuracy",
        "at_least": 0.9,
        "at_most": None,
        "check": None,
    }


def test_the_mistakes_as_json_have_file_line_text_and_hint(directory: Path) -> None:
    (directory / "params.yaml").write_text("command: python3 train.py\nnam: x\n")
    result = check(directory, "--json")
    assert result.exit_code == 2
    found = json.loads(result.stdout)
    assert found["ok"] is False
    (mistake,) = found["mistakes"]
    assert (mistake["file"], mistake["line"], mistake["column"]) == ("params.yaml", 2, None)
    assert mistake["text"] == "nam: unknown key"
    assert mistake["hint"].startswith('did you mean "name"?')

"""`outlast clusters`: the clusters, where they are defined, and the schedulers on this machine.

The schedulers' programs are replaced by scripts that print what real ones printed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from outlast.cli.commands import clusters
from outlast.schedulers import discovery
from outlast.schedulers.command_runner import CommandOutput
from outlast.schedulers.discovery import Presence, find_scheduler
from support.fake_programs import grid_engine, printing, program, slurm


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory as PATH."""
    place = tmp_path / "bin"
    place.mkdir()
    monkeypatch.setenv("PATH", str(place))
    monkeypatch.delenv("SGE_ROOT", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(clusters, "_PATIENCE", 10.0)
    return place


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "experiment").mkdir()
    return tmp_path / "experiment"


def clusters_command(*arguments: str | Path) -> Result:
    return CliRunner().invoke(clusters.command, [str(argument) for argument in arguments])


def test_every_name_is_listed_with_its_scheduler_and_the_file_it_comes_from(
    programs: Path, directory: Path, tmp_path: Path
) -> None:
    own, users = directory / "clusters.yaml", tmp_path / "config/outlast/clusters.yaml"
    users.parent.mkdir(parents=True)
    own.write_text("farm: {scheduler: local}\nsge: {project: me}\n")
    users.write_text("# mine\nother: {scheduler: slurm}\nfarm: {scheduler: htcondor}\n")
    listed = json.loads(clusters_command("-C", directory, "--json").stdout)
    assert [tuple(one.values()) for one in listed["clusters"]] == [
        ("local", "local", None, None),
        ("slurm", "slurm", None, None),
        ("sge", "sge", "clusters.yaml", 2),
        ("htcondor", "htcondor", None, None),
        ("farm", "local", "clusters.yaml", 1),
        ("other", "slurm", str(users), 2),
    ]
    lines = clusters_command("-C", directory).stdout.splitlines()
    assert lines[5].split() == ["farm", "local", "clusters.yaml:1"]


def test_each_missing_scheduler_is_one_clear_line(programs: Path, directory: Path) -> None:
    slurm(programs)
    (programs / "sbatch").unlink()
    result = clusters_command("-C", directory)
    assert result.exit_code == 0
    lines = [line.strip() for line in result.stdout.splitlines()]
    remedy = "load your site's Slurm module, or run this on a login node"
    assert "slurm      sbatch was not found on the PATH: " + remedy in lines
    (missing,) = [line for line in lines if line.startswith("sge ") and "found" in line]
    assert missing.startswith("sge        qsub, qstat, qdel and qacct were not found on the PATH: load your")


def test_schedulers_that_are_found_are_shown_with_their_version(programs: Path, directory: Path) -> None:
    slurm(programs)
    grid_engine(programs)
    program(programs, "singularity", "echo singularity-ce version 3.11.0")
    machine = json.loads(clusters_command("-C", directory, "--json").stdout)["machine"]
    assert (machine["slurm"]["version"], machine["slurm"]["notes"]) == ("22.05.8", ["cluster test"])
    assert str(programs / "sacct") in machine["slurm"]["found"]
    assert (machine["sge"]["version"], machine["sge"]["notes"]) == ("8.1.9", ["queues gpu.q, main.q"])
    assert (machine["apptainer"]["version"], machine["apptainer"]["problems"]) == ("3.11.0", [])
    assert machine["slurm"]["problems"] == machine["sge"]["problems"] == []


def test_a_slurm_without_accounting_is_usable_and_noted(programs: Path) -> None:
    slurm(programs)
    config = "AccountingStorageType = accounting_storage/none\nClusterName = test\nMinJobAge = 300 sec\n"
    program(programs, "scontrol", printing(config))
    found = find_scheduler("slurm", 10.0)
    assert found.problems == ()
    assert found.notes[1] == "no accounting (sacct): the end of a job is known for 300 sec"


def test_the_error_of_a_program_that_cannot_reach_its_scheduler_is_shown(programs: Path) -> None:
    slurm(programs)
    program(programs, "scontrol", "echo first >&2; echo 'slurm_load_ctl_conf error: refused' >&2; exit 1")
    assert find_scheduler("slurm", 10.0).problems == (
        "the Slurm controller does not respond (slurm_load_ctl_conf error: refused): try again later",
    )
    grid_engine(programs)
    program(programs, "qstat", "echo 'error: no qmaster' >&2; exit 1")
    (problem,) = find_scheduler("sge", 10.0).problems
    assert problem.startswith("SGE_ROOT is not set, and no qmaster responds (error: no qmaster): load your")


def test_a_scheduler_that_hangs_is_given_up_after_the_timeout(programs: Path) -> None:
    slurm(programs)
    program(programs, "scontrol", "exec 1>&- 2>&-\nwhile :; do :; done")
    (problem,) = find_scheduler("slurm", 0.5).problems
    assert "did not respond within" in problem


def test_without_its_bindings_htcondor_is_not_queried(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert find_scheduler("htcondor", 10.0) == Presence(
        problems=("htcondor2 is not installed: type `pip install 'outlast[htcondor]'`",)
    )


def test_one_cluster_is_shown_in_full_with_the_limits_of_its_scheduler(
    programs: Path, directory: Path
) -> None:
    slurm(programs)
    (directory / "clusters.yaml").write_text("mine: {scheduler: slurm, account: def-me, partition: short}\n")
    result = clusters_command("mine", "-C", directory)
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[:4] == [
        "mine: slurm, clusters.yaml:1",
        "project def-me",
        "queue short",
        "python python3",
    ]
    assert "main (the default): the time limit is UNLIMITED" in lines
    assert "short: jobs end after 24 h; add `longest: 24h` to the profile" in lines


def test_the_limits_of_grid_engine_queues_are_shown(programs: Path, directory: Path) -> None:
    grid_engine(programs)
    limits = json.loads(clusters_command("sge", "-C", directory, "--json").stdout)["limits"]
    assert [(one["name"], one["longest"]) for one in limits] == [("main.q", 12 * 3600.0), ("gpu.q", None)]
    assert limits[1]["written"] == "INFINITY,[@gpu=24:00:00],[@old=1:0:0]"


def test_keys_of_a_group_are_shown_as_they_are_written(programs: Path, directory: Path) -> None:
    shown = clusters_command("slurm", "-C", directory).stdout
    assert "transfers.stall       15 s" in shown
    assert "cache_size, token.hosts, token.file, token.command\n" in shown


def test_keys_that_are_not_for_the_scheduler_are_not_shown(programs: Path, directory: Path) -> None:
    assert "commit" not in clusters_command("slurm", "-C", directory).stdout
    assert "commit_every          30 min" in clusters_command("htcondor", "-C", directory).stdout


def test_mistakes_are_printed_and_do_not_hide_other_clusters(programs: Path, directory: Path) -> None:
    (directory / "clusters.yaml").write_text("farm: {scheduler: pbs, longest: 5}\nmine: {scheduler: local}\n")
    result = clusters_command("-C", directory)
    assert result.exit_code == 0
    assert "clusters.yaml:1, with 2 errors" in result.stdout
    assert len(result.stderr.splitlines()) == 2
    assert clusters_command("mine", "-C", directory).stderr == ""


def test_the_error_for_an_unknown_name_suggests_the_nearest_one(programs: Path, directory: Path) -> None:
    result = clusters_command("slrum", "-C", directory)
    assert result.exit_code != 0
    assert 'did you mean "slurm"? (known: local, slurm, sge, htcondor)' in str(result.exception)


def test_a_profile_whose_scheduler_is_misspelt_is_not_listed_as_another(
    programs: Path, directory: Path
) -> None:
    (directory / "clusters.yaml").write_text("farm: {scheduler: slrum}\n")
    listed = clusters_command("-C", directory)
    assert "farm      unknown    clusters.yaml:1, with 1 error" in listed.stdout
    assert (
        'farm.scheduler: must be local, slurm, sge or htcondor, not the text "slrum"; did you mean "slurm"?'
        in listed.stderr
    )
    assert json.loads(clusters_command("-C", directory, "--json").stdout)["clusters"][-1]["scheduler"] is None
    one = clusters_command("farm", "-C", directory)
    assert one.stdout == "farm: scheduler unknown, clusters.yaml:1, with 1 error\n"
    assert 'did you mean "slurm"?' in one.stderr


@pytest.mark.parametrize(
    ("response", "sentence"),
    [
        (
            '{"offer": [{"GLIDEIN_ResourceName": "beta", "TotalSlotCpus": 4, "TotalSlotGPUs": 1},'
            ' {"GLIDEIN_ResourceName": "alpha", "TotalSlotCpus": 8}]}',
            "2 slots with 12 cpus and 1 gpu at 2 sites (alpha, beta)",
        ),
        ('{"offer": [{"Machine": "here", "TotalSlotCpus": 1}]}', "1 slot with 1 cpu and 0 gpus"),
        ('{"trouble": "Failed communication with collector."}', "its slots are not known (Failed"),
        ("", "its slots are not known (the response cannot be read)"),
    ],
)
def test_the_slots_of_a_pool_are_described_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, response: str, sentence: str
) -> None:
    monkeypatch.setattr(discovery, "run_command", lambda *arguments: CommandOutput(0, response, ""))
    assert discovery.describe_pool(1.0).startswith(sentence)


def test_an_access_point_is_shown_with_its_name_and_transfer_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    response = '{"version": "25.0.1", "name": "ap40", "limits": {"INPUT": 5000, "OUTPUT": -1}}'
    monkeypatch.setattr(discovery, "missing_programs", lambda scheduler: ())
    monkeypatch.setattr(discovery, "run_command", lambda *arguments: CommandOutput(0, response, ""))
    assert find_scheduler("htcondor", 1.0).notes == (
        "access point ap40",
        "a job may transfer at most 5000 MB of input",
    )

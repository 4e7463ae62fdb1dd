"""`outlast check` against the hosts: memory and disk that no host has, modules that Python does not have."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from outlast.cli.commands import check
from outlast.schedulers.host_sizes import HostSizes, parse_offer, parse_qhost, parse_sinfo

GIB = 1 << 30


@pytest.fixture(autouse=True)
def no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def warnings(directory: Path, params: str) -> list[str]:
    (directory / "params.yaml").write_text(params)
    result = CliRunner().invoke(check.command, [str(directory), "--json"])
    assert result.exit_code == 0, result.output
    return [one["text"] for one in json.loads(result.stdout)["warnings"]]


def test_memory_and_disk_beyond_this_machine_are_warnings(tmp_path: Path) -> None:
    found = warnings(tmp_path, "command: python3 -c 1\nresources: {memory: 900TB, disk: 900TB}\n")
    assert [text.partition(";")[0] for text in found] == [
        "resources.memory: no host of cluster local has 900 TB",
        "resources.disk: no host of cluster local has 900 TB",
    ]
    assert warnings(tmp_path, "command: python3 -c 1\nresources: {memory: 1MB, disk: 1MB}\n") == []


def test_a_module_that_python_does_not_have_is_named_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import json, outlast\nimport no_such_module_here.nn as nn\n")
    (found,) = warnings(tmp_path, "command: python3 train.py\n")
    assert found == "train.py imports no_such_module_here, which python3 does not have"


def test_what_the_nodes_of_another_cluster_have_is_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import no_such_module_here\n")
    found = warnings(tmp_path, "command: python3 train.py\ncluster: slurm\n")
    assert not [text for text in found if "no_such_module_here" in text]


def test_the_largest_node_of_slurm_is_known_unless_a_line_is_a_lower_bound() -> None:
    assert parse_sinfo("64000\n128000\n") == HostSizes(128000 << 20)
    assert parse_sinfo("64000+\n") == parse_sinfo("1\n") == parse_sinfo("") == HostSizes()


def test_the_largest_host_of_grid_engine_is_known() -> None:
    head = "HOSTNAME                ARCH         NCPU NSOC NCOR NTHR  LOAD  MEMTOT  MEMUSE  SWAPTO  SWAPUS\n"
    rows = "-" * 80 + "\nglobal - - - - - - - - - -\nn1 lx-amd64 8 1 8 8 0.10 31.5G 2.1G 0.0 0.0\n"
    assert parse_qhost(head + rows) == HostSizes(int(31.5 * GIB))
    assert parse_qhost("") == parse_qhost("error: no qmaster\n") == HostSizes()


def test_the_largest_slot_of_htcondor_is_known() -> None:
    slots = [{"TotalSlotMemory": 2048, "TotalSlotDisk": 1024}, {"TotalSlotMemory": 4096}, {}]
    assert parse_offer("noise\n" + json.dumps({"offer": slots})) == HostSizes(4 * GIB, 1 << 20)
    assert parse_offer('{"trouble": "no collector"}') == parse_offer("") == HostSizes()


def test_slurm_is_asked_for_the_partition_of_the_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outlast.schedulers.host_sizes import query_host_sizes
    from outlast.schedulers.profile import Profile

    asked = tmp_path / "asked"
    program = tmp_path / "sinfo"
    program.write_text('#!/bin/sh\necho "$@" > %s\necho 2000\n' % shlex.quote(str(asked)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", "%s:/usr/bin:/bin" % tmp_path)
    found = query_host_sizes("slurm", Profile(queue="gpu"), str(tmp_path), 60.0)
    assert found == HostSizes(2000 << 20) and "--partition=gpu" in asked.read_text()
    program.write_text("#!/bin/sh\nexit 1\n")
    assert query_host_sizes("slurm", Profile(), str(tmp_path), 60.0) == HostSizes()

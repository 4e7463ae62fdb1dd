"""The hint for a refused job names the key to change, its line, and what to type."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.cli.refusal_hints import suggest_fix
from outlast.spec.cluster_library import KnownCluster, Library

PROFILES = """\
mine:
  scheduler: slurm
  project: def-me
  partition: gpu
  gpus: gpu:v100:{gpus}
bare: {scheduler: slurm}
grid:
  scheduler: sge
  gpus: gpus={gpus}
  memory: mem_per_core={memory_gb_per_cpu}G
pool:
  scheduler: htcondor
  directives: [rank = Mips]
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "clusters.yaml").write_text(PROFILES)
    return Library(tmp_path)


def find_cluster(library: Library, name: str) -> KnownCluster:
    found = library.find(name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("cluster", "message", "hint"),
    [
        (
            "mine",
            "Invalid account or account/partition combination specified",
            "correct `project` in clusters.yaml:3 or `partition` in clusters.yaml:4 "
            "(`sacctmgr show assoc user=$USER format=account,partition` lists the choices)",
        ),
        (
            "bare",
            "Invalid account or account/partition combination specified",
            "add `account:` to the profile bare in clusters.yaml:6 "
            "(`sacctmgr show assoc user=$USER format=account,partition` lists the choices)",
        ),
        (
            "slurm",
            "Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)",
            "add `longest:` to a profile `slurm:` in clusters.yaml, next to params.yaml "
            '(`sinfo -o "%P %l"` lists the choices), or correct `resources.time` in params.yaml',
        ),
        (
            "mine",
            "Invalid generic resource (gres) specification",
            "correct `gpus` in clusters.yaml:5 or `resources.gpus` in params.yaml "
            '(`sinfo -o "%P %c %m %G %l"` lists the choices)',
        ),
        (
            "grid",
            'unknown resource "mem_per_core"',
            "correct `gpus` in clusters.yaml:9 or `memory` in clusters.yaml:10 "
            "(`qconf -sc` lists the choices)",
        ),
        (
            "grid",
            'job rejected: the requested parallel environment "smp" does not exist',
            "add `cpus:` to the profile grid in clusters.yaml:7 (`qconf -spl` lists the choices), "
            "or correct `resources.cpus` in params.yaml",
        ),
        (
            "pool",
            "a line of the submit description cannot be read; look at `directives` in the profile",
            "correct `directives` in clusters.yaml:13",
        ),
        (
            "mine",
            "an unknown message",
            "correct the profile mine in clusters.yaml:1 or resources in params.yaml "
            "(`outlast submit --dry-run` shows the job)",
        ),
    ],
)
def test_the_hint_names_the_keys_to_correct_and_where_they_are(
    library: Library, cluster: str, message: str, hint: str
) -> None:
    assert suggest_fix(message, find_cluster(library, cluster)) == hint

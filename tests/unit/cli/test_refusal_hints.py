"""A scheduler's refusal names the key to change, its line, and what to type."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.cli.refusal_hints import remedy
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


def known(library: Library, name: str) -> KnownCluster:
    found = library.find(name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("cluster", "said", "told"),
    [
        (
            "mine",
            "Invalid account or account/partition combination specified",
            "correct `project` in clusters.yaml:3 or `partition` in clusters.yaml:4 "
            "(`sacctmgr show assoc user=$USER format=account,partition` lists what there is)",
        ),
        (
            "bare",
            "Invalid account or account/partition combination specified",
            "add `account:` to the profile bare in clusters.yaml:6 "
            "(`sacctmgr show assoc user=$USER format=account,partition` lists what there is)",
        ),
        (
            "slurm",
            "Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)",
            "add `longest:` to a profile `slurm:` in clusters.yaml beside params.yaml "
            '(`sinfo -o "%P %l"` lists what there is), or correct `resources.time` in params.yaml',
        ),
        (
            "mine",
            "Invalid generic resource (gres) specification",
            "correct `gpus` in clusters.yaml:5 or `resources.gpus` in params.yaml "
            '(`sinfo -o "%P %c %m %G %l"` lists what there is)',
        ),
        (
            "grid",
            'unknown resource "mem_per_core"',
            "correct `gpus` in clusters.yaml:9 or `memory` in clusters.yaml:10 "
            "(`qconf -sc` lists what there is)",
        ),
        (
            "grid",
            'job rejected: the requested parallel environment "smp" does not exist',
            "add `cpus:` to the profile grid in clusters.yaml:7 (`qconf -spl` lists what there is), "
            "or correct `resources.cpus` in params.yaml",
        ),
        (
            "pool",
            "a line of the submit description cannot be read; look at `directives` in the profile",
            "correct `directives` in clusters.yaml:13",
        ),
        (
            "mine",
            "what nobody has heard of",
            "correct the profile mine in clusters.yaml:1 or resources in params.yaml "
            "(`outlast submit --dry-run` shows what was sent)",
        ),
    ],
)
def test_a_refusal_names_the_keys_it_is_about_and_where_they_are(
    library: Library, cluster: str, said: str, told: str
) -> None:
    assert remedy(said, known(library, cluster)) == told

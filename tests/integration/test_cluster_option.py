"""`--cluster NAME` runs the same experiment on another cluster and changes nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.experiments import Lab, open_journal


@pytest.fixture
def failing(lab: Lab) -> Path:
    """An experiment with `cluster: local` and a profile of a cluster named `other`."""
    path = lab.experiment("moved", command="sh train.sh bug")
    (path / "clusters.yaml").write_text("other: {scheduler: local, hosts: {gamma: 2}}\n")
    return path


def test_a_run_uses_the_given_cluster_and_a_retry_never_moves_it_silently(lab: Lab, failing: Path) -> None:
    ended = lab.outlast("run", failing, "--cluster", "other")
    assert ended.returncode == 1
    with open_journal(failing) as journal:
        (run,) = journal.runs()
        assert journal.spec(run.spec).cluster == "other"
        assert {attempt.host for attempt in journal.attempts(run.name)} == {"gamma"}
    refused = lab.outlast("retry", "moved", "-C", failing)
    assert refused.returncode == 2
    assert "moved was on cluster other, but params.yaml names local" in refused.stderr
    assert "`--cluster other` or `--cluster local`" in refused.stderr
    assert lab.outlast("retry", "moved", "-C", failing, "--cluster", "other").returncode == 0


def test_a_dry_run_shows_the_job_of_the_given_cluster(lab: Lab, failing: Path) -> None:
    shown = lab.outlast("submit", failing, "--dry-run", "--cluster", "other")
    assert shown.returncode == 0
    assert "Job of the first attempt of moved (cluster other):" in shown.stdout
    assert not (failing / "journal.sqlite").exists()


def test_an_unknown_cluster_is_refused_before_anything_is_written(lab: Lab, failing: Path) -> None:
    for command in ("submit", "run", "check"):
        refused = lab.outlast(command, failing, "--cluster", "othr")
        assert refused.returncode == 2
        assert '--cluster: "othr" is not a cluster; did you mean "other"?' in refused.stderr
    assert not (failing / "journal.sqlite").exists()


def test_a_run_that_needs_more_than_the_longest_job_is_split(lab: Lab) -> None:
    path = lab.experiment("long", command="sh train.sh plain", resources={"time": "1h"})
    (path / "clusters.yaml").write_text("short: {scheduler: local, longest: 20min}\n")
    shown = lab.outlast("submit", path, "--dry-run", "--cluster", "short", "--json")
    assert shown.json["order"]["time"] == 1200

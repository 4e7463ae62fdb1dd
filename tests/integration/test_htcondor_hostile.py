"""Hostile compute nodes of a real HTCondor pool: they change nothing but the files of their own attempt."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.experiment_runs import ClusterExperiment
from contract.htcondor_harness import HTCondorHarness
from outlast.exchange.experiment import Experiment
from support.experiments import Lab, states

pytestmark = pytest.mark.slow

SECRET = "the private key of the user"
TESTS = Path(__file__).parents[1]


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[HTCondorHarness]:
    harness = HTCondorHarness(tmp_path)
    yield harness
    harness.close()


@pytest.fixture
def home(lab: Lab) -> Path:
    """Return a home directory with files that no job may read or change."""
    keys = lab.root / "home" / "ssh"
    keys.mkdir(parents=True)
    for path in (lab.root / "home", keys):
        path.chmod(0o777)  # the jobs that root submits belong to another user
    for name in ("id_ed25519", "authorized_keys"):
        (keys / name).write_text(SECRET)
        (keys / name).chmod(0o666)
    return keys


def snapshot(*places: Path) -> dict[str, tuple[object, ...]]:
    """Return what every file and directory at and below these places holds, and its permissions."""
    found: dict[str, tuple[object, ...]] = {}
    for place in places:
        for path in [place, *place.rglob("*")]:
            status = path.lstat()
            content = (
                str(path.readlink())
                if path.is_symlink()
                else path.read_bytes()
                if path.is_file()
                else sorted(map(str, path.iterdir()))
            )
            found[str(path)] = (status.st_mode, status.st_nlink, status.st_mtime_ns, content)
    return found


def write_hostile(
    lab: Lab, pool: HTCondorHarness, home: Path, attacks: list[str], **profile: Any
) -> ClusterExperiment:
    """Write an experiment with one honest run, and one for each attack, which replaces the node program."""
    experiment = ClusterExperiment(pool, lab)
    pool.profile_keys = {
        **{key: value for key, value in pool.profile_keys.items() if key != "commit"},
        "before": "%s %s %s || exit 0"
        % tuple(map(shlex.quote, (sys.executable, str(TESTS / "support/hostile_node.py"), str(home)))),
        **profile,
    }
    directory = experiment.write(
        *("python3", "train.py", "30", "0.1", "5", "{attack}"),
        sweep={"attack": ["none", *attacks]},
        limits={"attempts": 1},
        resources={"time": "5m", "memory": "100MB", "disk": "1GB"},
    )
    layout = Experiment(directory)
    for path in (layout.exchange("other", 1, "b-1"), layout.checkpoints("other")):
        path.mkdir(parents=True)
        path.chmod(0o777)
        (path / "precious").write_text(SECRET)
    return experiment


def outside(directory: Path, home: Path) -> dict[str, tuple[object, ...]]:
    """Return what is outside the directories of the hostile runs."""
    return snapshot(home, directory / "params/runs/other", directory / "params.yaml", directory / "train.py")


def test_a_hostile_job_can_do_nothing_on_the_access_point_and_an_honest_one_commits_by_restarts(
    lab: Lab, pool: HTCondorHarness, home: Path
) -> None:
    experiment = write_hostile(lab, pool, home, ["chirp"], commit_every="1s")
    directory = experiment.directory
    before = outside(directory, home)
    done = lab.finish(lab.start("run", directory), 180.0)
    assert outside(directory, home) == before, done.output
    assert states(directory) == {"train-attack=none": "finished", "train-attack=chirp": "failed"}, done.output
    (found,) = directory.glob("params/runs/train-attack=chirp/001-*/travel/tried.json")
    tried = json.loads(found.read_text())
    assert len(tried) > 30
    assert {request: code for request, code in tried.items() if code >= 0 and "delayed" not in request} == {}
    delayed = {request: code for request, code in tried.items() if "delayed" in request}
    assert delayed and set(delayed.values()) == {1}, "1: this attribute is not one that a job may set"
    (honest,) = (attempt for attempt in experiment.attempts() if attempt.run == "train-attack=none")
    assert len(honest.account.legs) > 1, "no checkpoint was committed"


def test_the_worst_that_a_node_can_bring_back_changes_nothing_else_and_an_honest_run_finishes(
    lab: Lab, pool: HTCondorHarness, home: Path
) -> None:
    attacks = ["legs", "logs", "manifests", "links", "names", "seal"]
    # With chirp, so that a node can also plant links.
    directory = write_hostile(lab, pool, home, attacks, commit="chirp").directory
    before = outside(directory, home)
    done = lab.finish(lab.start("run", directory), 180.0)
    assert outside(directory, home) == before, done.output
    ended = states(directory)
    assert ended.pop("train-attack=none") == "finished", done.output
    assert set(ended.values()) == {"failed"}, done.output
    planted = list(directory.glob("params/runs/train-*/001-*/travel/planted"))
    reached = sorted(path.parts[-4].rpartition("=")[2] for path in planted)
    assert reached == sorted(attacks), done.output
    for words in (["status"], ["report"], *(["explain", run] for run in ended)):
        shown = lab.outlast(*words[:1], "/".join([str(directory), *words[1:]]))
        assert "Traceback" not in done.output + shown.output and shown.returncode in (0, 1), shown.output
    shown_to_all = [
        path for place in ("logs", "results", "workdir") for path in (directory / place).rglob("*")
    ]
    for path in shown_to_all:
        assert not path.is_symlink() and not (path.is_file() and SECRET.encode() in path.read_bytes())

"""`outlast check` queries the scheduler: certain problems are mistakes, possible ones are warnings."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from outlast.cli import scheduler_checks
from outlast.cli.commands.check import command
from support.fake_programs import grid_engine, printing, program, slurm


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with the programs of Slurm and Grid Engine alone."""
    place = tmp_path / "bin"
    place.mkdir()
    slurm(place)
    grid_engine(place)
    program(place, "sh", "exit 1")
    monkeypatch.setenv("PATH", str(place))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return place


def check(folder: Path, profile: str, time: str = "48h") -> Result:
    experiment = folder / "e"
    experiment.mkdir(exist_ok=True)
    (experiment / "train.sh").write_text("")
    (experiment / "params.yaml").write_text(
        "command: sh train.sh\ncode: [train.sh]\ncluster: mine\nresources: {time: %s}\n" % time
    )
    (experiment / "clusters.yaml").write_text("# all of mine\nmine:\n%s\n" % profile)
    return CliRunner().invoke(command, [str(experiment)])


@pytest.mark.parametrize(
    ("profile", "mistake"),
    [
        (
            "  scheduler: slurm\n  partition: shrot",
            'clusters.yaml:4: mine.partition: this cluster has no partition "shrot"; did you mean "short"? '
            "(there are main, short)",
        ),
        (
            "  scheduler: sge\n  queue: main.q,nosuch.q@host",
            'clusters.yaml:4: mine.queue: this cluster has no queue "nosuch.q@host"; there are main.q, gpu.q',
        ),
        (
            "  scheduler: slurm\n  queue: short",
            "clusters.yaml:2: mine: partition short ends jobs after 24 h, but resources.time is 2 d; "
            "add `longest: 24h` to run the training in several jobs",
        ),
        (
            "  scheduler: slurm\n  queue: short\n  longest: 36h",
            "clusters.yaml:5: mine.longest: 36 h is more than partition short allows (24 h); "
            "set `longest: 24h`",
        ),
        (
            "  scheduler: sge\n  queue: m*.q\n  longest: 13h",
            "clusters.yaml:5: mine.longest: 13 h is more than queue main.q allows (12 h); set `longest: 12h`",
        ),
    ],
)
def test_an_unknown_queue_or_one_with_a_shorter_limit_is_a_mistake_at_its_line(
    programs: Path, tmp_path: Path, profile: str, mistake: str
) -> None:
    result = check(tmp_path, profile)
    assert result.stderr.splitlines() == [mistake, "1 error, nothing was submitted"]
    assert result.exit_code == 2


@pytest.mark.parametrize(
    "profile",
    [
        "  scheduler: slurm\n  queue: short\n  longest: 24h",
        "  scheduler: slurm\n  queue: short,main",
        "  scheduler: slurm",
        "  scheduler: sge\n  queue: '*.q'",
        # The directive overrides the queue of the profile.
        "  scheduler: slurm\n  queue: nosuch\n  directives: ['#SBATCH -p main']",
    ],
)
def test_a_profile_that_fits_is_no_mistake(programs: Path, tmp_path: Path, profile: str) -> None:
    result = check(tmp_path, profile)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "No errors. Next: outlast run" in result.stdout


def test_a_longest_that_is_not_reached_and_a_limit_that_may_be_lifted_are_warnings(
    programs: Path, tmp_path: Path
) -> None:
    unused = check(tmp_path, "  scheduler: slurm\n  queue: short\n  longest: 36h", time="1h")
    assert unused.exit_code == 0
    assert unused.stderr.startswith("warning: clusters.yaml:5: mine.longest: 36 h is more than partition")
    lifted = check(tmp_path, "  scheduler: slurm\n  queue: short\n  directives: ['#SBATCH --qos=long']")
    assert lifted.exit_code == 0
    assert lifted.stderr.startswith("warning: clusters.yaml:2: mine: partition short ends jobs after 24 h")


def test_the_limit_of_a_default_that_a_site_may_change_is_a_warning(programs: Path, tmp_path: Path) -> None:
    line = "PartitionName=main Default=YES MaxTime=1:00:00\n"
    program(programs, "scontrol", printing(line))
    result = check(tmp_path, "  scheduler: slurm")
    assert result.exit_code == 0
    assert "partition main (the default) ends jobs after 1 h" in result.stderr


def test_a_scheduler_that_does_not_respond_is_only_a_warning(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_checks, "PATIENCE", 0.5)
    program(programs, "scontrol", "exec 1>&- 2>&-\nwhile :; do :; done")
    result = check(tmp_path, "  scheduler: slurm\n  queue: nosuch")
    assert result.exit_code == 0
    (warning,) = result.stderr.splitlines()
    assert warning.startswith(
        "warning: cluster mine: the Slurm controller does not respond (scontrol did not"
    )
    assert warning.endswith("you can still submit the runs; their jobs are submitted once it responds")
    assert "No errors in the files; the scheduler could not be queried. Next: outlast run" in result.stdout

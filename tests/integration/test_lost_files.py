"""Each file and directory of an experiment is deleted, replaced or made inaccessible while its jobs run.

Every run then ends with a reason that names the path, or continues and finishes; the controller never fails.
"""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outlast.domain.model import Attempt, EntryKind, RunState
from outlast.exchange.experiment import Experiment
from support.experiments import Ended, Lab, open_journal, states
from support.privileges import without_privileges

#: Whole experiments, one for each file and each kind of damage.
pytestmark = pytest.mark.slow

#: A training script of two attempts, each of which waits for the file named by its argument.
TWO_PARTS = """\
set -e
count=$(cat "$OUTLAST_CHECKPOINT_DIR/count" 2>/dev/null || echo 0)
count=$((count + 1))
echo "part $count waits for $1"
while [ ! -e "$1" ]; do sleep 0.02; done
echo "$count" > "$OUTLAST_CHECKPOINT_DIR/count"
[ "$count" -ge 2 ] || exit 85
echo "done" > "$OUTLAST_OUTPUT_DIR/out.txt"
"""

#: Shortens what the controller waits for, so that each experiment ends within seconds.
IMPATIENT = """\
from outlast.domain.observation import Patience
from outlast.schedulers.local import LocalScheduler
LocalScheduler.__init__.__kwdefaults__["patience"] = Patience(
    missing=0.5, heartbeat=2.0, pause=0.1, longest_pause=1.5)
"""

VICTIM, OTHER = "e-001", "e-002"


def delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def replace(path: Path) -> None:
    """Replace a directory by a file, and a file by a directory."""
    was_directory = path.is_dir()
    delete(path)
    if was_directory:
        path.write_text("not a directory\n")
    else:
        path.mkdir()


def forbid(path: Path) -> None:
    path.chmod(0)


def write_protect(path: Path) -> None:
    path.chmod(0o555 if path.is_dir() else 0o444)


DAMAGES = (delete, replace, forbid, write_protect)
#: What all runs share, relative to the experiment; the code and the program are found by pattern.
SHARED = (
    *("params", "params/inbox", "params/runs", "params/code-*.tar", "params/outlast-*.pyz"),
    *("logs", "results", "workdir", "workdir/data", "params.yaml", "train.sh"),
)
#: What belongs to one run, and to its attempt.
OWN = ("params/runs/RUN", "params/runs/RUN/checkpoints", "logs/RUN", "results/RUN", "workdir/RUN")
ATTEMPT = (
    *("params/runs/RUN/ATTEMPT", "params/runs/RUN/ATTEMPT/order.json", "params/runs/RUN/ATTEMPT/claim.json"),
    *("params/runs/RUN/ATTEMPT/events.jsonl", "params/runs/RUN/ATTEMPT/progress.jsonl", "logs/RUN/001.log"),
    *("workdir/RUN/ATTEMPT", "workdir/RUN/ATTEMPT/job", "workdir/RUN/ATTEMPT/data"),
    "workdir/RUN/ATTEMPT/output",
)


class Experimental:
    """An experiment of two runs, whose first jobs wait for `gate`."""

    def __init__(self, lab: Lab, prelude: str = IMPATIENT) -> None:
        self.lab = lab
        self.gate = lab.root / "gate"
        self.directory = lab.experiment(
            "e",
            {"train.sh": TWO_PARTS},
            command="sh train.sh %s" % self.gate,
            outputs=["out.txt"],
            runs=2,
        )
        self.up = lab.start("run", self.directory, prelude=prelude, powers=without_privileges)
        for run in (VICTIM, OTHER):
            lab.running_job(self.directory, run)

    def outlast(self, *words: str | Path) -> Ended:
        return self.lab.outlast(*words, powers=without_privileges, prelude=IMPATIENT)

    def attempt(self, run: str = VICTIM) -> Attempt:
        with open_journal(self.directory) as journal:
            return list(journal.attempts(run))[-1]

    def path(self, name: str) -> Path:
        """Return the path that `name` stands for; it is created if the experiment does not have it yet."""
        directory = Experiment(self.directory).exchange_of(self.attempt()).name
        path = self.directory / name.replace("RUN", VICTIM).replace("ATTEMPT", directory)
        if "*" in name:
            (path,) = path.parent.glob(path.name)
        elif not path.exists() and path.suffix:
            path.touch()
        elif not path.exists():
            path.mkdir(parents=True)
        return path

    def finish(self) -> Ended:
        self.gate.touch()
        return self.lab.finish(self.up)


@pytest.fixture
def running(lab: Lab) -> Iterator[Experimental]:
    yield Experimental(lab)


def assert_ended_with_reasons(
    running: Experimental, ended: Ended, path: Path, unharmed: tuple[str, ...]
) -> None:
    """Assert that all runs have finished, or failed for a reason that names `path`, with one result each."""
    assert ended.returncode in (0, 1), ended.output
    assert "Traceback" not in ended.output and "internal error in Outlast" not in ended.output, ended.output
    with open_journal(running.directory) as journal:
        runs = {run.name: run for run in journal.runs()}
        accepted = Counter(row.entry.run for row in journal.entries() if row.entry.kind is EntryKind.ACCEPTED)
    assert sorted(runs) == [VICTIM, OTHER]
    for name, run in runs.items():
        if run.state is RunState.FAILED and name not in unharmed:
            assert str(path) in run.reason, (run.reason, ended.output)
            assert "`outlast retry" in run.reason or "the same failure twice" in run.reason, run.reason
        else:
            assert run.state is RunState.FINISHED, (run.state, run.reason, ended.output)
            result = Experiment(running.directory).result(name)
            assert (result / "out.txt").read_text() == "done\n" and accepted[name] == 1


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        pytest.param(name, damage, id="%s-%s" % (name, damage.__name__))
        for name in (*SHARED, *OWN, *ATTEMPT)
        for damage in DAMAGES
        if damage is not write_protect or "." not in name  # no file is written to again
    ],
)
def test_whatever_happens_to_a_file_of_an_experiment_every_run_ends_with_a_reason_or_finishes(
    running: Experimental, name: str, damage: Callable[[Path], None]
) -> None:
    path = running.path(name)
    damage(path)
    unharmed = () if name in SHARED else (OTHER,)
    try:
        ended = running.finish()
    finally:
        if path.exists():
            path.chmod(0o755)
    assert_ended_with_reasons(running, ended, path, unharmed)


@pytest.mark.parametrize("damage", [delete, replace], ids=lambda damage: damage.__name__)
def test_a_lost_journal_ends_the_controller_with_an_error_that_names_it(
    running: Experimental, damage: Callable[[Path], None]
) -> None:
    damage(running.directory / "journal.sqlite")
    ended = running.finish()
    assert ended.returncode == 2 and "Traceback" not in ended.output, ended.output
    assert str(running.directory / "journal.sqlite") in ended.stderr


def test_what_blocks_a_run_is_shown_until_it_is_repaired_and_then_the_run_continues(lab: Lab) -> None:
    running = Experimental(lab, prelude=IMPATIENT.replace("longest_pause=1.5", "longest_pause=600"))
    path = running.path("params/runs/RUN/ATTEMPT")
    path.chmod(0o555)
    running.gate.touch()
    text = "%s/leg-2: Permission denied" % path

    def blocked() -> str | None:
        found: str | None = running.outlast("status", running.directory, "--json").json["runs"][0]["blocked"]
        return found

    assert lab.until("the run is blocked", blocked) == text
    for words in (("status", running.directory), ("explain", VICTIM, "-C", running.directory)):
        assert text in running.outlast(*words).output
    path.chmod(0o755)
    ended = lab.finish(running.up)
    assert ended.returncode == 0 and text in ended.output, ended.output


@pytest.mark.parametrize("name", ["params", "params/runs/RUN/ATTEMPT", "params/inbox"])
@pytest.mark.parametrize("damage", [delete, replace, write_protect], ids=lambda damage: damage.__name__)
def test_a_run_with_lost_files_can_be_cancelled(
    running: Experimental, name: str, damage: Callable[[Path], None]
) -> None:
    running.up.send_signal(signal.SIGINT)
    running.lab.finish(running.up)
    path = running.path(name)
    damage(path)
    cancelled = running.outlast("cancel", "--all", "-C", running.directory)
    assert cancelled.returncode == 0 and "Traceback" not in cancelled.output, cancelled.output
    running.outlast("tick", running.directory)
    assert set(states(running.directory).values()) == {"cancelled"}, cancelled.output

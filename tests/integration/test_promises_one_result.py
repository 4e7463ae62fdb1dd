"""If a daemon is frozen, or files are deleted or edited: one attempt's result counts, and it is right."""

from __future__ import annotations

import os
import shutil
import signal

from outlast.domain.model import EntryKind
from support.experiments import GATED, TRAINING, Lab, assert_whole, open_journal

#: A shorter timeout for the daemon's response; the default is ten seconds.
IMPATIENT = (
    "from outlast.schedulers.local import LocalScheduler; "
    "LocalScheduler.__init__.__kwdefaults__['timeout'] = 0.5"
)

#: The daemon responds to the poll and is frozen before the submission that follows.
FREEZE = """
import os, signal
from outlast.schedulers.local import LocalScheduler
send = LocalScheduler.submit
def frozen(self, requests):
    os.kill(%d, signal.SIGSTOP)
    return send(self, requests)
LocalScheduler.submit = frozen
"""


def test_a_submission_to_a_frozen_daemon_is_unknown_and_one_jobs_result_counts(lab: Lab) -> None:
    frozen = lab.experiment(
        "frozen", command="sh train.sh plain", runs=2, outputs=["first.txt"], checkpoints={"grace": "1s"}
    )
    daemon = lab.scheduler().daemon_pid()
    try:
        ended = lab.outlast("submit", frozen, prelude=IMPATIENT + FREEZE % daemon)
    finally:
        os.kill(daemon, signal.SIGCONT)
    assert ended.returncode == 0, ended.output
    with open_journal(frozen) as journal:
        kinds = [row.entry.kind for row in journal.entries()]
    assert kinds.count(EntryKind.UNSURE) == 2, kinds
    ended = lab.outlast("up", frozen)
    assert ended.returncode == 0, ended.output
    assert_whole(frozen, lab.scheduler(frozen), {"frozen-001": "finished", "frozen-002": "finished"})


def test_a_daemon_frozen_in_mid_run_delays_the_run_and_changes_nothing_else(lab: Lab) -> None:
    text = "echo begun; sleep 0.3\n"
    text += '[ "$OUTLAST_ATTEMPT" -ge 2 ] || { touch "$OUTLAST_CHECKPOINT_DIR/x"; exit 85; }\n'
    text += TRAINING.partition("esac\n")[2].replace("$kind", "run")
    frozen = lab.experiment(
        "frozen",
        {"train.sh": text},
        command="sh train.sh",
        outputs=["first.txt"],
        checkpoints={"grace": "1s"},
    )
    run = lab.start("run", frozen, prelude=IMPATIENT)
    lab.running_job(frozen)
    daemon = lab.scheduler().daemon_pid()
    os.kill(daemon, signal.SIGSTOP)
    try:
        assert run.stdout is not None
        lines = iter(run.stdout.readline, "")
        assert any("not responding" in line for line in lines), "it never noticed"
    finally:
        os.kill(daemon, signal.SIGCONT)
    ended = lab.finish(run)
    assert ended.returncode == 0, ended.output
    assert_whole(frozen, lab.scheduler(frozen), {"frozen": "finished"})


def test_deleting_the_workdir_in_mid_run_costs_attempts_and_not_the_run(lab: Lab) -> None:
    gate = lab.root / "gate"
    swept = lab.experiment("swept", {"train.sh": GATED}, command="sh train.sh %s" % gate, outputs=["out.txt"])
    run = lab.start("run", swept)
    lab.running_job(swept)
    shutil.rmtree(swept / "workdir")
    gate.touch()
    ended = lab.finish(run)
    assert ended.returncode == 0, ended.output
    assert (swept / "results" / "swept" / "out.txt").read_text() == "passed\n"


def test_editing_the_code_does_not_change_a_run_that_is_under_way(lab: Lab) -> None:
    gate = lab.root / "gate"
    text = '%s[ "$OUTLAST_ATTEMPT" -ge 2 ] || { touch "$OUTLAST_CHECKPOINT_DIR/x"; exit 85; }\n' % GATED
    edited = lab.experiment(
        "edited", {"train.sh": text}, command="sh train.sh %s" % gate, outputs=["out.txt"]
    )
    run = lab.start("run", edited)
    lab.running_job(edited)
    (edited / "train.sh").write_text(text.replace("passed", "edited"))
    gate.touch()
    ended = lab.finish(run)
    assert ended.returncode == 0, ended.output
    assert "attempt 2" in ended.stdout
    assert (edited / "results" / "edited" / "out.txt").read_text() == "passed\n"
    assert "with an earlier params.yaml or code" in lab.outlast("submit", edited).stdout


def test_results_that_were_there_before_are_kept_under_another_name(lab: Lab) -> None:
    again = lab.experiment("again", command="sh train.sh fluke", outputs=["first.txt"])
    earlier = again / "results" / "again"
    earlier.mkdir(parents=True)
    (earlier / "precious.txt").write_text("months of work")
    assert lab.outlast("run", again).returncode == 0
    assert sorted(path.name for path in earlier.iterdir()) == ["first.txt", "second.txt"]
    kept = [path for path in (again / "results").iterdir() if path != earlier]
    assert [(path / "precious.txt").read_text() for path in kept] == ["months of work"]


def test_a_script_without_outlast_is_stopped_at_its_limit_and_continues(lab: Lab) -> None:
    """The script counts to 24 in a file, in steps of 0.1 s, under a time limit of 2 s."""
    text = """\
cd "$OUTLAST_CHECKPOINT_DIR"
n=$(cat n 2>/dev/null || echo 0)
echo "from $n"
while [ "$n" -lt 24 ]; do sleep 0.1; n=$((n + 1)); echo "$n" > n.new; mv n.new n; done
cp n "$OUTLAST_OUTPUT_DIR/model.txt"
"""
    plain = lab.experiment(
        "plain",
        {"count.sh": text},
        command="sh count.sh",
        resources={"time": "2s"},
        checkpoints={"grace": "0.5s"},
        outputs=["model.txt"],
    )
    ended = lab.outlast("run", plain)
    assert ended.returncode == 0, ended.output
    with open_journal(plain) as journal:
        outcomes = [attempt.outcome.value if attempt.outcome else "" for attempt in journal.attempts()]
    assert outcomes[-1] == "finished" and set(outcomes[:-1]) == {"over-time"}
    assert (plain / "results" / "plain" / "model.txt").read_text() == "24\n"

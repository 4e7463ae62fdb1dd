"""Failures that end a run, and the reason that is shown."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.experiments import Lab, open_journal

BUGGY = """\
import os
import outlast

state = outlast.load() or {"step": 0}
print("resumed at", state["step"])
while state["step"] < 3:
    state["step"] += 1
    if state["step"] == 3: raise ValueError("shapes do not match")
    outlast.save(state, step=state["step"])
with open(os.path.join(os.environ["OUTLAST_OUTPUT_DIR"], "out.txt"), "w") as file:
    file.write("after step %d" % state["step"])
"""
FIXED = "".join(line for line in BUGGY.splitlines(True) if "raise" not in line)


def attempts_of(directory: Path) -> list[str]:
    with open_journal(directory) as journal:
        return [attempt.outcome.value if attempt.outcome else "" for attempt in journal.attempts()]


def test_a_bug_stops_the_run_after_two_attempts_and_its_traceback_is_shown(lab: Lab) -> None:
    buggy = lab.experiment("buggy", {"train.py": BUGGY}, command="python3 train.py", outputs=["out.txt"])
    ended = lab.outlast("run", buggy)
    assert ended.returncode == 1
    assert attempts_of(buggy) == ["crashed", "crashed"]
    explained = lab.outlast("explain", "buggy", "-C", buggy).stdout
    for shown in (ended.stdout, explained):
        assert "Traceback (most recent call last)" in shown
        assert "ValueError: shapes do not match (train.py line 8)" in shown
        assert "the same failure twice" in shown
    assert "outlast explain" in ended.stdout
    assert "Traceback" not in ended.stderr
    assert not (buggy / "results").exists()


def test_a_run_that_is_retried_after_a_fix_resumes_from_its_checkpoint(lab: Lab) -> None:
    buggy = lab.experiment("buggy", {"train.py": BUGGY}, command="python3 train.py", outputs=["out.txt"])
    assert lab.outlast("run", buggy).returncode == 1
    (buggy / "train.py").write_text(FIXED)
    assert lab.outlast("retry", "buggy", "-C", buggy).returncode == 0
    assert lab.outlast("up", buggy).returncode == 0
    assert attempts_of(buggy) == ["crashed", "crashed", "finished"]
    assert lab.outlast("logs", "buggy", cwd=buggy).stdout == "resumed at 2\n"
    assert (buggy / "results" / "buggy" / "out.txt").read_text() == "after step 3"


STEADY = 'date +%s%N > "$OUTLAST_CHECKPOINT_DIR/step"; sleep 0.2; exit 85\n'
WRONG = 'echo \'{"accuracy": 0.5}\' > "$OUTLAST_OUTPUT_DIR/metrics.json"\n'


@pytest.mark.parametrize(
    ("training", "params", "outcomes", "reason"),
    [
        pytest.param(
            "echo nothing new; exit 85\n",
            {},
            ["continue"] * 3,
            "3 attempts in a row brought nothing new into $OUTLAST_CHECKPOINT_DIR",
            id="three attempts without progress",
        ),
        pytest.param(
            STEADY,
            {"limits": {"attempts": 2}},
            ["continue"] * 2,
            "not finished after 2 attempts (limits.attempts)",
            id="the most attempts",
        ),
        pytest.param(
            STEADY,
            {"limits": {"total": "1s"}},
            None,
            "not finished within limits.total (1 s)",
            id="the total",
        ),
        pytest.param(
            WRONG,
            {"outputs": [{"path": "metrics.json", "key": "accuracy", "at_least": 0.9}]},
            ["wrong-output"],
            "0.5",
            id="a number below its bound",
        ),
        pytest.param("true\n", {"outputs": ["model.npz"]}, ["wrong-output"] * 2, "model.npz", id="no output"),
        pytest.param(
            WRONG,
            {"outputs": [{"path": "metrics.json", "check": "sh -c 'echo too bad; exit 3'"}]},
            ["wrong-output"] * 2,
            "exited with 3",
            id="a check that fails",
        ),
    ],
)
def test_a_run_fails_with_the_reason(
    lab: Lab, training: str, params: dict[str, Any], outcomes: list[str] | None, reason: str
) -> None:
    hopeless = lab.experiment("hopeless", {"train.sh": training}, command="sh train.sh", **params)
    ended = lab.outlast("run", hopeless)
    assert ended.returncode == 1
    assert "FAILED: " in ended.stdout and reason in ended.stdout
    assert reason in lab.outlast("explain", cwd=hopeless).stdout
    assert lab.outlast("status", hopeless, "--json").json["counts"] == {"failed": 1}
    assert not (hopeless / "results/hopeless").exists()
    if outcomes is not None:
        assert attempts_of(hopeless) == outcomes


def test_cluster_errors_do_not_fail_a_run(lab: Lab) -> None:
    """Four jobs are killed without warning: more than the limits for failures and for lack of progress."""
    text = 'echo begun; [ "$OUTLAST_ATTEMPT" -gt 4 ] || sleep 600; echo y > "$OUTLAST_OUTPUT_DIR/out.txt"\n'
    sound = lab.experiment("sound", {"train.sh": text}, command="sh train.sh", outputs=["out.txt"])
    run = lab.start("run", sound)
    for _ in range(4):
        job = lab.running_job(sound)
        lab.scheduler(sound).kill(job.token)
        lab.until("its end", partial(_has_ended, sound, job.token))
    ended = lab.finish(run)
    assert ended.returncode == 0, ended.output
    assert attempts_of(sound) == ["evicted"] * 4 + ["finished"]


def _has_ended(directory: Path, token: str) -> bool:
    with open_journal(directory) as journal:
        attempt = journal.attempt(token)
    return attempt is not None and attempt.outcome is not None

"""Checkpoints of scripts that do not import outlast survive a kill in the middle of a write."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.experiments import Lab, open_journal

#: Saves one file in place, as most public scripts do, and resumes only if it is told to. In its first attempt
#: it is killed in the middle of its last save, after the file before has been there for a while.
SCRIPT = """\
import io, os, pickle, signal, sys, time, zipfile

path = os.path.join(os.environ["OUTLAST_CHECKPOINT_DIR"], "ckpt.pt")

def dump(state):
    if FORMAT == "pickle":
        return pickle.dumps({**state, "weights": bytes(100000)})
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("ckpt/data.pkl", pickle.dumps(state))
        archive.writestr("ckpt/data/0", os.urandom(100000))
    return content.getvalue()

def load(content):
    if FORMAT == "pickle":
        return pickle.loads(content)
    return pickle.loads(zipfile.ZipFile(io.BytesIO(content)).read("ckpt/data.pkl"))

state = {"step": 0}
if "--init_from=resume" in sys.argv:
    with open(path, "rb") as file:
        state = load(file.read())
print("resumed at", state["step"])
while state["step"] < 4:
    state["step"] += 1
    content = dump(state)
    torn = state["step"] == 3 and os.environ["OUTLAST_ATTEMPT"] == "1"
    with open(path, "wb") as file:
        file.write(content[: len(content) // 2] if torn else content)
    if torn:
        os.kill(os.getpid(), signal.SIGKILL)
    events = os.path.join(os.path.dirname(os.environ["OUTLAST_PROGRESS_FILE"]), "events.jsonl")
    until = time.monotonic() + 60
    while state["step"] == 2 and time.monotonic() < until:
        if open(events).read().count('"event":"kept"') or os.environ["OUTLAST_ATTEMPT"] != "1":
            break
        time.sleep(0.05)
with open(os.path.join(os.environ["OUTLAST_OUTPUT_DIR"], "out.txt"), "w") as file:
    file.write("after step %d" % state["step"])
"""


def attempts_of(directory: Path) -> list[str]:
    with open_journal(directory) as journal:
        return [attempt.outcome.value if attempt.outcome else "" for attempt in journal.attempts()]


def run(lab: Lab, name: str, script: str, **checkpoints: object) -> Path:
    directory = lab.experiment(
        name,
        {"train.py": script},
        command="python3 train.py",
        outputs=["out.txt"],
        checkpoints={"resume": "--init_from=resume", **checkpoints},
    )
    ended = lab.outlast("run", directory)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (directory / "results" / name / "out.txt").read_text() == "after step 4"
    return directory


def test_a_torn_checkpoint_is_replaced_by_the_snapshot_before_it(lab: Lab) -> None:
    directory = run(lab, "torn", 'FORMAT = "zip"\n' + SCRIPT)
    assert attempts_of(directory) == ["crashed", "finished"]
    assert "resumed at 2" in lab.outlast("logs", "torn", cwd=directory).stdout
    explained = lab.outlast("explain", "torn", "-C", directory).stdout
    assert "ckpt.pt is not whole: its table of contents is missing; snapshot 1 was put back" in explained
    assert not (directory / "params" / "runs" / "torn" / "snapshots").exists(), "finished: not needed"


def test_a_torn_model_in_the_working_directory_is_replaced_by_the_snapshot_before_it(lab: Lab) -> None:
    """And the words to resume are added for it, while other files stay as they are."""
    script = SCRIPT.replace('os.path.join(os.environ["OUTLAST_CHECKPOINT_DIR"], "ckpt.pt")', '"out/ckpt.pt"')
    script = script.replace(
        "    content = dump", '    open("log.csv", "a").write("%d\\n" % state["step"])\n    content = dump'
    )
    directory = run(lab, "torn", 'import os\nos.makedirs("out", exist_ok=True)\nFORMAT = "zip"\n' + script)
    assert attempts_of(directory) == ["crashed", "finished"]
    assert "resumed at 2" in lab.outlast("logs", "torn", cwd=directory).stdout
    explained = lab.outlast("explain", "torn", "-C", directory).stdout
    assert "out/ckpt.pt in the working directory is not whole: its table of contents is missing" in explained
    assert "snapshot 1 was put back" in explained
    results = directory / "results" / "torn"
    assert (results / "log.csv").read_text().split() == ["1", "2", "3", "3", "4"]
    assert (results / "out" / "ckpt.pt").stat().st_size > 100_000


def test_an_attempt_that_fails_on_its_checkpoint_is_followed_by_one_from_the_snapshot_before(
    lab: Lab,
) -> None:
    directory = run(lab, "torn", 'FORMAT = "pickle"\n' + SCRIPT)
    explained = lab.outlast("explain", "torn", "-C", directory).stdout
    assert attempts_of(directory) == ["crashed", "crashed", "finished"], explained
    assert "resumed at 2" in lab.outlast("logs", "torn", cwd=directory).stdout
    explained = lab.outlast("explain", "torn", "-C", directory).stdout
    assert "its checkpoint may be damaged: starting from the snapshot before number 2" in explained
    assert "snapshot 1 was put back" in explained


def test_without_snapshots_the_same_failure_twice_fails_the_run(lab: Lab) -> None:
    with pytest.raises(AssertionError, match="the same failure twice"):
        run(
            lab,
            "torn",
            'FORMAT = "zip"\n' + SCRIPT.replace("events).read()", "events) and path"),
            snapshots=0,
        )

"""Brakes on waste: runs that save nothing, many runs with one bug, and runs that need more memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.domain.model import EntryKind
from support.experiments import Lab, open_journal, states

DEAF = """\
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("begins", flush=True)
while True: time.sleep(0.1)
"""
SHORT = {"resources": {"time": "3s"}, "checkpoints": {"grace": "1s"}}


def outcomes_of(directory: Path) -> list[str]:
    with open_journal(directory) as journal:
        return [attempt.outcome.value if attempt.outcome else "" for attempt in journal.attempts()]


def test_a_run_that_reaches_its_limit_with_nothing_saved_stops_after_one_attempt(lab: Lab) -> None:
    deaf = lab.experiment("deaf", {"train.py": DEAF}, command="python3 train.py", **SHORT)
    ended = lab.outlast("run", deaf)
    assert ended.returncode == 1
    assert outcomes_of(deaf) == ["over-time"]
    for shown in (ended.stdout, lab.outlast("explain", cwd=deaf).stdout):
        assert "attempt 1 used all of its time and saved nothing" in shown
        assert "start_over: yes" in shown and "`outlast retry deaf`" in shown


def test_a_run_that_may_start_over_starts_from_the_beginning_with_more_time(lab: Lab) -> None:
    """Its second attempt has the time that it needs."""
    text = DEAF.replace("while True: time.sleep(0.1)", "time.sleep(7)")
    settings = {**SHORT, "limits": {"start_over": "yes", "time": "30s"}, "resources": {"time": "6s"}}
    slow = lab.experiment("slow", {"train.py": text}, command="python3 train.py", **settings)
    ended = lab.outlast("run", slow)
    assert ended.returncode == 0, ended.output
    assert outcomes_of(slow) == ["over-time", "finished"]
    assert "starting from the beginning: nothing was saved; with 12 s instead of 6 s" in ended.stdout
    assert "requested  12 s, more than resources" in lab.outlast("explain", cwd=slow).stdout


def test_a_run_that_has_saved_before_its_limit_is_not_stopped(lab: Lab) -> None:
    text = 'import os\nopen(os.path.join(os.environ["OUTLAST_CHECKPOINT_DIR"], "x"), "a").write("x")\n' + DEAF
    text = text.replace("while True", 'if os.environ["OUTLAST_ATTEMPT"] == "3": sys.exit(0)\nwhile True')
    saves = lab.experiment("saves", {"train.py": text}, command="python3 train.py", **SHORT)
    assert lab.outlast("run", saves).returncode == 0
    assert outcomes_of(saves) == ["over-time", "over-time", "finished"]


def test_a_run_that_only_writes_a_log_into_its_working_directory_has_saved_nothing(lab: Lab) -> None:
    text = 'open("log.csv", "a").write("epoch 1\\n")\n' + DEAF
    logs = lab.experiment("logs", {"train.py": text}, command="python3 train.py", **SHORT)
    ended = lab.outlast("run", logs)
    assert ended.returncode == 1 and outcomes_of(logs) == ["over-time"]
    assert "attempt 1 used all of its time and saved nothing" in ended.stdout
    # The log is kept: a retry continues it.
    assert [path.read_text() for path in logs.glob("workdir/logs/*/job/log.csv")] == ["epoch 1\n"]


def test_a_run_that_resumes_from_a_model_in_its_working_directory_is_not_stopped(lab: Lab) -> None:
    text = 'import os\nfound = os.path.exists("best.pt")\nopen("best.pt", "a").write("w")\n' + DEAF
    text = text.replace("while True", "if found: sys.exit(0)\nwhile True")
    model = lab.experiment("model", {"train.py": text}, command="python3 train.py", **SHORT)
    assert lab.outlast("run", model).returncode == 0
    assert outcomes_of(model) == ["over-time", "finished"]
    assert (model / "results/model/best.pt").read_text() == "ww"


#: Saves as most public scripts do, into one file, and resumes only if it is told to.
NEEDS_A_FLAG = """\
import os, pickle, sys, time
path = os.path.join(sys.argv[1], "ckpt.pt")
os.makedirs(sys.argv[1], exist_ok=True)
step = pickle.load(open(path, "rb")) if "--resume" in sys.argv else 0
print("begins at", step, flush=True)
while step < 40:
    time.sleep(0.1)
    step += 1
    with open(path, "wb") as file:
        pickle.dump(step, file)
print("ends")
"""


@pytest.mark.parametrize("place", ["out", "$OUTLAST_CHECKPOINT_DIR"])
def test_a_script_that_never_reads_what_it_has_saved_is_stopped_after_two_attempts(
    lab: Lab, place: str
) -> None:
    where = lab.experiment("gpt", {"train.py": NEEDS_A_FLAG}, command=f"python3 train.py {place}", **SHORT)
    ended = lab.outlast("run", where)
    assert ended.returncode == 1 and outcomes_of(where) == ["over-time", "over-time"], ended.output
    explained = lab.outlast("explain", cwd=where).stdout
    for shown in (ended.stdout, explained):
        assert "attempt 2 used all of its time and started from the beginning" in shown
        assert "checkpoints: {resume: ...}" in shown and "`outlast retry gpt`" in shown
    assert "ckpt.pt, which an earlier attempt had saved" in explained


@pytest.mark.parametrize("place", ["out", "$OUTLAST_CHECKPOINT_DIR"])
def test_a_script_that_is_told_to_resume_finishes(lab: Lab, place: str) -> None:
    settings = {**SHORT, "checkpoints": {"grace": "1s", "resume": "--resume"}}
    where = lab.experiment("gpt", {"train.py": NEEDS_A_FLAG}, command=f"python3 train.py {place}", **settings)
    ended = lab.outlast("run", where)
    assert ended.returncode == 0, ended.output
    assert lab.outlast("logs", "--attempt", "2", cwd=where).stdout.startswith("begins at ")
    assert lab.outlast("logs", "--attempt", "2", cwd=where).stdout.split()[2] != "0"
    with open_journal(where) as journal:  # its time counts as useful up to what was saved last
        assert next(iter(journal.attempts())).account.saves


def test_a_script_that_may_start_over_does_although_it_has_saved(lab: Lab) -> None:
    settings = {**SHORT, "limits": {"start_over": "yes", "time": "30s"}, "resources": {"time": "4s"}}
    where = lab.experiment("gpt", {"train.py": NEEDS_A_FLAG}, command="python3 train.py out", **settings)
    ended = lab.outlast("run", where)
    assert ended.returncode == 0, ended.output
    assert "starting from the beginning: nothing was read; with 8 s instead of 4 s" in ended.stdout


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        ("print(1)\n", True),
        ("import outlast\n", False),
        ("import os\nprint(os.environ['OUTLAST_CHECKPOINT_DIR'])\n", False),
    ],
)
def test_check_warns_if_the_code_cannot_save(lab: Lab, text: str, warned: bool) -> None:
    where = lab.experiment("where", {"train.py": text}, command="python3 train.py")
    checked = lab.outlast("check", where)
    assert checked.returncode == 0
    assert ("mentions neither outlast nor OUTLAST_CHECKPOINT_DIR" in checked.stderr) is warned
    for settings in ({"limits": {"start_over": "yes"}}, {"checkpoints": {"resume": "--resume"}}):
        lab.params(where, name="where", command="python3 train.py", **settings)
        assert "OUTLAST_CHECKPOINT_DIR" not in lab.outlast("check", where).stderr


BUGGY = "import sys\nprint(sys.argv)\nraise ValueError('no such layer: %s' % sys.argv[1])\n"
FIXED = "print('fine')\n"


def _sweep(lab: Lab, runs: int = 8, **params: object) -> Path:
    sweep = {"lr": list(range(1, runs + 1))}
    return lab.experiment("many", {"train.py": BUGGY}, command="python3 train.py {lr}", sweep=sweep, **params)


def _counts(directory: Path) -> dict[str, int]:
    found = list(states(directory).values())
    return {state: found.count(state) for state in found}


def test_after_three_runs_failed_alike_the_others_are_held_back_until_the_bug_is_fixed(lab: Lab) -> None:
    many = _sweep(lab, parallel=1)
    ended = lab.outlast("run", many)
    assert ended.returncode == 1
    assert _counts(many) == {"failed": 3, "held-back": 5}
    assert len(outcomes_of(many)) == 6
    lines = [line for line in ended.stdout.splitlines() if "5 runs held back: 3 runs failed alike" in line]
    assert len(lines) == 1 and "no such layer" in lines[0]
    assert "no run is under way" in ended.stdout and "outlast resume" in ended.stdout
    shown = lab.outlast("status", many).stdout
    assert "3 runs failed alike: " in shown and "5 runs held back: " in shown
    assert [len(one["runs"]) for one in lab.outlast("status", many, "--json").json["alike"]] == [3]

    again = lab.outlast("up", many)  # another controller: the journal has it
    assert again.returncode == 1 and "held back: " in again.stdout
    assert len(outcomes_of(many)) == 6

    (many / "train.py").write_text(FIXED)
    assert lab.outlast("retry", "--failed", "-C", many).returncode == 0
    assert lab.outlast("up", many).returncode == 0
    assert _counts(many) == {"finished": 8}


def test_resume_starts_runs_that_are_held_back_and_three_more_failures_hold_the_rest_back_again(
    lab: Lab,
) -> None:
    many = _sweep(lab, parallel=1)
    assert lab.outlast("run", many).returncode == 1
    resumed = lab.outlast("resume", many)
    assert resumed.returncode == 0 and resumed.stdout.startswith("resumed: many-"), resumed.output
    assert lab.outlast("up", many).returncode == 1
    assert _counts(many) == {"failed": 6, "held-back": 2}
    assert lab.outlast("cancel", "--all", "-C", many).returncode == 0
    assert _counts(many) == {"failed": 6, "cancelled": 2}
    assert lab.outlast("resume", many).stdout == "no run is held back\n"


def test_jobs_that_wait_in_the_queue_are_withdrawn_and_their_runs_held_back(lab: Lab) -> None:
    many = _sweep(lab, runs=40)
    # The others take long enough to wait for one another, however slow the controller is.
    wait = "import sys, time\ntime.sleep(3 if int(sys.argv[1]) > 3 else 0)\n"
    (many / "train.py").write_text(wait + BUGGY)
    ended = lab.outlast("run", many)
    assert ended.returncode == 1
    counts = _counts(many)
    assert counts["failed"] >= 3 and counts["held-back"] >= 10 and sum(counts.values()) == 40
    assert "is being cancelled" not in ended.stdout
    with open_journal(many) as journal:
        for run in journal.runs():
            assert run.ran == 0 or run.state.value == "failed", run
    assert lab.outlast("resume", many).returncode == 0
    assert lab.outlast("cancel", "--all", "-C", many).returncode == 0


def test_runs_that_fail_for_different_bugs_are_not_held_back(lab: Lab) -> None:
    text = "import sys\nkinds = [ValueError, KeyError, OSError, TypeError]\nraise kinds[int(sys.argv[1])]\n"
    sweep = {"kind": [0, 1, 2, 3]}
    various = lab.experiment(
        "various", {"train.py": text}, command="python3 train.py {kind}", sweep=sweep, parallel=1
    )
    assert lab.outlast("run", various).returncode == 1
    assert _counts(various) == {"failed": 4}


HUNGRY = "import os\nif int(os.environ['OUTLAST_ATTEMPT']) < {enough}: raise MemoryError('no memory')\n"


def test_a_run_that_is_out_of_memory_requests_more_until_it_has_enough(lab: Lab) -> None:
    hungry = lab.experiment(
        "hungry",
        {"train.py": HUNGRY.format(enough=3)},
        command="python3 train.py",
        resources={"memory": "100MB"},
    )
    ended = lab.outlast("run", hungry)
    assert ended.returncode == 0, ended.output
    assert outcomes_of(hungry) == ["out-of-memory", "out-of-memory", "finished"]
    with open_journal(hungry) as journal:
        assert [attempt.memory for attempt in journal.attempts()] == [None, 200_000_000, 400_000_000]
    explained = lab.outlast("explain", cwd=hungry).stdout
    assert "retrying with 200 MB of memory instead of 100 MB" in explained
    assert "requested  400 MB of memory, more than resources in params.yaml" in explained


def test_a_run_requests_no_more_than_its_limit_and_then_fails(lab: Lab) -> None:
    hungry = lab.experiment(
        "hungry",
        {"train.py": HUNGRY.format(enough=99)},
        command="python3 train.py",
        resources={"memory": "100MB"},
        limits={"memory": "150MB"},
    )
    ended = lab.outlast("run", hungry)
    assert ended.returncode == 1
    assert outcomes_of(hungry) == ["out-of-memory", "out-of-memory"]
    assert "retrying with 150 MB of memory instead of 100 MB, the most that is allowed" in ended.stdout
    assert "the same failure twice (with 150 MB of memory): MemoryError" in ended.stdout


def test_the_memory_of_a_gpu_is_not_requested_from_the_host(lab: Lab) -> None:
    text = "class OutOfMemoryError(RuntimeError): pass\nraise OutOfMemoryError('CUDA out of memory.')\n"
    on_gpu = lab.experiment("gpu", {"train.py": text}, command="python3 train.py")
    assert lab.outlast("run", on_gpu).returncode == 1
    with open_journal(on_gpu) as journal:
        assert [attempt.memory for attempt in journal.attempts()] == [None, None]
        kinds = [row.entry.kind for row in journal.entries()]
    assert EntryKind.HELD_BACK not in kinds

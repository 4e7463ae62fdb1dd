"""Promises to the user, for every cluster: the same experiments on each of them."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from contract.experiment_runs import ClusterExperiment
from outlast.domain.model import EntryKind, Outcome
from outlast.journal.sqlite_file import is_blank
from outlast.schedulers.base import JobRef
from support.experiments import open_journal, states

#: A job may compute for about 12 s, and then has 5 s to save: less is too little on a busy machine.
SHORT = {"time": "20s", "memory": "100MB"}


def assert_one_interval_is_lost(experiment: ClusterExperiment, hurt: Callable[[str], object]) -> None:
    """Interrupt a job that saves at intervals; check that it resumes and ends with the same weights."""
    every = experiment.cluster.save_interval
    experiment.write("python", "train.py", "130", "0.1", str(every))
    process = experiment.lab.start("run", experiment.directory)
    experiment.wait_for_step(experiment.cluster.kill_step)
    reached = experiment.cluster.newest_step(experiment.directory)
    hurt(experiment.running_job().token)
    experiment.finish(process)
    legs = experiment.legs()
    assert len(legs) == 2
    assert reached - legs[1].resumed <= experiment.cluster.most_lost_steps + 1
    assert experiment.weights() == experiment.reference_weights("130")
    experiment.assert_nothing_is_left()


def test_a_training_run_continues_past_the_wall_time_limit_and_loses_no_step(
    experiment: ClusterExperiment,
) -> None:
    experiment.write("python", "train.py", "140", "0.15", "0", resources=SHORT)
    experiment.run()
    attempts = experiment.attempts()
    assert len(attempts) >= 2 and [a.outcome for a in attempts[:-1]] == [Outcome.CONTINUE] * (
        len(attempts) - 1
    )
    saved = [attempt.account.saved_step for attempt in attempts[:-1]]
    resumed = [attempt.account.resumed for attempt in attempts[1:]]
    assert saved == resumed
    assert experiment.weights() == experiment.reference_weights("140")
    # The site's accounting, mail and efficiency tools show no healthy job as failed.
    refs = [JobRef(attempt.token, attempt.job, attempt.intended) for attempt in attempts]
    codes = {view.exit_code for view in experiment.cluster.scheduler.poll(refs).values()}
    assert codes == (set() if experiment.cluster.name == "local" else {0})
    experiment.assert_nothing_is_left()


def test_a_job_killed_without_warning_loses_one_checkpoint_interval_at_most(
    experiment: ClusterExperiment,
) -> None:
    assert_one_interval_is_lost(experiment, experiment.cluster.kill_without_warning)


def test_twenty_runs_are_one_submission_and_all_finish(experiment: ClusterExperiment) -> None:
    experiment.write("python", "train.py", "2", "0", "0", runs=20)
    experiment.run()
    assert experiment.states == {"finished"} and len(states(experiment.directory)) == 20
    attempts = experiment.attempts()
    assert len({attempt.token.rpartition("-")[0] for attempt in attempts}) == 1
    assert len({experiment.cluster.submission_of(attempt.job) for attempt in attempts}) == 1
    assert {experiment.weights(run) for run in states(experiment.directory)} == {
        experiment.reference_weights("2")
    }


def test_runs_that_wait_or_run_are_cancelled(experiment: ClusterExperiment) -> None:
    experiment.write("python", "train.py", "6000", "0.1", "0", runs=5, resources={"cpus": 1, "time": "5m"})
    process = experiment.lab.start("run", experiment.directory)
    experiment.wait_for_step(1)
    assert experiment.lab.outlast("cancel", "--all", "-C", experiment.directory).returncode == 0
    experiment.finish(process, code=1)
    assert experiment.states == {"cancelled"}
    experiment.assert_nothing_is_left()


@pytest.mark.parametrize(
    "script, outputs, attempts, outcome, message",
    [
        ("raise ValueError('no such layer')", [], 2, Outcome.CRASHED, "no such layer"),
        (
            "import resource as r; r.setrlimit(r.RLIMIT_AS, (10**9, 10**9)); bytearray(10**10)",
            [],
            3,  # the second requests more memory
            Outcome.OUT_OF_MEMORY,
            "memory",
        ),
        ("open('m.json', 'w').write('{\"accuracy\": 0.1}')",
         [{"path": "m.json", "key": "accuracy", "at_least": 0.9}], 1, Outcome.WRONG_OUTPUT, "0.9"),
    ],
    ids=["crash", "memory", "output"],
)  # fmt: skip
def test_a_failure_of_the_training_script_soon_ends_the_run_and_is_explained(
    experiment: ClusterExperiment,
    script: str,
    outputs: list[object],
    attempts: int,
    outcome: Outcome,
    message: str,
) -> None:
    experiment.write("python", "train.py", files={"train.py": script + "\n"}, outputs=outputs)
    experiment.run(code=1)
    assert [attempt.outcome for attempt in experiment.attempts()] == [outcome] * attempts
    assert message in experiment.lab.outlast("explain", experiment.directory / "train").stdout


def test_a_failure_before_the_training_soon_ends_the_run_and_is_logged(experiment: ClusterExperiment) -> None:
    if experiment.cluster.name == "local":
        return  # it has no setup
    experiment.cluster.profile_keys = {**experiment.cluster.profile_keys, "before": ["cd /no/such/place"]}
    experiment.write("python", "train.py", "3", "0", "0")
    experiment.run(code=1)
    assert [attempt.outcome for attempt in experiment.attempts()] == [Outcome.CRASHED] * 2
    explained = experiment.lab.outlast("explain", experiment.directory / "train").stdout
    assert (
        "before the training (modules, before, environment, container) failed: cd /no/such/place" in explained
    )
    assert "| " in explained and "No such file or directory" in explained, "what the shell printed"
    log = experiment.lab.outlast("logs", experiment.directory / "train").stdout
    assert "this failed before the training: cd /no/such/place" in log


def test_why_a_job_never_starts_is_explained(experiment: ClusterExperiment) -> None:
    experiment.write(
        "python",
        "train.py",
        "1",
        "0",
        "0",
        resources={**experiment.cluster.impossible_resources, "time": "5m"},
    )
    if experiment.cluster.name == "local":
        # It knows all of its hosts and refuses before anything is submitted.
        refused = experiment.lab.outlast("run", experiment.directory)
        assert refused.returncode == 2 and experiment.cluster.impossible_reason in refused.output
        return
    process = experiment.lab.start("run", experiment.directory)

    def explained() -> bool:
        if is_blank(experiment.directory / "journal.sqlite"):
            return False
        with open_journal(experiment.directory) as journal:
            entries = [
                row.entry for row in journal.entries() if row.entry.kind in (EntryKind.WAITS, EntryKind.ENDED)
            ]
        return any(experiment.cluster.impossible_reason in json.dumps(dict(entry.data)) for entry in entries)

    experiment.wait_for("the reason in the journal", explained)
    assert (
        experiment.cluster.impossible_reason
        in experiment.lab.outlast("explain", experiment.directory / "train").stdout
    )
    assert experiment.lab.outlast("cancel", "--all", "-C", experiment.directory).returncode == 0
    experiment.finish(process, code=1)
    experiment.assert_nothing_is_left()


def test_a_preempted_job_resumes_from_its_checkpoint(experiment: ClusterExperiment) -> None:
    experiment.write("python", "train.py", "60", "0.1", "0")
    process = experiment.lab.start("run", experiment.directory)
    experiment.wait_for_step(10)
    experiment.cluster.preempt(experiment.running_job().token)
    experiment.finish(process)
    legs = experiment.legs()
    assert len(legs) == 2 and legs[1].resumed == legs[0].saved_step >= 10
    assert experiment.weights() == experiment.reference_weights("60")
    experiment.assert_nothing_is_left()


def test_a_job_whose_node_is_lost_resumes_from_its_checkpoint(experiment: ClusterExperiment) -> None:
    assert_one_interval_is_lost(experiment, experiment.cluster.lose_node)


def test_a_chain_of_six_jobs_that_needs_three_leaves_none_behind(experiment: ClusterExperiment) -> None:
    if experiment.cluster.name == "local":
        done = experiment.lab.outlast(
            "chain", experiment.write("python", "train.py", "3", "0", "0"), "-n", "6"
        )
        assert done.returncode == 2 and "`outlast run" in done.output
        return
    experiment.write("python", "train.py", "190", "0.15", "0", resources=SHORT)
    sent = experiment.lab.outlast("chain", experiment.directory, "-n", "6")
    assert sent.returncode == 0, sent.output
    experiment.tick_until("finished")
    (attempt,) = experiment.attempts()
    assert attempt.jobs == 6 and 2 <= len(attempt.account.earlier) <= 4
    assert experiment.weights() == experiment.reference_weights("190")
    experiment.assert_nothing_is_left()


def test_a_chain_ends_with_the_second_identical_failure_of_the_training_script(
    experiment: ClusterExperiment,
) -> None:
    if experiment.cluster.name == "local":
        return  # it has no chains
    experiment.write("python", "train.py", files={"train.py": "raise MemoryError('too big')\n"})
    sent = experiment.lab.outlast("chain", experiment.directory, "-n", "6")
    assert sent.returncode == 0, sent.output
    experiment.tick_until("failed")
    (attempt,) = experiment.attempts()
    assert attempt.outcome is Outcome.OUT_OF_MEMORY and len(attempt.account.earlier) == 1
    assert "the same failure twice: MemoryError" in experiment.explain()["reason"]
    experiment.assert_nothing_is_left()


#: A training script that shows its variables; the length of the secret is enough to compare.
SHOW_VARIABLES = """\
import json, os

found = {"mode": os.environ.get("WANDB_MODE"), "home": os.environ.get("HF_HOME")}
found["key"] = len(os.environ.get("WANDB_API_KEY", ""))
with open(os.path.join(os.environ["OUTLAST_OUTPUT_DIR"], "weights.json"), "w") as file:
    json.dump(found, file)
"""


def test_variables_and_secrets_reach_the_training(experiment: ClusterExperiment) -> None:
    key = experiment.lab.root / "wandb-key"
    key.write_text("0123456789abcdef\n")
    key.chmod(0o600)
    experiment.lab.environment["HF_HOME"] = "/big/hf"
    env = {"WANDB_MODE": "offline", "HF_HOME": {"from": "shell"}, "WANDB_API_KEY": {"file": str(key)}}
    experiment.write("python", "train.py", files={"train.py": SHOW_VARIABLES}, env=env)
    experiment.run()
    found = json.loads((experiment.directory / "results/train/weights.json").read_text())
    assert found == {"mode": "offline", "home": "/big/hf", "key": 16}
    # In what was submitted there is the path of the secret, and not its content.
    files = [path for path in experiment.directory.rglob("*") if path.is_file()]
    assert [path for path in files if b"0123456789abcdef" in path.read_bytes()] == []


#: Appends to a log and keeps its best model in the working directory; each part ends as its word says.
PARTS = """\
import os, sys, time
ends = sys.argv[1].split(",")
place = os.path.join(os.environ["OUTLAST_CHECKPOINT_DIR"], "part")
part = int(open(place).read()) if os.path.exists(place) else 0
assert os.path.exists("best.pt") == (part > 0), os.listdir(".")
if part == 0:
    os.mkdir(".hidden")
    open(".hidden/state", "w").write("hidden")
    open("best.pt", "w").write("best of part 0")
with open("log.csv", "a") as log:
    log.write("part %d\\n" % part)
with open(place + ".tmp", "w") as file:
    file.write(str(part + 1))
os.replace(place + ".tmp", place)
print("step", part, flush=True)
if ends[part] == "continue":
    sys.exit(85)
while ends[part] != "finish":
    time.sleep(0.05)
"""


def test_files_in_the_working_directory_come_back_in_the_next_attempt_and_are_in_the_results(
    experiment: ClusterExperiment,
) -> None:
    files = {"train.py": PARTS}
    experiment.write("python", "train.py", "continue,evict,finish", files=files, outputs=["best.pt"])
    process = experiment.lab.start("run", experiment.directory)
    experiment.wait_for_step(1)
    experiment.cluster.preempt(experiment.running_job().token)
    experiment.finish(process)
    log = "part 0\npart 1\npart 2\n"
    assert results(experiment) == {"best.pt": "best of part 0", "log.csv": log, ".hidden/state": "hidden"}
    experiment.assert_nothing_is_left()


def results(experiment: ClusterExperiment) -> dict[str, str]:
    place = experiment.directory / "results" / "train"
    return {str(path.relative_to(place)): path.read_text() for path in place.rglob("*") if path.is_file()}


#: Writes what people's scripts write into their working directory, and one file where Outlast wants it.
FORGETFUL = """\
import os
open("model.pt", "w").write("weights")
os.makedirs("plots")
open("plots/loss.txt", "w").write("down")
open(os.path.join(os.environ["OUTLAST_OUTPUT_DIR"], "extra.txt"), "w").write("extra")
os.symlink("model.pt", "best.pt")
os.makedirs("__pycache__", exist_ok=True)
open("__pycache__/train.pyc", "w").write("cache")
"""


@pytest.mark.parametrize("outputs", [[], ["model.pt"]], ids=["none-named", "one-named"])
def test_every_file_that_a_training_made_is_in_the_results(
    experiment: ClusterExperiment, outputs: list[str]
) -> None:
    experiment.write("python", "train.py", files={"train.py": FORGETFUL}, outputs=outputs)
    experiment.run()
    made = {"model.pt": "weights", "best.pt": "weights", "plots/loss.txt": "down", "extra.txt": "extra"}
    assert results(experiment) == made


#: Writes its best model into the working directory and computes until the limit; knows nothing of Outlast.
BEST_AT_LIMIT = """\
import os, time
found = os.path.exists("best.pt")
open("log.csv", "a").write("resumed\\n" if found else "began\\n")
if not found:
    open("best.pt", "w").write("best")
while not found:
    time.sleep(0.05)
"""


def test_a_model_written_into_the_working_directory_survives_the_limit(experiment: ClusterExperiment) -> None:
    files = {"train.py": BEST_AT_LIMIT}
    experiment.write("python", "train.py", files=files, outputs=["best.pt"], resources=SHORT)
    experiment.run()
    assert [attempt.outcome for attempt in experiment.attempts()] == [Outcome.OVER_TIME, Outcome.FINISHED]
    assert results(experiment) == {"best.pt": "best", "log.csv": "began\nresumed\n"}
    experiment.assert_nothing_is_left()


#: Saves as `torch.save` does: a zip file, written over the one before. In its first start it waits until a
#: snapshot of its first save was taken; then its next save stops in the middle of the file.
TORN = """\
import io, os, signal, sys, time, zipfile

path = os.path.join(os.environ["OUTLAST_CHECKPOINT_DIR"], "ckpt.pt")
events = os.path.join(os.path.dirname(os.environ["OUTLAST_PROGRESS_FILE"]), "events.jsonl")
step = 0
if "--resume" in sys.argv:
    step = int(zipfile.ZipFile(path).read("ckpt/step"))
print("resumed at", step, flush=True)
begun = time.monotonic()
while step < 4:
    step += 1
    torn = step == 2 and "--resume" not in sys.argv
    while torn and '"event":"kept"' not in open(events).read():
        assert time.monotonic() < begun + 60, "no snapshot was taken"
        time.sleep(0.05)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("ckpt/step", str(step))
        archive.writestr("ckpt/data/0", os.urandom(100000))
    content = content.getvalue()
    with open(path, "wb") as file:
        file.write(content[:50000] if torn else content)
    print("step", step, flush=True)
    if torn and sys.argv[1] == "script":
        os.kill(os.getpid(), signal.SIGKILL)
    while torn:
        time.sleep(0.05)
with open(os.path.join(os.environ["OUTLAST_OUTPUT_DIR"], "weights.json"), "w") as file:
    file.write("[%d]" % step)
"""


@pytest.mark.parametrize("killed", ["script", "job"])
def test_a_checkpoint_that_a_kill_cut_short_is_replaced_by_the_snapshot_before_it(
    experiment: ClusterExperiment, killed: str
) -> None:
    checkpoints = {"grace": "5s", "resume": "--resume"}
    experiment.write("python", "train.py", killed, files={"train.py": TORN}, checkpoints=checkpoints)
    process = experiment.lab.start("run", experiment.directory)
    if killed == "job":
        experiment.wait_for_step(2)
        experiment.cluster.kill_without_warning(experiment.running_job().token)
    experiment.finish(process)
    explained = experiment.lab.outlast("explain", experiment.directory / "train").stdout
    assert len(experiment.legs()) == 2, explained
    if killed == "script" or experiment.cluster.name != "htcondor":  # its last commit may be older, and whole
        assert "ckpt.pt is not whole: its table of contents is missing; snapshot 1 was put back" in explained
    log = experiment.lab.outlast("logs", experiment.directory / "train").stdout
    assert "resumed at 1" in log, log + explained
    assert experiment.weights() == "[4]"
    experiment.assert_nothing_is_left()

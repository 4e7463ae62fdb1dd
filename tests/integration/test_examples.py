"""The examples as users get them: each passes `check` and finishes in spite of interruptions."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlast.exchange.attempt_log import last_progress
from outlast.templates import templates
from support.experiments import Lab, open_journal, states

HERE = Path(__file__).parent
DIGITS = templates()["digits"]
#: Replacements in `params.yaml` that make each example short, by pattern.
SHORTER = {
    "hello": {r"--epochs \d+": "--epochs 25", r"time: \w+": "time: 2s", r"grace: \S+": "grace: 0.5s"},
    "script": {r"train.sh \d+": "train.sh 4", r"time: \w+": "time: 2s"},
    "digits": {r"--epochs \d+": "--epochs 12", r"time: \w+": "time: 2s"},
}
#: The same Python as this one, with one thread: the number of threads changes the bits.
ENVIRONMENT = {
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
}


def make(lab: Lab, example: str) -> Path:
    directory = lab.root / example
    lab.environment.update(ENVIRONMENT)
    assert lab.outlast("init", directory, "--example", example).returncode == 0
    params = directory / "params.yaml"
    text = params.read_text(encoding="utf-8")
    for pattern, shorter in SHORTER[example].items():
        text, count = re.subn(pattern, shorter, text, count=1)
        assert count, "%s has no %s" % (example, pattern)
    params.write_text(text, encoding="utf-8")
    return directory


def weights(directory: Path) -> dict[str, tuple[Any, bytes]]:
    with np.load(directory / "model.npz", allow_pickle=False) as file:
        return {name: ((file[name].dtype, file[name].shape), file[name].tobytes()) for name in file.files}


class Training:
    """`train.py` of digits in a directory of its own, without a cluster."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        shutil.copytree(DIGITS, directory)
        self.directory = directory
        self.arguments = arguments
        self.progress = directory / "progress.jsonl"

    def start(self, **variables: str) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OUTLAST_")}
        return subprocess.Popen(
            [sys.executable, "train.py", *self.arguments],
            cwd=self.directory,
            env={**environment, **ENVIRONMENT, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, **variables: str) -> tuple[int, str]:
        process = self.start(**variables)
        out, _ = process.communicate(timeout=120)
        return process.returncode, out

    def interrupt(self, lab: Lab, step: int, how: signal.Signals) -> int:
        """Start it, send it a signal when it is beyond this step, and return its exit code."""
        self.progress.unlink(missing_ok=True)
        self.progress.with_name("progress.json").unlink(missing_ok=True)
        process = self.start(OUTLAST_PROGRESS_FILE=str(self.progress), OUTLAST_TOKEN="x")
        try:
            lab.until("step %d" % step, lambda: process.poll() is not None or self.is_beyond(step))
            process.send_signal(how)
            process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
        return process.returncode

    def is_beyond(self, step: int) -> bool:
        progress: Mapping[str, Any] | None = last_progress(self.progress)
        return progress is not None and progress["step"] > step


def run_to_the_end(lab: Lab, directory: Path) -> int:
    """Check and run an example; return the number of attempts."""
    assert lab.outlast("check", directory).returncode == 0
    ended = lab.outlast("run", directory)
    assert ended.returncode == 0, ended.output
    assert set(states(directory).values()) == {"finished"}
    with open_journal(directory) as journal:
        return len(list(journal.attempts()))


def test_every_example_has_a_test() -> None:
    elsewhere = {path.stem.removeprefix("test_example_") for path in HERE.glob("test_example_*.py")}
    assert sorted({*SHORTER, *elsewhere}) == sorted(templates())


@pytest.mark.parametrize("example", ["hello", "script"])
def test_an_example_passes_check_and_finishes_in_several_attempts(lab: Lab, example: str) -> None:
    assert run_to_the_end(lab, make(lab, example)) > 1


def test_digits_under_a_time_limit_ends_with_the_weights_of_an_undisturbed_run(lab: Lab) -> None:
    training = Training(lab.root / "alone", "--epochs", "12", "--lr", "0.05")
    code, out = training.run()
    assert code == 0, out
    directory = make(lab, "digits")
    run_to_the_end(lab, directory)
    assert weights(directory / "results" / "digits") == weights(training.directory)


def test_digits_interrupted_at_random_places_ends_with_the_same_weights(lab: Lab) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    chance = random.Random(seed)
    undisturbed = Training(lab.root / "undisturbed", "--epochs", "8")
    assert undisturbed.run()[0] == 0
    disturbed = Training(lab.root / "disturbed", "--epochs", "8")
    codes = []
    for step in sorted(chance.sample(range(300), 5)):
        how = chance.choice((signal.SIGKILL, signal.SIGTERM))
        code = disturbed.interrupt(lab, step, how)
        assert code in ((-signal.SIGKILL,) if how is signal.SIGKILL else (85,)), (seed, step, how)
        codes.append(code)
    code, out = disturbed.run()
    assert code == 0, out
    assert weights(disturbed.directory) == weights(undisturbed.directory), seed
    if 85 in codes:
        assert "starting at step 0\n" not in out, "the checkpoint was not used"


def test_digits_learns_and_reports_its_accuracy(lab: Lab) -> None:
    training = Training(lab.root / "alone", "--epochs", "10", "--hidden", "32")
    assert training.run()[0] == 0
    metrics = json.loads((training.directory / "metrics.json").read_text())
    assert metrics["accuracy"] >= 0.9 and metrics["epochs"] == 10
    assert (training.directory / "checkpoints").is_dir(), "without a job it saves next to itself"


def test_digits_refuses_damaged_data(lab: Lab) -> None:
    training = Training(lab.root / "alone")
    data = training.directory / "digits.csv.gz"
    data.write_bytes(data.read_bytes()[:-1])
    code, out = training.run()
    assert code == 1 and "is damaged" in out and "Traceback" not in out


def test_digits_refuses_to_resume_from_checkpoints_with_other_settings(lab: Lab) -> None:
    training = Training(lab.root / "alone", "--epochs", "8")
    assert training.interrupt(lab, 10, signal.SIGTERM) == 85
    training.arguments = ("--epochs", "8", "--hidden", "16")
    code, out = training.run()
    assert code == 1 and "'hidden': 128" in out and "'hidden': 16" in out and "Traceback" not in out


def model(hidden: int = 4) -> dict[str, np.ndarray[Any, Any]]:
    shapes = {"conv1": (9, 32), "conv2": (288, 64), "dense": (1024, hidden), "output": (hidden, 10)}
    arrays = {layer: np.zeros(shape, np.float32) for layer, shape in shapes.items()}
    return {**arrays, **{layer + "_bias": np.zeros(shape[1], np.float32) for layer, shape in shapes.items()}}


def check_model(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, DIGITS / "check_model.py"],
        cwd=directory,
        env={**os.environ, "OUTLAST_OUTPUT_DIR": str(directory)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_check_of_digits_accepts_a_complete_model(tmp_path: Path) -> None:
    np.savez(tmp_path / "model.npz", **model())
    assert check_model(tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"conv1": np.full((9, 32), np.nan, np.float32)}, "has conv1 with numbers that are not finite"),
        ({"output": np.zeros((5, 10), np.float32)}, "has output of shape (5, 10) instead of (4, 10)"),
        ({"dense_bias": np.zeros(4, np.float64)}, "has dense_bias of type float64 instead of float32"),
        ({"extra": np.zeros(1)}, "holds ['conv1', "),
        ({"conv2": np.array([{}], dtype=object)}, "cannot be read as a model"),
    ],
)
def test_the_check_of_digits_explains_what_is_wrong_with_a_model(
    tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    np.savez(tmp_path / "model.npz", **{**model(), **change})
    checked = check_model(tmp_path)
    assert checked.returncode == 1
    assert checked.stderr.startswith("model.npz " + sentence) and "Traceback" not in checked.stderr


def test_the_check_of_digits_refuses_a_torn_model(tmp_path: Path) -> None:
    np.savez(tmp_path / "model.npz", **model())
    whole = (tmp_path / "model.npz").read_bytes()
    (tmp_path / "model.npz").write_bytes(whole[: len(whole) // 2])
    checked = check_model(tmp_path)
    assert checked.returncode == 1 and "cannot be read as a model" in checked.stderr

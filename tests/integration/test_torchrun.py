"""Several processes of one training run: they stop at the same step and save a checkpoint together."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outlast.node.diagnosis import failure
from outlast.node.protocol import Outcome
from outlast.training.checkpoints import checkpoint, checkpoint_names
from support.experiments import Lab

if "CI" in os.environ:
    import torch  # noqa: F401 - in CI nothing may be left out
else:
    pytest.importorskip("torch")

TRAIN = """
import hashlib, json, os, sys, time
import torch, torch.distributed as dist, outlast
from outlast.data import Loader

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(5 + rank)
model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 1))
for parameter in model.parameters():
    dist.broadcast(parameter.data, 0)
wrapped = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
data = [(torch.full((4,), i / 32), torch.tensor([i / 32])) for i in range(64)]
loader = Loader(data, batch_size=4, shuffle=True, seed=1)
training = outlast.Training(model=model, optimizer=optimizer, data=loader)
print("rank %d resumed %s\\n" % (rank, training.resumed), end="", flush=True)
for epoch in training.epochs(int(sys.argv[1])):
    for inputs, targets in training.batches():
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(wrapped(inputs), targets).backward()
        optimizer.step()
        time.sleep(float(sys.argv[2]))
        print("rank %d step %d\\n" % (rank, training.steps + 1), end="", flush=True)
        training.step()
outlast.wait()
if rank == 0:
    digest = hashlib.sha256(b"".join(t.numpy().tobytes() for t in model.state_dict().values())).hexdigest()
    with open(os.path.join(os.environ.get("OUTLAST_OUTPUT_DIR", "."), "weights.json"), "w") as file:
        json.dump({"digest": digest, "steps": training.steps}, file)
dist.destroy_process_group()
"""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.fixture
def launch(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    (tmp_path / "train.py").write_text(TRAIN)

    def start(place: str, *arguments: str, processes: int = 2, **environment: str) -> subprocess.Popen[str]:
        (tmp_path / place).mkdir(exist_ok=True)
        path = os.pathsep.join([str(Path(__file__).parents[2] / "src"), os.environ.get("PYTHONPATH", "")])
        return subprocess.Popen(
            [*TORCHRUN[:-1], str(processes), str(tmp_path / "train.py"), *arguments],
            cwd=tmp_path / place,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


def until(process: subprocess.Popen[str], words: str) -> str:
    """Return what the process prints up to a line with these words."""
    printed = ""
    assert process.stdout is not None
    for line in process.stdout:
        printed += line
        if words in line:
            return printed
    raise AssertionError(printed)


def finish(process: subprocess.Popen[str]) -> str:
    printed, _ = process.communicate(timeout=120)
    return printed


def whole(place: Path) -> list[Path]:
    return [path for path in (place / "checkpoints").iterdir() if checkpoint_names.is_checkpoint(path.name)]


def test_processes_killed_during_saves_resume_together_from_a_complete_checkpoint(
    tmp_path: Path, launch: Callable[..., subprocess.Popen[str]]
) -> None:
    progress = tmp_path / "progress"
    environment = {"OUTLAST_TOKEN": "a", "OUTLAST_PROGRESS_FILE": str(progress)}
    process = launch("rough", "10", "0.05", OUTLAST_SAVE_EVERY="0", **environment)
    printed = until(process, "rank 1 step 5")
    for child in children(process.pid):
        os.kill(child, signal.SIGKILL)
    process.kill()
    assert process.stdout is not None
    # Not by `finish`, which loses the lines that are in the buffer already.
    printed += process.stdout.read()
    finish(process)
    for path in whole(tmp_path / "rough"):
        assert checkpoint.verify(str(path)).world == 2
    # The processes go on until the signal reaches them: their own output shows how far they came.
    newest = [max(map(int, re.findall(r"rank %d step (\d+)" % rank, printed))) for rank in (0, 1)]
    events = [json.loads(line) for line in progress.read_text().splitlines()]
    saved = max(event["step"] for event in events if event["event"] == "saved")
    output = finish(launch("rough", "10", "0", OUTLAST_TOKEN="b"))
    resumed = re.findall(r"resumed (\d+)", output)
    assert len(resumed) == 2 and len(set(resumed)) == 1, output
    assert 1 <= saved <= int(resumed[0]) <= min(newest) < 80, (printed, output)
    assert json.loads((tmp_path / "rough" / "weights.json").read_text())["steps"] == 80


def test_a_run_that_is_resumed_with_more_ranks_fails_with_both_numbers_and_loses_nothing(
    tmp_path: Path, launch: Callable[..., subprocess.Popen[str]]
) -> None:
    process = launch("run", "1", "0.05", OUTLAST_SAVE_EVERY="0", OUTLAST_TOKEN="a")
    printed = until(process, "rank 1 step 5")
    process.send_signal(signal.SIGTERM)
    printed += finish(process)
    saved = sorted(path.name for path in whole(tmp_path / "run"))
    assert saved, printed
    process = launch("run", "1", "0", processes=3, OUTLAST_TOKEN="b")
    output = finish(process)
    assert process.returncode != 0
    found = failure.diagnose(output, process.returncode, None, False)
    assert found.outcome is Outcome.CRASHED, output
    assert "was saved by 2 processes, but this run has 3" in found.detail
    assert sorted(path.name for path in whole(tmp_path / "run")) == saved
    output = finish(launch("run", "1", "0", OUTLAST_TOKEN="c"))
    assert re.findall(r"resumed [1-9]", output), output
    assert json.loads((tmp_path / "run" / "weights.json").read_text())["steps"] == 8


def children(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout
    return [int(word) for word in found.split()]


def test_a_run_under_torchrun_continues_past_its_limit(lab: Lab) -> None:
    """The stop signal reaches the processes through torchrun, whose own exit code says nothing."""
    command = " ".join([*TORCHRUN, "train.py", "2", "3.5"])
    params: dict[str, Any] = {
        "outputs": ["weights.json"],
        "resources": {"time": "60s", "cpus": 1},
        "checkpoints": {"grace": "5s"},
    }
    directory = lab.experiment("play", {"train.py": TRAIN}, command=command, **params)
    done = lab.finish(lab.start("run", directory), 300)
    assert done.returncode == 0, done.output
    explained = lab.outlast("explain", directory / "play", "--json").json
    outcomes = [attempt["outcome"] for attempt in explained["attempts"]]
    # On a busy machine an attempt may be over before its processes have started.
    assert outcomes[-1] == "finished" and "continue" in outcomes[:-1], outcomes
    weights = json.loads((directory / "results" / "play" / "weights.json").read_text())
    assert weights["steps"] == 16


FAIL = """
import errno, os, signal, sys, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 1:
    if sys.argv[1] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[1] == "disk":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x")
    if sys.argv[1] == "bug":
        raise ValueError("wrong")
    sys.exit(3)
dist.all_reduce(torch.ones(1))  # fails, because the other one is gone
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("how", "outcome", "detail"),
    [
        ("kill", Outcome.CRASHED, "rank 1 of the training was ended by SIGKILL"),
        ("disk", Outcome.OUT_OF_DISK, "OSError: [Errno 28] No space left on device: 'x' (train.py line 11)"),
        ("bug", Outcome.CRASHED, "ValueError: wrong (train.py line 13)"),
        ("exit", Outcome.CRASHED, "rank 1 of the training exited with 3"),
    ],
)
def test_the_first_rank_that_failed_is_found_in_torchruns_log(
    tmp_path: Path, how: str, outcome: Outcome, detail: str
) -> None:
    (tmp_path / "train.py").write_text(FAIL)
    options = ["--tee", "3"] if how == "disk" else []
    done = subprocess.run(
        [*TORCHRUN, *options, "train.py", how],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=120,
    )
    found = failure.diagnose(done.stdout, done.returncode, None, False)
    assert found.outcome is outcome, done.stdout
    assert found.detail.startswith(detail)
    assert found.signal == (signal.SIGKILL if how == "kill" else None)

"""`outlast.Training`: killed anywhere, in the middle of an epoch, and it ends with the same bits."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

if "CI" in os.environ:
    import torch  # noqa: F401 - in CI nothing may be left out
else:
    pytest.importorskip("torch")

SEED = int(os.environ.get("OUTLAST_TRAINING_SEED", random.SystemRandom().randrange(10**6)))

SCRIPT = """
import hashlib, json, os, random, sys
import numpy as np, torch, outlast
from outlast.data import Loader

torch.set_num_threads(1)
torch.manual_seed(5), random.seed(5), np.random.seed(5)
kind, workers, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])

class Noisy:
    def __len__(self):
        return 40
    def __getitem__(self, index):
        # What a worker draws from torch's global generator is not restored by a StatefulDataLoader.
        noise = torch.randn(6) if kind == "loader" else torch.zeros(6)
        return torch.full((6,), index / 40) + 0.1 * noise, index % 3

if kind == "loader":
    loader = Loader(Noisy(), batch_size=4, shuffle=True, seed=3, num_workers=workers)
else:
    from torchdata.stateful_dataloader import StatefulDataLoader
    loader = StatefulDataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=workers)
layers = torch.nn.Linear(6, 32), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(32, 3)
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.8)
training = outlast.Training(model=model, optimizer=optimizer, scheduler=scheduler, data=loader)
training.state.setdefault("losses", [])
for epoch in training.epochs(4):
    for inputs, labels in training.batches():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss = loss * (1 + 0.01 * random.random() + 0.01 * np.random.rand())
        loss.backward()
        optimizer.step()
        training.state["losses"].append(loss.item())
        training.step(loss=loss)
        print("step", training.steps, flush=True)
        if pause:
            import time; time.sleep(pause)
    training.state["after %d" % epoch] = torch.rand(()).item()
    scheduler.step()
digest = hashlib.sha256()
for tensor in model.state_dict().values():
    digest.update(tensor.numpy().tobytes())
print(json.dumps({"digest": digest.hexdigest(), "state": training.state, "steps": training.steps}))
"""


def start(place: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(Path(__file__).parents[2] / "src"), os.environ.get("PYTHONPATH", "")])
    settings = {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, **environment}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments],
        cwd=place,
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    out, _ = process.communicate(timeout=120)
    return process.returncode, out.splitlines()


@pytest.mark.parametrize(
    ("kind", "workers"), [("loader", 0), ("loader", 2), ("stateful", 0), ("stateful", 2)]
)
def test_a_training_killed_in_the_middle_of_epochs_ends_with_the_same_bits(
    tmp_path: Path, kind: str, workers: int
) -> None:
    if kind == "stateful" and "CI" not in os.environ:
        pytest.importorskip("torchdata")
    calm, rough = tmp_path / "calm", tmp_path / "rough"
    calm.mkdir(), rough.mkdir()
    code, told = finish(start(calm, kind, str(workers), "0"))
    assert code == 0
    draws = random.Random(SEED)
    for attempt in range(6):
        # A save at every step, so that a kill anywhere is a kill in, after or before one.
        process = start(rough, kind, str(workers), "0", OUTLAST_SAVE_EVERY="0", OUTLAST_TOKEN="%d" % attempt)
        lines = []
        wanted = draws.randrange(5, 19) if attempt < 2 else 1000
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.strip())
            if len(lines) >= wanted:
                time.sleep(draws.random() * 0.02)
                if attempt % 2:
                    process.kill()
                break
        if wanted < 1000 and not attempt % 2:
            process.send_signal(signal.SIGTERM)
        code, rest = finish(process)
        lines += rest
        if code == 0:
            break
        assert code in (85, -signal.SIGKILL), lines
    assert code == 0 and attempt >= 2
    assert json.loads(lines[-1]) == json.loads(told[-1])

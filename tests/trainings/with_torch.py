"""A plain PyTorch loop with `outlast.Training`, dropout, random samples and a test after each epoch."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from trouble import OPTIONS, leave_weights, note, strike

if "clock" in OPTIONS and os.environ["RANK"] == "1":
    right = time.time
    time.time = lambda: right() + OPTIONS["clock"]  # type: ignore[assignment]

import outlast
from outlast.data import Loader
from outlast.training.checkpoints import file_format

torch.set_num_threads(1)
torch.manual_seed(5), random.seed(5), np.random.seed(5)
rank = 0
if OPTIONS.get("together"):
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()


if rank == OPTIONS.get("full"):
    left, real = [2], file_format.write

    def write(*arguments: Any) -> int:
        if left[0]:
            left[0] -= 1
            raise OSError(28, "No space left on device")
        return real(*arguments)

    file_format.write = write

if rank == OPTIONS.get("refuses"):

    def refuse(*arguments: Any) -> Any:
        raise outlast.CheckpointError("torch cannot be imported here")

    file_format.read_state = refuse


class Noisy:
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        # A StatefulDataLoader does not restore torch's global generator in its workers.
        noise = torch.randn(6) if OPTIONS.get("loader", "outlast") == "outlast" else torch.zeros(6)
        return torch.full((6,), index / 40) + 0.1 * noise, index % 3


workers = OPTIONS.get("workers", 0)
loader: Any
if OPTIONS.get("loader", "outlast") == "outlast":
    loader = Loader(Noisy(), batch_size=4, shuffle=True, seed=3, num_workers=workers)
else:
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=workers)
layers = torch.nn.Linear(6, 32), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(32, 3)
model = torch.nn.Sequential(*layers)
wrapped = torch.nn.parallel.DistributedDataParallel(model) if OPTIONS.get("together") else model
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.8)
training = outlast.Training(model=model, optimizer=optimizer, scheduler=scheduler, data=loader)
print("rank", rank, "resumed", training.resumed, flush=True)
torch.manual_seed(rank) if training.resumed is None else None
for epoch in training.epochs(OPTIONS["epochs"]):
    for inputs, labels in training.batches():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(wrapped(inputs), labels)
        loss = loss * (1 + 0.01 * random.random() + 0.01 * np.random.rand())
        loss.backward()
        optimizer.step()
        note("rank", rank, "step", training.steps + 1, loss.item())
        if rank == OPTIONS.get("rank", 0):
            strike(training.steps + 1)
        training.step(loss=loss)
    note("rank", rank, "epoch", epoch, torch.rand(()).item(), training.state.get("tested"))
    training.state["tested"] = epoch
    scheduler.step()
if rank == 0:
    leave_weights(model.state_dict())

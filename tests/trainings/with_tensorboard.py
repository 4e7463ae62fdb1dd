"""A training script that writes TensorBoard logs to its outputs."""

from __future__ import annotations

import os

import torch
from torch.utils.tensorboard import SummaryWriter

import outlast
from trainings.trouble import strike

STEPS = 24

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
outlast.keep("logs", flush=lambda: writer.flush())  # noqa: PLW0108 - there is none yet
training = outlast.Training(model=model, optimizer=optimizer)
writer = SummaryWriter(os.path.join(os.environ["OUTLAST_OUTPUT_DIR"], "logs"))
for _ in training.epochs(1):
    while training.steps < STEPS:
        inputs = torch.randn(8, 4)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        writer.add_scalar("loss", loss.item(), training.steps)
        strike(training.steps)
        training.step(loss=loss)
writer.close()

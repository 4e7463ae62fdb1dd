"""A tiny training script with Lightning that draws random numbers in many places."""

from __future__ import annotations

import random
import warnings
from fractions import Fraction
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

import outlast
import outlast.data
from trainings.trouble import OPTIONS, OUTPUT, leave_weights, note, strike

if OPTIONS.get("flavour") == "pytorch_lightning":
    import pytorch_lightning as lightning
    from pytorch_lightning.loggers import TensorBoardLogger
else:
    import lightning.pytorch as lightning
    from lightning.pytorch.loggers import TensorBoardLogger

from outlast.frameworks.lightning import Outlast

warnings.filterwarnings("error", "You're resuming from a checkpoint that ended before the epoch ended")


class Noisy(Dataset[Any]):
    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(size, 6, generator=generator)
        self.answers = (self.inputs.sum(1, keepdim=True) > 0).float()

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Any:
        noise = torch.randn(6) + random.random() + float(numpy.random.rand())
        return self.inputs[index] + 0.01 * noise, self.answers[index]


class Stream(IterableDataset[Any]):
    """Data without a length, so that Lightning draws a batch ahead; it must not draw random numbers."""

    def __iter__(self) -> Any:
        data = Noisy(30)
        return zip(data.inputs, data.answers, strict=True)


class Model(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self, anything: Any) -> None:
        super().__init__()
        self.save_hyperparameters()
        layers = torch.nn.Linear(6, 8), torch.nn.Dropout(0.2), torch.nn.ReLU(), torch.nn.Linear(8, 1)
        self.net = torch.nn.Sequential(*layers)
        self.ended = 0

    def loss(self, batch: Any) -> Any:
        return torch.nn.functional.binary_cross_entropy_with_logits(self.net(batch[0]), batch[1])

    def training_step(self, batch: Any, number: int) -> Any:
        loss = self.loss(batch)
        self.log("loss", loss)
        note("batch", self.trainer.fit_loop.total_batch_idx, self.trainer.current_epoch, number, loss.item())
        if self.trainer.is_global_zero:
            strike(self.trainer.fit_loop.total_batch_idx)
        return loss

    def validation_step(self, batch: Any, number: int) -> None:
        note("validation", self.trainer.fit_loop.total_batch_idx, number, self.loss(batch).item())

    def on_train_batch_end(self, *_: Any) -> None:
        self.ended += 1

    def on_train_start(self) -> None:
        torch.randn(1)

    def on_train_epoch_start(self) -> None:
        torch.randn(1)

    def on_train_epoch_end(self) -> None:
        note("epoch", self.trainer.current_epoch, self.ended)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["ended"] = self.ended
        if OPTIONS.get("odd"):
            checkpoint["odd"] = Fraction(1, 3)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.ended = checkpoint["ended"]
        assert checkpoint["hyper_parameters"] == {"anything": Fraction(1, 3)}
        assert checkpoint.get("odd") == (Fraction(1, 3) if OPTIONS.get("odd") else None)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)]


def loader() -> Any:
    kind, workers = OPTIONS.get("loader"), OPTIONS.get("workers", 0)
    if kind == "outlast":
        return outlast.data.Loader(Noisy(30), batch_size=4, shuffle=True, num_workers=workers)
    if kind == "stateful":
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(Noisy(30), batch_size=4, shuffle=True, num_workers=workers)
    if kind == "distributed":
        data = Noisy(30)
        return DataLoader(data, batch_size=4, sampler=DistributedSampler(data, 1, 0), num_workers=workers)
    if kind == "stream":
        return DataLoader(Stream(), batch_size=4, num_workers=workers)
    return DataLoader(Noisy(30), batch_size=4, shuffle=True, num_workers=workers)


lightning.seed_everything(3, verbose=False)
logger: Any = False
if OPTIONS.get("log"):
    logger = TensorBoardLogger(OUTPUT, name="", version="logs", default_hp_metric=False)
    outlast.keep("logs", flush=lambda: logger.experiment.flush())  # noqa: PLW0108 - there is none yet
trainer = lightning.Trainer(
    accelerator="cpu",
    callbacks=[Outlast(**OPTIONS.get("callback", {}))],
    enable_checkpointing=False,
    enable_model_summary=False,
    enable_progress_bar=False,
    log_every_n_steps=1,
    logger=logger,
    max_epochs=OPTIONS.get("epochs", 3),
    **OPTIONS.get("trainer", {}),
)
model = Model(anything=Fraction(1, 3))
validation = DataLoader(Noisy(8), batch_size=4)
trainer.fit(model, loader(), validation, ckpt_path=OPTIONS.get("begin"), weights_only=False)
if "leave" in OPTIONS:
    trainer.save_checkpoint(OPTIONS["leave"])
if trainer.is_global_zero:
    leave_weights(model.state_dict())

"""A callback for Hugging Face's Trainer that saves between two steps and resumes there, also in mid-epoch.

It saves when the next step begins: logging and evaluation of the previous step are complete. The batches of
the next step are drawn by then, and the Trainer draws them again when it resumes. So the random state before
each draw is saved, and random masks and augmentations come out the same. (The Trainer itself restores the
random state only after the first batches are drawn.)
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import tempfile
from typing import Any, Iterator

from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState, TrainerState

from outlast.frameworks.opaque import pack, unpack
from outlast.training import make_step_hook, randomness

_STATE_FILE = "trainer_state.json"


class Outlast(TrainerCallback):
    """A callback that adds itself to a Trainer, saves the run and resumes it.

        from outlast.frameworks.transformers import Outlast

        keeper = Outlast(trainer)
        trainer.train(resume_from_checkpoint=keeper.checkpoint)

    `checkpoint` is None if nothing was saved yet. Raises TypeError with DeepSpeed or FSDP, CheckpointError if
    the newest checkpoint was saved by something else, and RuntimeError if `train` is called without
    `keeper.checkpoint`.

    `allow_pickle`: objects in the states of optimizer and scheduler that a checkpoint cannot hold are saved
    as pickles; otherwise they raise TypeError. Loading one can execute code; allow it only if you trust
    everyone who could write to the checkpoint directory.
    """

    def __init__(self, trainer: Trainer, allow_pickle: bool = False) -> None:
        self._allow_pickle = allow_pickle
        if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
            raise TypeError("outlast cannot save the sharded states of DeepSpeed and FSDP; turn them off")
        #: A directory with the only file that the Trainer itself reads: its position.
        self.checkpoint: str | None = None
        self._trainer = trainer
        self._hook = make_step_hook("Transformers", self._capture)
        self._draws = _Draws(trainer.args.gradient_accumulation_steps + 1)
        self._saved = self._hook.load()
        self._random: dict[str, Any] | None = None
        if self._saved is not None:
            self._offer_place(self._saved)
        trainer.add_callback(self)

    def _offer_place(self, saved: dict[str, Any]) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="outlast-")
        self.checkpoint = self._directory.name
        with open(os.path.join(self.checkpoint, _STATE_FILE), "w", encoding="utf-8") as file:
            file.write(saved["trainer"])
        # There is no model in the directory; it is loaded in `_restore`.
        self._trainer._load_from_checkpoint = lambda *args, **kwargs: None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        saved, self._saved = self._saved, None
        if saved is not None:
            if state.global_step != json.loads(saved["trainer"])["global_step"]:
                raise RuntimeError(
                    "this run has a checkpoint: call train(resume_from_checkpoint=keeper.checkpoint)"
                )
            self._directory.cleanup()
            del self._trainer._load_from_checkpoint
            # Loaded arrays are mapped from the checkpoint file; optimizers would keep using them.
            self._restore(copy.deepcopy(saved))
        self._draws.watch(kwargs["train_dataloader"])

    def _restore(self, saved: dict[str, Any]) -> None:
        trainer = self._trainer
        trainer.model.load_state_dict(saved["model"])
        trainer.optimizer.load_state_dict(self._unpack(saved["optimizer"]))
        trainer.lr_scheduler.load_state_dict(self._unpack(saved["scheduler"]))
        if saved["scaler"] is not None:
            trainer.accelerator.scaler.load_state_dict(self._unpack(saved["scaler"]))
        loss, trainer._globalstep_last_logged = saved["loss"]
        trainer._tr_loss = loss.to(trainer.args.device)
        self._draws.again = saved["draws"]
        self._random = saved["random"]

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._random is not None:
            randomness.restore(self._random)
            self._random = None
        metrics = state.log_history[-1] if state.log_history else {}
        self._hook.after_step(state.global_step, state.max_steps, metrics)

    def _capture(self) -> dict[str, Any]:
        trainer = self._trainer
        trainer.store_flos()
        parts = [*trainer.callback_handler.callbacks, trainer.control]
        counting = TrainerState(stateful_callbacks=[one for one in parts if isinstance(one, ExportableState)])
        state = {**dataclasses.asdict(trainer.state), "stateful_callbacks": counting.stateful_callbacks}
        scaler = getattr(trainer.accelerator, "scaler", None)
        return {
            "trainer": json.dumps(state),
            "model": trainer.model.state_dict(),
            "optimizer": self._pack(trainer.optimizer.state_dict(), "the optimizer's state"),
            "scheduler": self._pack(trainer.lr_scheduler.state_dict(), "the scheduler's state"),
            "scaler": None if scaler is None else self._pack(scaler.state_dict(), "the scaler's state"),
            "loss": [trainer._tr_loss, trainer._globalstep_last_logged],
            "draws": self._draws.noted,
            "random": randomness.capture(),
        }

    def _pack(self, value: Any, place: str) -> Any:
        return pack(value, self._allow_pickle, place)

    def _unpack(self, value: Any) -> Any:
        return unpack(value, self._allow_pickle)


class _Draws:
    """The random states at the beginning of the epoch's order and before the newest batches were drawn."""

    def __init__(self, most: int) -> None:
        self._most = most
        #: By the number of the batch in its epoch; None for the order itself.
        self.noted: dict[int | None, dict[str, Any]] = {}
        #: The saved states of batches that will be drawn again.
        self.again: dict[int | None, dict[str, Any]] = {}

    def watch(self, loader: Any) -> None:
        """Observe the sampler of a loader, if it has one.

        With worker processes or a share of a sampler, only the beginning of the order is observed.
        """
        whole: Any = getattr(loader, "batch_sampler", None)
        sampler = whole
        while hasattr(sampler, "batch_sampler"):
            sampler = sampler.batch_sampler
        if hasattr(sampler, "sampler") and hasattr(sampler, "batch_size"):
            in_sight = sampler is whole and loader.num_workers == 0
            sampler.sampler = _ObservedSampler(sampler.sampler, sampler.batch_size if in_sight else 0, self)

    def come(self, batch: int | None) -> None:
        """Record the random state before batch `batch` is drawn, or restore the saved one.

        None stands for the beginning of the epoch's order.
        """
        if batch in self.again:
            randomness.restore(self.again.pop(batch))
        elif batch is None:
            self.again = {}
        elif self.again:
            return  # it was trained on and is skipped
        if batch is None:
            self.noted = {}
        self.noted[batch] = randomness.capture()
        while len(self.noted) > self._most + 1:
            del self.noted[min(number for number in self.noted if number is not None)]


class _ObservedSampler:
    """A sampler that reports when its order begins and when a batch begins."""

    def __init__(self, sampler: Any, batch_size: int, draws: _Draws) -> None:
        self._sampler = sampler
        self._batch_size = batch_size
        self._draws = draws

    def __iter__(self) -> Iterator[Any]:
        self._draws.come(None)
        for number, sample in enumerate(self._sampler):
            if self._batch_size and number % self._batch_size == 0:
                self._draws.come(number // self._batch_size)
            yield sample

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

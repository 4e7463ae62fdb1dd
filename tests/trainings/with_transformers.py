"""A tiny training script with Hugging Face's Trainer whose samples draw random numbers."""

from __future__ import annotations

import random
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EarlyStoppingCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)

from outlast.frameworks.transformers import Outlast
from trainings.trouble import OPTIONS, OUTPUT, leave_weights, note, strike


class Noisy(torch.utils.data.Dataset[Any]):
    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.words = torch.randint(0, 50, (size, 8), generator=generator)

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> Any:
        words = self.words[index].clone()
        if not OPTIONS.get("quiet"):
            words[random.randrange(8)] = int(torch.randint(0, 50, ()))
        return {"input_ids": words, "labels": self.words[index].sum() % 2}


class Noting(Trainer):  # type: ignore[misc]
    def training_step(self, *words: Any, **named: Any) -> Any:
        loss = super().training_step(*words, **named)
        note("step", self.state.global_step, loss.item())
        strike(self.state.global_step)
        return loss

    def log(self, logs: dict[str, float], *words: Any, **named: Any) -> None:
        losses = {name: logs[name] for name in ("loss", "eval_loss") if name in logs}
        note("log", self.state.global_step, losses)
        super().log(logs, *words, **named)


set_seed(5)
sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
model = BertForSequenceClassification(BertConfig(vocab_size=50, max_position_embeddings=8, **sizes))
arguments = TrainingArguments(
    output_dir=str(OUTPUT / "trainer"),
    disable_tqdm=True,
    logging_steps=3,
    num_train_epochs=3,
    per_device_train_batch_size=4,
    report_to=[],
    save_strategy="no",
    seed=5,
    use_cpu=True,
    **OPTIONS.get("arguments", {}),
)
patience = [EarlyStoppingCallback(2)] if OPTIONS.get("patience") else []
trainer = Noting(model, arguments, train_dataset=Noisy(30), eval_dataset=Noisy(8), callbacks=patience)
keeper = Outlast(trainer)
trainer.train(resume_from_checkpoint=None if OPTIONS.get("forgets") else keeper.checkpoint)
leave_weights(model.state_dict())
note("history", [{k: v for k, v in one.items() if "loss" in k} for one in trainer.state.log_history[:-1]])

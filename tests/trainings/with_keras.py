"""A tiny Keras training script: dropout, batch normalisation, shuffling, callbacks that count epochs."""

from __future__ import annotations

from typing import Any

import keras
import numpy
import torch

from outlast.frameworks.keras import Outlast
from trainings.trouble import OPTIONS, leave_weights, note, strike

keras.utils.set_random_seed(4)
inputs = numpy.random.RandomState(0).randn(30, 6).astype("float32")
answers = (inputs.sum(1) > 0).astype("float32")


class Unseeded(keras.layers.Layer):  # type: ignore[misc]
    """A layer that draws from the seeds of Keras itself."""

    def call(self, values: Any, training: bool = False) -> Any:
        return values + 0.01 * keras.random.normal((6,)) if training else values


class Noting(keras.callbacks.Callback):  # type: ignore[misc]
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        strike(8 * self.epoch + batch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        note("epoch", epoch, {name: float(value) for name, value in logs.items()})


class Noisy(keras.utils.PyDataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> Any:
        chosen = slice(4 * number, 4 * number + 4)
        return inputs[chosen] + 0.1 * numpy.random.rand(), answers[chosen]


def data() -> dict[str, Any]:
    if OPTIONS.get("data") == "loader":
        pairs = torch.utils.data.TensorDataset(torch.tensor(inputs), torch.tensor(answers))
        workers = OPTIONS.get("workers", 0)
        return {"x": torch.utils.data.DataLoader(pairs, batch_size=4, shuffle=True, num_workers=workers)}
    if OPTIONS.get("data") == "PyDataset":
        return {"x": Noisy()}
    return {"x": inputs, "y": answers, "batch_size": 4}


layers = keras.layers
model = keras.Sequential(
    [
        keras.Input((6,)),
        Unseeded(),
        layers.Dense(8, activation="relu"),
        layers.BatchNormalization(),
        layers.Dropout(0.3),
        layers.Dense(1),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(0.01, gradient_accumulation_steps=OPTIONS.get("accumulate")),
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
plateau = keras.callbacks.ReduceLROnPlateau(patience=1, factor=0.5, min_delta=0.05)
slower = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9)
history = model.fit(
    **data(),
    epochs=3,
    verbose=0,
    validation_data=(inputs[:8], answers[:8]),
    callbacks=[Noting(), plateau, slower, Outlast(also=[plateau])],
)
note("history", history.epoch, history.history)
variables = [*model.variables, *model.optimizer.variables]
leave_weights({"%d" % number: one.value.detach() for number, one in enumerate(variables)})

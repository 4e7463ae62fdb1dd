"""Keras 3 on torch: a callback that saves between two batches and goes on there, also in mid-epoch.

Keras cannot be told to begin an epoch in its middle. So the epoch that was interrupted begins as it did, with
the same random state and hence the same order, and the batches that were trained on are drawn and passed
over; then everything is put back as it was, and training goes on with the next.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any, Iterable

import keras
from keras.src.random.seed_generator import global_seed_generator

import outlast
from outlast.frameworks.opaque import pack, unpack
from outlast.training import between_steps, randomness

_SET_BY_KERAS = ("_model", "params", "validation_data")


class Outlast(keras.callbacks.Callback):
    """`model.fit(…, callbacks=[…, Outlast()])`, the last of the callbacks.

    `also` are other callbacks that count on from epoch to epoch (EarlyStopping, ReduceLROnPlateau): their
    plain attributes are saved and put back with the rest.
    """

    def __init__(self, also: Iterable[Any] = ()) -> None:
        super().__init__()
        if keras.backend.backend() != "torch":
            raise RuntimeError("this callback needs KERAS_BACKEND=torch; it is %s" % keras.backend.backend())
        self._also = list(also)
        self._steps = between_steps("Keras", self._take)
        self._done = 0
        self._epoch = 0
        #: Batches of this epoch that are done, and the random state when it began.
        self._batch = 0
        self._beginning: dict[str, Any] = {}
        #: What was saved, until it is put back; how many batches are still to be passed over.
        self._saved: dict[str, Any] | None = None
        self._to_pass = 0

    def on_train_begin(self, logs: Any = None) -> None:
        saved = self._steps.load()
        if saved is None:
            return
        self._saved = copy.deepcopy(saved)  # what is loaded lies in the checkpoint's file
        self.model._initial_epoch = saved["epoch"]

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch, self._batch = epoch, 0
        if self._saved is not None:
            randomness.restore(self._saved["beginning"])
        self._beginning = randomness.capture()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._saved is not None:
            # Now, because callbacks that begin an epoch have changed what this epoch began with once before.
            self._put_back(self._saved)
            self._pass_over(self._saved["batch"], self._saved["random"])
            self._saved = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._to_pass:
            self._to_pass -= 1
            return
        self._done += 1
        self._batch += 1
        steps, epochs = self.params.get("steps"), self.params.get("epochs")
        self._steps.between(self._done, steps * epochs if steps and epochs else None, logs or {})

    def on_train_end(self, logs: Any = None) -> None:
        self.model._initial_epoch = None

    def _pass_over(self, batches: int, random: dict[str, Any]) -> None:
        """Let the next so many batches be drawn and not be trained on."""
        train = self.model.train_function

        def pass_over(data: Any) -> Any:
            if self._to_pass == 1:
                # Drawing used random numbers: only what comes now is as it was.
                self.model.train_function = train
                randomness.restore(random)
            return self.model.get_metrics_result()

        self._to_pass = self._batch = batches
        self.model.train_function = pass_over

    def _take(self) -> dict[str, Any]:
        return {
            "epoch": self._epoch,
            "batch": self._batch,
            "done": self._done,
            "variables": [variable.value for variable in self._variables()],
            "buffers": dict(self.model.named_buffers()),
            "history": [self.model.history.epoch, self.model.history.history],
            "also": [_attributes(one) for one in self._also],
            "beginning": self._beginning,
            "random": randomness.capture(),
        }

    def _variables(self) -> list[Any]:
        """Weights, states of optimizer and metrics, and the seeds of layers and of Keras itself."""
        optimizer = self.model.optimizer
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        found = [*self.model.variables, *optimizer.variables, *self.model.metrics_variables]
        found.append(global_seed_generator().state)
        return list({id(variable): variable for variable in found}.values())

    def _put_back(self, saved: dict[str, Any]) -> None:
        variables, values = self._variables(), saved["variables"]
        if [tuple(one.shape) for one in variables] != [tuple(value.shape) for value in values]:
            raise outlast.CheckpointError("the checkpoint is of another model, optimizer or set of metrics")
        for variable, value in zip(variables, values):
            variable.assign(value)
        for name, buffer in self.model.named_buffers():
            buffer.copy_(saved["buffers"][name])
        self.model.history.epoch, self.model.history.history = saved["history"]
        for one, attributes in zip(self._also, saved["also"]):
            vars(one).update(unpack(attributes))
        self._done = saved["done"]


def _attributes(callback: Any) -> dict[str, Any]:
    """What it counts and compares with; not the model, and no functions that were written in the script."""
    found = {}
    for name, value in vars(callback).items():
        if name in _SET_BY_KERAS:
            continue
        try:
            found[name] = pack(value)
        except (pickle.PicklingError, AttributeError, TypeError):
            continue
    return found

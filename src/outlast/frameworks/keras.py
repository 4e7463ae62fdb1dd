"""A callback for Keras 3 on torch that saves between two batches and resumes there, also in mid-epoch.

Keras cannot start in the middle of an epoch. So the interrupted epoch is started again with the same random
state, and therefore the same order; the batches that were trained on are drawn and skipped; then the saved
state is restored and training continues with the next batch.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any, Iterable

import keras
from keras.src.random.seed_generator import global_seed_generator

import outlast
from outlast.frameworks.opaque import NeedsPickle, pack, unpack
from outlast.training import make_step_hook, randomness

_SET_BY_KERAS = ("_model", "params", "validation_data")
#: Functions in the state of EarlyStopping and ReduceLROnPlateau, chosen at the end of the first epoch.
_COMPARISONS = (keras.ops.less, keras.ops.greater)


class Outlast(keras.callbacks.Callback):
    """A callback that saves the run and resumes it: pass it last to `fit`.

        from outlast.frameworks.keras import Outlast

        model.fit(x, y, epochs=10, callbacks=[Outlast()])

    `fit` resumes from the newest checkpoint, if there is one. `also` takes other callbacks whose attributes
    are saved and restored, such as EarlyStopping or ReduceLROnPlateau; list them in `callbacks` too::

        plateau = keras.callbacks.ReduceLROnPlateau()
        model.fit(x, y, epochs=10, callbacks=[plateau, Outlast(also=[plateau])])

    Raises RuntimeError if the backend of Keras is not torch. `fit` raises CheckpointError if the newest
    checkpoint was saved by something else or for another model.

    Functions of the script among the attributes are not saved. `allow_pickle`: other attributes that a
    checkpoint cannot hold are saved as pickles; otherwise they raise TypeError. Loading one can execute code;
    allow it only if you trust everyone who could write to the checkpoint directory.
    """

    def __init__(self, also: Iterable[Any] = (), allow_pickle: bool = False) -> None:
        self._allow_pickle = allow_pickle
        super().__init__()
        if keras.backend.backend() != "torch":
            raise RuntimeError(
                "this callback needs KERAS_BACKEND=torch, but the backend is %s" % keras.backend.backend()
            )
        self._also = list(also)
        self._hook = make_step_hook("Keras", self._capture)
        self._done = 0
        self._epoch = 0
        #: Completed batches of this epoch, and the random state at its beginning.
        self._batch = 0
        self._beginning: dict[str, Any] = {}
        #: The loaded state until it is restored; the number of batches still to skip.
        self._saved: dict[str, Any] | None = None
        self._to_skip = 0

    def on_train_begin(self, logs: Any = None) -> None:
        saved = self._hook.load()
        if saved is None:
            return
        self._saved = copy.deepcopy(saved)  # loaded arrays are mapped from the file
        self.model._initial_epoch = saved["epoch"]

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch, self._batch = epoch, 0
        if self._saved is not None:
            randomness.restore(self._saved["beginning"])
        self._beginning = randomness.capture()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._saved is not None:
            # Only now: callbacks have run for the beginning of this epoch a second time, and their changes
            # are undone here.
            self._restore(self._saved)
            self._skip_batches(self._saved["batch"], self._saved["random"])
            self._saved = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._to_skip:
            self._to_skip -= 1
            return
        self._done += 1
        self._batch += 1
        steps, epochs = self.params.get("steps"), self.params.get("epochs")
        self._hook.after_step(self._done, steps * epochs if steps and epochs else None, logs or {})

    def on_train_end(self, logs: Any = None) -> None:
        self.model._initial_epoch = None

    def _skip_batches(self, batches: int, random: dict[str, Any]) -> None:
        """Draw the next `batches` batches without training on them."""
        train = self.model.train_function

        def skip(data: Any) -> Any:
            if self._to_skip == 1:
                # Drawing the batches used random numbers; restore the state from after them.
                self.model.train_function = train
                randomness.restore(random)
            return self.model.get_metrics_result()

        self._to_skip = self._batch = batches
        self.model.train_function = skip

    def _capture(self) -> dict[str, Any]:
        return {
            "epoch": self._epoch,
            "batch": self._batch,
            "done": self._done,
            "variables": [variable.value for variable in self._variables()],
            "buffers": dict(self.model.named_buffers()),
            "history": [self.model.history.epoch, self.model.history.history],
            "also": [_attributes(one, self._allow_pickle) for one in self._also],
            "beginning": self._beginning,
            "random": randomness.capture(),
        }

    def _variables(self) -> list[Any]:
        """Return weights, states of optimizer and metrics, and the seeds of layers and of Keras itself."""
        optimizer = self.model.optimizer
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        found = [*self.model.variables, *optimizer.variables, *self.model.metrics_variables]
        found.append(global_seed_generator().state)
        return list({id(variable): variable for variable in found}.values())

    def _restore(self, saved: dict[str, Any]) -> None:
        variables, values = self._variables(), saved["variables"]
        if [tuple(one.shape) for one in variables] != [tuple(value.shape) for value in values]:
            raise outlast.CheckpointError(
                "the checkpoint was saved with another model, optimizer or set of metrics"
            )
        for variable, value in zip(variables, values):
            variable.assign(value)
        for name, buffer in self.model.named_buffers():
            buffer.copy_(saved["buffers"][name])
        self.model.history.epoch, self.model.history.history = saved["history"]
        for one, attributes in zip(self._also, saved["also"]):
            vars(one).update(unpack(attributes, self._allow_pickle, _COMPARISONS))
        self._done = saved["done"]


def _attributes(callback: Any, allow_pickle: bool) -> dict[str, Any]:
    """Return the attributes of a callback that can be saved; not the model, nor functions of the script.

    Raises NeedsPickle for an attribute that can be saved only as a pickle, unless `allow_pickle`.
    """
    found = {}
    for name, value in vars(callback).items():
        if name in _SET_BY_KERAS:
            continue
        try:
            place = "%s.%s" % (type(callback).__name__, name)
            found[name] = pack(value, allow_pickle, place, _COMPARISONS)
        except NeedsPickle:
            if not callable(value):
                raise
        except (pickle.PicklingError, AttributeError, TypeError):
            continue
    return found

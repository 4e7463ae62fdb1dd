"""A callback for Lightning that saves between two batches and resumes there, also in the middle of an epoch.

It saves just before the next batch is drawn: hooks, logging and validation of the previous batch are
complete, and nothing of the next one has begun. Lightning has no hook there. Its own checkpoints hold neither
the random state nor, for most loaders, the position in the data; both are added here.
"""

from __future__ import annotations

import copy
import math
import signal
import sys
import threading
import warnings
from typing import Any, Callable, Iterator

import outlast
from outlast.frameworks.opaque import pack, unpack
from outlast.training import make_step_hook, randomness
from outlast.training.deadline import STOP_SIGNALS

if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback

#: Lightning's warning about loaders without a position; this callback restores it without their help.
_NOT_RESUMABLE = "You're resuming from a checkpoint that ended before the epoch ended"
#: Parts of a Lightning checkpoint that come from the script and may be any objects; fit() does not read them.
_OF_SCRIPT = frozenset(
    prefix + name
    for prefix in ("", "datamodule_")
    for name in ("hparams_name", "hyper_parameters", "hparams_type")
)


class Outlast(Callback):
    """A callback that saves the run and resumes it.

        from outlast.frameworks.lightning import Outlast

        trainer = Trainer(max_epochs=10, callbacks=[Outlast()])
        trainer.fit(model, loader)

    `fit` resumes from the newest checkpoint, if there is one; a `ckpt_path` passed to `fit` is then ignored.
    The hyperparameters are those of the script. `allow_pickle`: objects in the state that a checkpoint cannot
    hold (in the state of another callback, or added by a hook) are saved as pickles. Loading one can execute
    code; allow it only if you trust everyone who could write to the checkpoint directory.

    Any DataLoader works; one with `state_dict()` (such as `outlast.data.Loader`) resumes faster, others draw
    the batches of the interrupted epoch again.

    Raises CheckpointError if the newest checkpoint was saved by something else or needs a pickle that is not
    allowed, and TypeError for a `training_step` that draws its own batches and for an object that needs one.
    """

    def __init__(self, allow_pickle: bool = False) -> None:
        self._allow_pickle = allow_pickle
        #: The saved position in the epoch, until it is restored.
        self._place: dict[str, Any] | None = None
        #: The random state to resume with.
        self._random: dict[str, Any] | None = None
        #: The random state when the iterator of this epoch was created.
        self._beginning: dict[str, Any] | None = None
        self._total: int | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        self._hook = make_step_hook("Lightning", lambda: self._capture(trainer))
        _close_logs(trainer)
        saved = self._hook.load()
        if saved is None:
            return
        # Loaded arrays are mapped from the checkpoint file; optimizers would keep using them.
        saved = copy.deepcopy(saved)
        self._place = saved["place"]
        connector = trainer._checkpoint_connector
        checkpoint = {key: value for key, value in saved["checkpoint"].items() if key not in _OF_SCRIPT}
        connector._loaded_checkpoint = {
            **unpack(checkpoint, self._allow_pickle),
            **_hyperparameters(trainer),
        }
        # A ckpt_path passed to fit() is where the run began; the saved state is further.
        connector.resume_start = lambda *args, **kwargs: None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        vars(trainer._checkpoint_connector).pop("resume_start", None)
        _restore_signal_handlers(trainer)
        steps = trainer.estimated_stepping_batches
        self._total = int(steps) if math.isfinite(steps) else None
        self._watch(trainer)
        if self._place is not None:
            warnings.filterwarnings("ignore", _NOT_RESUMABLE)
            _seek(self._place, trainer, self._allow_pickle)
            self._random = self._place["random"]
            self._place = None

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._watch(trainer)
        fetcher = trainer.fit_loop._data_fetcher
        if self._beginning is None and fetcher.length is None:
            iter(fetcher)  # see _between_batches; without a length, Lightning draws one batch ahead

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        vars(trainer.fit_loop.epoch_loop).pop("_on_before_fetch", None)

    def _watch(self, trainer: Any) -> None:
        """Hook into iterator creation and batch drawing; Lightning may have created a new fetcher."""
        loop, fetcher = trainer.fit_loop.epoch_loop, trainer.fit_loop._data_fetcher
        if hasattr(fetcher, "iterator_wrapper"):
            raise TypeError(
                "a training_step that draws its own batches cannot be stopped between two of them"
            )
        if not isinstance(fetcher.combined_loader, _ObservedLoader):
            fetcher.setup(_ObservedLoader(fetcher.combined_loader, self._note))
        if "_on_before_fetch" not in vars(loop):
            notify_profiler = loop._on_before_fetch

            def before_fetch() -> None:
                self._between_batches(trainer)
                notify_profiler()

            loop._on_before_fetch = before_fetch

    def _note(self) -> None:
        self._beginning = randomness.capture()

    def _between_batches(self, trainer: Any) -> None:
        loop, fetcher = trainer.fit_loop.epoch_loop, trainer.fit_loop._data_fetcher
        is_stateful = _stateful(fetcher) is not None
        if self._beginning is None and not is_stateful:
            # The iterator of the first epoch was created before `_watch`.
            iter(fetcher)
        if self._random is not None:
            # Hooks and skipped batches have drawn random numbers; restore the state from after them.
            randomness.restore(self._random)
            self._random = None
        # Accumulated gradients are not saved, and before its first batch a loader's state is still the
        # previous epoch's.
        has_begun = loop.batch_progress.current.completed > 0 or not is_stateful
        if has_begun and not loop._should_accumulate():
            self._hook.after_step(trainer.global_step, self._total, trainer.callback_metrics)

    def _capture(self, trainer: Any) -> dict[str, Any]:
        loop, fetcher = trainer.fit_loop.epoch_loop, trainer.fit_loop._data_fetcher
        checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        loops = checkpoint["loops"]["fit_loop"]
        loops["state_dict"].pop("combined_loader", None)
        for key in _OF_SCRIPT:
            checkpoint.pop(key, None)
        if loop._should_check_val_fx(fetcher):
            # After validation, Lightning repeats the end of the batch when it restarts.
            loops["epoch_loop.state_dict"]["_batches_that_stepped"] -= 1
        loader = _stateful(fetcher)
        place = {
            "batch": loop.batch_progress.current.completed,
            "data": None if loader is None else self._pack(loader.state_dict(), "the loader's state"),
            "beginning": self._beginning if loader is None else None,
            "random": randomness.capture(),
        }
        return {"checkpoint": self._pack(checkpoint, "the Lightning checkpoint"), "place": place}

    def _pack(self, value: Any, place: str) -> Any:
        return pack(value, self._allow_pickle, place)


class _ObservedLoader:
    """A loader that calls `note` when its iterator is created."""

    def __init__(self, loader: Any, note: Callable[[], None]) -> None:
        self._loader = loader
        self._note = note

    def __iter__(self) -> Iterator[Any]:
        self._note()
        return iter(self._loader)

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _stateful(fetcher: Any) -> Any:
    """Return the loader if its state is its position, else None.

    Several loaders, and one without a length, have been read ahead of the training.
    """
    loader, *others = fetcher.combined_loader.flattened
    if others or fetcher.length is None:
        return None
    return loader if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict") else None


def _hyperparameters(trainer: Any) -> dict[str, Any]:
    """Return the script's hyperparameters in the form in which a Lightning checkpoint has them."""
    found: dict[str, Any] = {}
    for owner in (trainer.lightning_module, trainer.datamodule):
        if owner is not None and owner.hparams:
            found[owner.CHECKPOINT_HYPER_PARAMS_NAME] = getattr(owner, "_hparams_name", None)
            found[owner.CHECKPOINT_HYPER_PARAMS_KEY] = dict(owner.hparams)
    return found


def _seek(place: dict[str, Any], trainer: Any, allow_pickle: bool) -> None:
    """Create the epoch's iterator so that it continues with the first batch that was not drawn."""
    fetcher = trainer.fit_loop._data_fetcher
    loader = _stateful(fetcher)
    if (loader is None) != (place["data"] is None):
        raise outlast.CheckpointError(
            "the position in the data was saved by another kind of loader; use the same loader as before"
        )
    if loader is not None:
        loader.load_state_dict(unpack(place["data"], allow_pickle))
        iter(fetcher)
    else:
        for one in fetcher.combined_loader.flattened:
            _set_epoch(one, trainer.fit_loop.epoch_progress.current.processed)
        randomness.restore(place["beginning"])
        iter(fetcher)
        for _ in range(place["batch"]):
            next(fetcher)
        fetcher.fetched = 0  # Lightning adds the checkpoint's count


def _set_epoch(loader: Any, epoch: int) -> None:
    for name in ("sampler", "batch_sampler"):
        set_epoch = getattr(getattr(loader, name, None), "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)


def _close_logs(trainer: Any) -> None:
    """Close TensorBoard writers: loading removes the file they have begun; they open another when needed."""
    for logger in trainer.loggers:
        writer: Any = getattr(logger, "experiment", None)
        if type(writer).__name__ == "SummaryWriter":
            writer.close()


def _restore_signal_handlers(trainer: Any) -> None:
    """Restore the signal handlers that Lightning replaced: its own end the training run without a save."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in STOP_SIGNALS:
        before = trainer._signal_connector._original_handlers.get(number)
        if callable(before) and not isinstance(before, signal.Handlers):
            signal.signal(number, before)

"""Lightning: a callback that saves between two batches and goes on there, also in the middle of an epoch.

Saving happens just before the next batch is drawn: hooks, logging and validation after the batch before are
done then, and nothing of the next one has begun. Lightning has no hook there, and its own checkpoints have
neither the random state nor, for most loaders, the position in the data; both are added here.
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
from outlast.training import between_steps, randomness
from outlast.training.deadline import STOP_SIGNALS

if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback

#: What Lightning says where the loader has no position of its own; here it is found without one.
_NOT_RESUMABLE = "You're resuming from a checkpoint that ended before the epoch ended"


class Outlast(Callback):
    """`Trainer(callbacks=[Outlast()])`: `fit` goes on where the last attempt was, if there was one."""

    def __init__(self) -> None:
        #: The place in the epoch to go on from, until it has been found again.
        self._place: dict[str, Any] | None = None
        #: The random state to go on with.
        self._random: dict[str, Any] | None = None
        #: The random state at the moment when the batches of this epoch were begun.
        self._beginning: dict[str, Any] | None = None
        self._total: int | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        self._steps = between_steps("Lightning", lambda: self._take(trainer))
        _close_logs(trainer)
        saved = self._steps.load()
        if saved is None:
            return
        # What is loaded lies in the checkpoint's file; optimizers would go on in there.
        saved = copy.deepcopy(saved)
        self._place = saved["place"]
        connector = trainer._checkpoint_connector
        connector._loaded_checkpoint = unpack(saved["checkpoint"])
        # A ckpt_path that was given to fit() is where the run began; it has come further since.
        connector.resume_start = lambda *args, **kwargs: None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        vars(trainer._checkpoint_connector).pop("resume_start", None)
        _give_signals_back(trainer)
        steps = trainer.estimated_stepping_batches
        self._total = int(steps) if math.isfinite(steps) else None
        self._watch(trainer)
        if self._place is not None:
            warnings.filterwarnings("ignore", _NOT_RESUMABLE)
            _go_to(self._place, trainer)
            self._random = self._place["random"]
            self._place = None

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._watch(trainer)
        fetcher = trainer.fit_loop._data_fetcher
        if self._beginning is None and fetcher.length is None:
            iter(fetcher)  # as below; one without a length has drawn a batch when the next is asked for

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        vars(trainer.fit_loop.epoch_loop).pop("_on_before_fetch", None)

    def _watch(self, trainer: Any) -> None:
        """Be called when batches are begun and before one is drawn; Lightning may have a new fetcher."""
        loop, fetcher = trainer.fit_loop.epoch_loop, trainer.fit_loop._data_fetcher
        if hasattr(fetcher, "iterator_wrapper"):
            raise TypeError("a training_step that draws its batches itself cannot be stopped between two")
        if not isinstance(fetcher.combined_loader, _Noting):
            fetcher.setup(_Noting(fetcher.combined_loader, self._note))
        if "_on_before_fetch" not in vars(loop):
            tell_profiler = loop._on_before_fetch

            def before_fetch() -> None:
                self._between_batches(trainer)
                tell_profiler()

            loop._on_before_fetch = before_fetch

    def _note(self) -> None:
        self._beginning = randomness.capture()

    def _between_batches(self, trainer: Any) -> None:
        loop, fetcher = trainer.fit_loop.epoch_loop, trainer.fit_loop._data_fetcher
        is_stateful = _stateful(fetcher) is not None
        if self._beginning is None and not is_stateful:
            # The batches of the first epoch were begun before anything could be noted.
            iter(fetcher)
        if self._random is not None:
            # Hooks, and going through the data, have drawn random numbers: only what comes now is as it was.
            randomness.restore(self._random)
            self._random = None
        # Gradients that are being summed up are not saved; and the state of a loader that has not begun is
        # that of the epoch before.
        has_begun = loop.batch_progress.current.completed > 0 or not is_stateful
        if has_begun and not loop._should_accumulate():
            self._steps.between(trainer.global_step, self._total, trainer.callback_metrics)

    def _take(self, trainer: Any) -> dict[str, Any]:
        loop, fetcher = trainer.fit_loop.epoch_loop, trainer.fit_loop._data_fetcher
        checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        loops = checkpoint["loops"]["fit_loop"]
        loops["state_dict"].pop("combined_loader", None)
        if loop._should_check_val_fx(fetcher):
            # Where it has validated, Lightning goes once more through the end of the batch when it restarts.
            loops["epoch_loop.state_dict"]["_batches_that_stepped"] -= 1
        loader = _stateful(fetcher)
        place = {
            "batch": loop.batch_progress.current.completed,
            "data": None if loader is None else pack(loader.state_dict()),
            "beginning": self._beginning if loader is None else None,
            "random": randomness.capture(),
        }
        return {"checkpoint": pack(checkpoint), "place": place}


class _Noting:
    """A loader that says when it is begun."""

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
    """The loader, if its state is the place; several, or one without a length, have been asked for more."""
    loader, *others = fetcher.combined_loader.flattened
    if others or fetcher.length is None:
        return None
    return loader if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict") else None


def _go_to(place: dict[str, Any], trainer: Any) -> None:
    """Begin the epoch's batches so that the next one is the first that was not drawn."""
    fetcher = trainer.fit_loop._data_fetcher
    loader = _stateful(fetcher)
    if (loader is None) != (place["data"] is None):
        raise outlast.CheckpointError(
            "the position in the data was saved by another kind of loader; go on with the one of before"
        )
    if loader is not None:
        loader.load_state_dict(unpack(place["data"]))
        iter(fetcher)
    else:
        for one in fetcher.combined_loader.flattened:
            _set_epoch(one, trainer.fit_loop.epoch_progress.current.processed)
        randomness.restore(place["beginning"])
        iter(fetcher)
        for _ in range(place["batch"]):
            next(fetcher)
        fetcher.fetched = 0  # Lightning adds those of the checkpoint


def _set_epoch(loader: Any, epoch: int) -> None:
    for name in ("sampler", "batch_sampler"):
        set_epoch = getattr(getattr(loader, name, None), "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)


def _close_logs(trainer: Any) -> None:
    """TensorBoard's writers have begun a file that loading would remove; they begin another when needed."""
    for logger in trainer.loggers:
        writer: Any = getattr(logger, "experiment", None)
        if type(writer).__name__ == "SummaryWriter":
            writer.close()


def _give_signals_back(trainer: Any) -> None:
    """Lightning ends a training that is told to stop, without a save; who listened before listens again."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in STOP_SIGNALS:
        before = trainer._signal_connector._original_handlers.get(number)
        if callable(before) and not isinstance(before, signal.Handlers):
            signal.signal(number, before)

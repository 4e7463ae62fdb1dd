"""The loop behind `outlast.Training`: the complete state for bit-exact resuming, its epochs and batches.

A step is complete when everything that belongs to it has been done: the body of the inner loop when the next
batch is requested; after the last batch of an epoch also the code behind the inner loop, when the next epoch
is requested. Only there a state is saved, so a run never resumes in an epoch without batches, or in a loop
without epochs, where variables that the body assigns do not exist.
"""

from __future__ import annotations

import copy
import enum
from typing import TYPE_CHECKING, Any, Iterable, Iterator

from outlast.training import randomness
from outlast.training.errors import CheckpointError
from outlast.training.progress_log import warn
from outlast.training.step_hook import StepHook

if TYPE_CHECKING:
    from outlast.training.training_session import TrainingSession

#: What `next` returns for an iterator without further batches.
_END = object()


class _Place(enum.Enum):
    """Where the script is in the current epoch."""

    #: Not in a loop over `batches`.
    ELSEWHERE = 0
    #: In the body of that loop.
    BODY = 1
    #: Behind that loop: all batches were yielded, or the loop was left early.
    BEHIND = 2
    LEFT = 3


class TrainingLoop:
    """`outlast.Training` for a given session."""

    def __init__(self, session: TrainingSession, data: Any = None, **parts: Any) -> None:
        if data is not None:
            parts["data"] = data
        for name, part in parts.items():
            if not callable(getattr(part, "state_dict", None)) or not hasattr(part, "load_state_dict"):
                hint = "; use outlast.data.Loader, whose position is saved" if name == "data" else ""
                kind = type(part).__name__
                raise TypeError("%s is a %s, which has no state_dict() to save%s" % (name, kind, hint))
        self._parts = parts
        self._data = data
        #: Completed steps, in all attempts.
        self.steps = 0
        #: The current epoch, counted from 0, and the number of its batches that were yielded.
        self.epoch = 0
        self._batch = 0
        #: Values of the user's own (plain values and arrays), saved and restored with the rest.
        self.state: dict[str, Any] = {}
        #: The step that the run resumed from; None if it started from the beginning.
        self.resumed: int | None = None
        self._epochs: int | None = None
        self._place = _Place.ELSEWHERE
        #: True if a step was completed since the newest batch was yielded.
        self._is_step_done = False
        #: True if the script requested a save that has to wait for the end of the epoch.
        self._is_save_requested = False
        #: The random state to resume with, until it is restored.
        self._random: dict[str, Any] | None = None
        #: True until the loader was iterated over for the first time after loading.
        self._is_data_loaded = False
        #: The loaded state, until a batch is yielded, and whether it was saved after the last batch.
        self._loaded: dict[str, Any] | None = None
        self._is_at_end = False
        #: True while the last batch is repeated.
        self._is_repeating = False
        #: State of the loader and random state before the next batch was drawn, while they are to be saved.
        self._before_draw: tuple[Any, dict[str, Any]] | None = None
        self._hook = StepHook(session, "outlast.Training", "outlast.Training", self._capture)
        saved = self._hook.load()
        with session.ranks.failing_together():
            if saved is not None:
                self._load(saved)

    def _load(self, saved: dict[str, Any]) -> None:
        saved_parts = saved["parts"]
        if set(saved_parts) != set(self._parts):
            raise CheckpointError(
                "the checkpoint holds %s, but outlast.Training was given %s; pass the same parts as before"
                % (_join_names(saved_parts), _join_names(self._parts))
            )
        self.epoch, self._batch = saved["epoch"], saved["batch"]
        self._restore(saved)
        self.resumed = self.steps
        length = _length(self._data)
        self._is_at_end = saved.get("behind", length is not None and 0 < length <= self._batch)
        self._loaded = saved

    def _restore(self, saved: dict[str, Any]) -> None:
        for name, part in self._parts.items():
            # Loaded arrays are mapped from the checkpoint file. A model copies them; other parts may not.
            part.load_state_dict(copy.deepcopy(saved["parts"][name]))
        self.steps = saved["steps"]
        self.state = copy.deepcopy(saved["state"])
        self._random = copy.deepcopy(saved["random"])
        self._is_data_loaded = self._data is not None

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the numbers of the remaining epochs, starting with the interrupted one."""
        self._epochs = count
        self._restore_random(again=self._batch > 0)
        try:
            while self.epoch < count:
                yield self.epoch
                self._complete_epoch(count)
        except GeneratorExit:
            if self._is_save_requested:  # the script has left the loop over epochs
                self._hook.save(self.steps, wait=True)
            raise

    def _complete_epoch(self, count: int) -> None:
        """Move on to the next epoch; save if due, exit if the job must end, unless it was the last epoch."""
        place, self._place = self._place, _Place.ELSEWHERE
        is_step_done, self._is_step_done = self._is_step_done, False
        is_requested, self._is_save_requested = self._is_save_requested, False
        self.epoch += 1
        self._batch = 0
        if place is _Place.LEFT and hasattr(self._data, "end_epoch"):
            self._data.end_epoch()
            place = _Place.BEHIND
        if self.epoch == count or place is not _Place.BEHIND:
            return
        if is_requested:
            self._hook.save(self.steps)
        if is_step_done:
            self._hook.save_or_leave(self.steps, *self._hook.stop_or_save())

    def batches(self) -> Iterator[Any]:
        """Yield the remaining batches of the current epoch.

        Raises TypeError if there is no data, and RuntimeError if the loader ends too early.
        """
        source = self._data
        if source is None:
            raise TypeError("there is no data to iterate over: pass it as outlast.Training(data=loader, …)")
        try:
            if not self._is_at_end:
                yield from self._remaining_batches(source)
            if self._is_at_end and self._loaded is not None:
                yield from self._repeat_last_batch(source, self._loaded)
        except GeneratorExit:
            self._place = _Place.LEFT
            raise
        self._place = _Place.BEHIND

    def _remaining_batches(self, source: Any) -> Iterator[Any]:
        batches, batch = self._begin_iteration(source)
        while batch is not _END:
            self._batch += 1
            self._loaded = None
            self._place, self._is_step_done = _Place.BODY, False
            yield batch
            batch = self._next_batch(source, batches)
        length = _length(source)
        if length is not None and self._batch < length:
            raise RuntimeError(
                "%s has yielded %d of its %d batches of epoch %d: its position was not restored as saved"
                % (type(source).__name__, self._batch, length, self.epoch)
            )
        self._is_at_end = self._loaded is not None and self._batch > 0

    def _begin_iteration(self, source: Any) -> tuple[Iterator[Any], Any]:
        """Return an iterator over the batches that are left, and the first of them or `_END`."""
        is_loaded, self._is_data_loaded = self._is_data_loaded, False
        random = randomness.capture() if is_loaded and self._batch == 0 else None
        batches = iter(source)
        # A loader may draw a seed when its iterator is created; the state to restore is the one after that.
        self._restore_random()
        batch = next(batches, _END)
        if batch is _END and random is not None:
            # Some loaders whose state was saved at the end of an epoch first yield the rest of it: nothing.
            randomness.restore(random)
            batches = iter(source)
            batch = next(batches, _END)
        return batches, batch

    def _next_batch(self, source: Any, batches: Iterator[Any]) -> Any:
        """Return the next batch or `_END`; before, save if due and exit if the job must end.

        After the last batch that waits for the end of the epoch.
        """
        length = _length(source)
        if not self._is_step_done or (length is not None and self._batch >= length):
            return next(batches, _END)
        stop, due = self._hook.stop_or_save()
        if length is not None or not (stop or due):
            self._hook.save_or_leave(self.steps, stop, due)
            return next(batches, _END)
        before = copy.deepcopy(source.state_dict()), randomness.capture()
        batch = next(batches, _END)
        if batch is not _END:
            self._before_draw = before
            self._hook.save_or_leave(self.steps, stop, due)
            self._before_draw = None
        return batch

    def _repeat_last_batch(self, source: Any, saved: dict[str, Any]) -> Iterator[Any]:
        """Yield one batch although none is left, and undo its step.

        The code behind the inner loop may need variables that the body assigns.
        """
        warn(
            "the checkpoint of step %d was saved after the last batch of epoch %d: "
            "one batch is repeated, without effect on the training" % (self.steps, self.epoch)
        )
        if hasattr(source, "step_back"):
            source.step_back()
        batch = next(iter(source), _END)
        if batch is _END:  # another loader: any batch will do
            batch = next(iter(source), _END)
        self._restore_random()
        self.steps = max(0, saved["steps"] - 1)
        self._is_repeating = True
        try:
            if batch is not _END:
                self._place = _Place.BODY
                yield batch
        finally:
            self._end_repetition()

    def _end_repetition(self) -> None:
        """Undo the step of the repeated batch; does nothing the second time."""
        if self._loaded is not None:
            self._restore(self._loaded)
            self._restore_random()
        self._loaded, self._is_at_end, self._is_repeating = None, False, False
        self._is_step_done = True

    def _restore_random(self, again: bool = False) -> None:
        """Restore the loaded random state; unless `again`, only once."""
        if self._random is not None:
            randomness.restore(self._random)
        if not again:
            self._random = None

    def step(self, **metrics: Any) -> None:
        """Complete a step and report it. `metrics` are numbers shown by `outlast status`.

        Once the body of the loop over `batches` is done: save if a save is due; save and exit if the job must
        end. In other loops, at once.
        """
        self._random = None
        if self._is_repeating:
            self._end_repetition()
            return
        self._loaded = None
        self.steps += 1
        length = _length(self._data)
        total = length * self._epochs if length is not None and self._epochs is not None else None
        self._hook.report(self.steps, total, metrics)
        if self._place in (_Place.BODY, _Place.BEHIND):
            self._is_step_done = True
        else:
            self._hook.save_or_leave(self.steps, *self._hook.stop_or_save())

    def save(self, wait: bool = False) -> None:
        """Save now, even if no save is due. Call it right after a step.

        From the last batch of an epoch on, the save waits for the end of the epoch, except in the last epoch.
        """
        length = _length(self._data)
        is_last_batch = self._place is _Place.BODY and length is not None and self._batch >= length
        is_last_epoch = self._epochs is None or self.epoch + 1 >= self._epochs
        if (is_last_batch or self._place is _Place.BEHIND) and not is_last_epoch:
            self._is_save_requested = True
        else:
            self._hook.save(self.steps, wait)

    def _capture(self) -> dict[str, Any]:
        parts = {name: part.state_dict() for name, part in self._parts.items()}
        random = randomness.capture()
        if self._before_draw is not None:
            parts["data"], random = self._before_draw
        state = {
            "parts": parts,
            "steps": self.steps,
            "epoch": self.epoch,
            "batch": self._batch,
            "state": self.state,
            "random": random,
        }
        if self._place is _Place.BEHIND:
            state["behind"] = True
        return state


def _length(data: Any) -> int | None:
    """Return the number of batches in an epoch; None if there is no data or it has no length."""
    try:
        return len(data)
    except TypeError:
        return None


def _join_names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"

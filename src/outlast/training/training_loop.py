"""The loop behind `outlast.Training`: the complete state for bit-exact resuming, its epochs and batches."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Iterable, Iterator

from outlast.training import randomness
from outlast.training.errors import CheckpointError
from outlast.training.step_hook import StepHook

if TYPE_CHECKING:
    from outlast.training.training_session import TrainingSession


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
        self._random: dict[str, Any] | None = None
        self._hook = StepHook(session, "outlast.Training", "outlast.Training", self._capture)
        saved = self._hook.load()
        with session.ranks.failing_together():
            if saved is not None:
                self._restore(saved)

    def _restore(self, saved: dict[str, Any]) -> None:
        saved_parts = saved["parts"]
        if set(saved_parts) != set(self._parts):
            raise CheckpointError(
                "the checkpoint holds %s, but outlast.Training was given %s; pass the same parts as before"
                % (_join_names(saved_parts), _join_names(self._parts))
            )
        for name, part in self._parts.items():
            # Loaded arrays are mapped from the checkpoint file. A model copies them; other parts may not.
            part.load_state_dict(copy.deepcopy(saved_parts[name]))
        self.steps, self.epoch, self._batch = saved["steps"], saved["epoch"], saved["batch"]
        self.state = copy.deepcopy(saved["state"])
        self.resumed = self.steps
        self._random = copy.deepcopy(saved["random"])

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the numbers of the remaining epochs, starting with the interrupted one."""
        self._epochs = count
        self._restore_random()
        while self.epoch < count:
            yield self.epoch
            self.epoch += 1
            self._batch = 0

    def batches(self) -> Iterator[Any]:
        """Yield the remaining batches of the current epoch.

        Raises TypeError if there is no data, and RuntimeError if the loader ends too early.
        """
        source = self._data
        if source is None:
            raise TypeError("there is no data to iterate over: pass it as outlast.Training(data=loader, …)")
        batches = iter(source)
        # A loader may draw a seed when its iterator is created; the state to restore is the one after that.
        self._restore_random()
        self._random = None
        for batch in batches:
            self._batch += 1
            yield batch
        length = _length(source)
        if length is not None and self._batch < length:
            raise RuntimeError(
                "%s has yielded %d of its %d batches of epoch %d: its position was not restored as saved"
                % (type(source).__name__, self._batch, length, self.epoch)
            )

    def _restore_random(self) -> None:
        if self._random is not None:
            randomness.restore(self._random)

    def step(self, **metrics: Any) -> None:
        """Report that a step is complete; save if a save is due; save and exit if the job must end.

        `metrics` are numbers shown by `outlast status`.
        """
        self._random = None
        self.steps += 1
        length = None if self._data is None else _length(self._data)
        total = length * self._epochs if length is not None and self._epochs is not None else None
        self._hook.after_step(self.steps, total, metrics)

    def save(self, wait: bool = False) -> None:
        """Save now, even if no save is due. Call it right after a step."""
        self._hook.save(self.steps, wait)

    def _capture(self) -> dict[str, Any]:
        return {
            "parts": {name: part.state_dict() for name, part in self._parts.items()},
            "steps": self.steps,
            "epoch": self.epoch,
            "batch": self._batch,
            "state": self.state,
            "random": randomness.capture(),
        }


def _length(data: Any) -> int | None:
    try:
        return len(data)
    except TypeError:
        return None


def _join_names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"

"""A whole training: everything that a bit-exact continuation needs, and the two loops around it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Iterable, Iterator

from outlast.training import randomness
from outlast.training.errors import CheckpointError
from outlast.training.step_hook import StepHook

if TYPE_CHECKING:
    from outlast.training.training_session import TrainingSession


class TrainingLoop:
    """What `outlast.Training` is, for one session."""

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
        #: Steps that are done, in all attempts.
        self.steps = 0
        #: The epoch that is under way, counted from 0, and how many batches of it have been given out.
        self.epoch = 0
        self._batch = 0
        #: Small things of the user's own: plain values and arrays, saved and restored with the rest.
        self.state: dict[str, Any] = {}
        #: The step that it went on from; None: it began afresh.
        self.resumed: int | None = None
        self._epochs: int | None = None
        self._random: dict[str, Any] | None = None
        self._between = StepHook(session, "outlast.Training", "outlast.Training", self._whole)
        saved = self._between.load()
        if saved is not None:
            self._restore(saved)

    def _restore(self, saved: dict[str, Any]) -> None:
        theirs = saved["parts"]
        if set(theirs) != set(self._parts):
            raise CheckpointError(
                "the checkpoint holds %s, and this training consists of %s; give outlast.Training the same "
                "parts as before" % (_listed(theirs), _listed(self._parts))
            )
        for name, part in self._parts.items():
            # What is loaded lies in the checkpoint's file. A model copies it; others would keep it.
            part.load_state_dict(copy.deepcopy(theirs[name]))
        self.steps, self.epoch, self._batch = saved["steps"], saved["epoch"], saved["batch"]
        self.state = copy.deepcopy(saved["state"])
        self.resumed = self.steps
        self._random = copy.deepcopy(saved["random"])

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of the epochs that are left, beginning with the one that was interrupted."""
        self._epochs = count
        self._restore_random()
        while self.epoch < count:
            yield self.epoch
            self.epoch += 1
            self._batch = 0

    def batches(self) -> Iterator[Any]:
        """Those of this epoch that are left."""
        source = self._data
        if source is None:
            raise TypeError("there is no data to give out: outlast.Training(data=loader, …)")
        batches = iter(source)
        # A loader may draw a seed when it is begun: only what comes after that is as it was.
        self._restore_random()
        self._random = None
        for batch in batches:
            self._batch += 1
            yield batch
        length = _length(source)
        if length is not None and self._batch < length:
            raise RuntimeError(
                "%s has given out %d of its %d batches of epoch %d: its position was not restored as saved"
                % (type(source).__name__, self._batch, length, self.epoch)
            )

    def _restore_random(self) -> None:
        if self._random is not None:
            randomness.restore(self._random)

    def step(self, **metrics: Any) -> None:
        """One step is done: tell of it, save if it is time to, and save and leave if it must end here.

        Metrics are whatever numbers are to be seen in `outlast status`.
        """
        self._random = None
        self.steps += 1
        length = None if self._data is None else _length(self._data)
        total = length * self._epochs if length is not None and self._epochs is not None else None
        self._between.between(self.steps, total, metrics)

    def save(self, wait: bool = False) -> None:
        """Save now, whatever the rhythm says; call it where a step has just ended."""
        self._between.save(self.steps, wait)

    def _whole(self) -> dict[str, Any]:
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


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"

"""What happens between two steps of a training: tell, save if it is time to, and leave if it must end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Mapping

from outlast.training.errors import CheckpointError, SaveFailed

if TYPE_CHECKING:
    from outlast.training.training_session import TrainingSession

#: So many saves in a row may fail before the training hears of it: file systems have bad minutes.
_FAILURES = 3
#: Of the states of all kinds.
_FORMAT = 1


class StepHook:
    """Of one kind of training, whose states bear its mark.

    `take` gives the whole state of the training as it is between two steps.
    """

    def __init__(
        self, session: TrainingSession, mark: str, whose: str, take: Callable[[], dict[str, Any]]
    ) -> None:
        self._session = session
        self._mark, self._whose = mark, whose
        self._take = take
        self._failures = 0
        #: Whether one of its states has been loaded or taken, which shows how large they are.
        self._seen = False

    def load(self) -> dict[str, Any] | None:
        """What such a training has saved. Raises CheckpointError if it was something else that has."""
        saved = self._session.load()
        self._seen = saved is not None
        if saved is None or (isinstance(saved, dict) and saved.get(self._mark) == _FORMAT):
            return saved
        raise CheckpointError(
            "the newest checkpoint was not saved by %s; load it with what has saved it, or begin in another "
            "directory" % self._whose
        )

    def between(self, step: int, total: int | None, metrics: Mapping[str, Any]) -> None:
        """Of the step that is done just now."""
        self._session.progress(step, total, metrics)
        stop, due = self._session.stop_or_save()
        if stop:
            self.save(step, wait=True)
            self._session.leave()
        elif due:
            self.save(step)
        elif step and not self._seen:
            # Now all of the state is there, also what an optimizer makes in its first step.
            self._session.expect(self._marked())

    def save(self, step: int, wait: bool = False) -> None:
        try:
            self._session.save(self._marked(), step, wait)
            self._failures = 0
        except SaveFailed:
            # What failed, the one before or this one, has been said; once more, with the state of now.
            self._failures += 1
            if self._failures >= _FAILURES:
                raise
            self._session.save(self._marked(), step, wait)

    def _marked(self) -> dict[str, Any]:
        self._seen = True
        return {self._mark: _FORMAT, **self._take()}

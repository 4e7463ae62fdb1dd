"""The hook after each training step: reports progress, saves if due, and exits if the job must end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Mapping

from outlast.training.errors import CheckpointError, SaveFailed

if TYPE_CHECKING:
    from outlast.training.training_session import TrainingSession

#: Saves in a row that may fail before the training script gets an exception: file systems have bad minutes.
_MAX_FAILURES = 3
#: Version of the saved states.
_FORMAT = 1


class StepHook:
    """The step hook of one training loop or framework.

    `capture` returns the complete state between two steps. Saved states have the key `format_key`; `saver`
    names the loop or framework in messages.
    """

    def __init__(
        self, session: TrainingSession, format_key: str, saver: str, capture: Callable[[], dict[str, Any]]
    ) -> None:
        self._session = session
        self._format_key, self._saver = format_key, saver
        self._capture = capture
        self._failures = 0
        #: True once a state was loaded or captured, so its size is known.
        self._is_size_known = False

    def load(self) -> dict[str, Any] | None:
        """Return the newest saved state, or None. Raises CheckpointError if something else saved it."""
        saved = self._session.load()
        self._is_size_known = saved is not None
        with self._session.ranks.failing_together():
            if saved is not None:
                self._check(saved)
        return saved  # type: ignore[no-any-return]

    def _check(self, saved: Any) -> None:
        """Raise CheckpointError if a state was saved by something else, or by another version."""
        number = saved.get(self._format_key) if isinstance(saved, dict) else None
        if number == _FORMAT:
            return
        if type(number) is int and number > _FORMAT:
            raise CheckpointError(
                "the newest checkpoint was saved by %s of a newer version of Outlast (state %d; this version "
                "reads up to %d): upgrade Outlast" % (self._saver, number, _FORMAT)
            )
        raise CheckpointError(
            "the newest checkpoint was not saved by %s; load it with the code that saved it, or start in "
            "another checkpoint directory" % self._saver
        )

    def after_step(self, step: int, total: int | None, metrics: Mapping[str, Any]) -> None:
        """Report progress, save if due, exit if the job must end."""
        self.report(step, total, metrics)
        self.save_or_leave(step, *self.stop_or_save())

    def report(self, step: int, total: int | None, metrics: Mapping[str, Any]) -> None:
        """Report progress only."""
        self._session.progress(step, total, metrics)

    def stop_or_save(self) -> tuple[bool, bool]:
        """Return whether the job must end and whether a save is due; call it once per step."""
        return self._session.stop_or_save()

    def save_or_leave(self, step: int, stop: bool, due: bool) -> None:
        """Save if `due`; save and exit if `stop`."""
        if stop:
            self.save(step, wait=True)
            self._session.leave()
        elif due:
            self.save(step)
        elif step and not self._is_size_known:
            # The state is complete now: optimizers create theirs in the first step.
            self._session.preallocate_for(self._capture_with_key())

    def save(self, step: int, wait: bool = False) -> None:
        """Save the current state, once more if a save failed.

        Raises SaveFailed if the retry fails, too, or after three failures in a row.
        """
        try:
            self._session.save(self._capture_with_key(), step, wait)
            self._failures = 0
        except SaveFailed:
            # The failure, of this save or the previous one, was already reported. Retry with the current
            # state.
            self._failures += 1
            if self._failures >= _MAX_FAILURES:
                raise
            self._session.save(self._capture_with_key(), step, wait)

    def _capture_with_key(self) -> dict[str, Any]:
        self._is_size_known = True
        return {self._format_key: _FORMAT, **self._capture()}

"""What every adapter does between two steps of a training."""

from __future__ import annotations

from typing import Any, Callable, Mapping, SupportsIndex

import outlast

#: So many saves in a row may fail before the training hears of it: file systems have bad minutes.
_FAILURES = 3


class Steps:
    """`take` gives the whole state of the training as it is between two steps."""

    def __init__(self, take: Callable[[], Any]) -> None:
        self._take = take
        self._failures = 0

    def between(self, step: int, total: SupportsIndex | None, metrics: Mapping[str, Any]) -> None:
        """Tell of the step that is done, save if it is time to, and save and leave if it must end here."""
        outlast.progress(step, total, **{k: v for k, v in metrics.items() if k not in ("step", "total")})
        if outlast.should_stop():
            self._save(step, wait=True)
            outlast.leave()
        elif outlast.should_save():
            self._save(step)

    def _save(self, step: int, wait: bool = False) -> None:
        state = self._take()
        failures = self._failures
        while True:
            try:
                outlast.save(state, step, wait)
            except outlast.SaveFailed:
                # It was the save before, or with `wait` this one; what went wrong has been printed.
                self._failures += 1
                if self._failures >= _FAILURES:
                    raise
            else:
                if self._failures == failures:
                    self._failures = 0
                return

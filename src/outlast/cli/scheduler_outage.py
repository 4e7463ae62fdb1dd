"""The messages of `up` while a scheduler does not respond: the error, and since when."""

from __future__ import annotations

from outlast.cli.common import show_time
from outlast.units import show_duration

#: Seconds until the message is repeated; the pause doubles with each repetition up to the longest.
FIRST_REPEAT = 60.0
LONGEST_REPEAT = 1800.0


class OutageMessages:
    """Remembers since when the scheduler has not responded, and when the last message was printed."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._last_message = 0.0
        self._pause = FIRST_REPEAT

    def after_poll(self, error: str, now: float) -> str:
        """Return the message to print after a poll, or an empty string. `error` is empty if it succeeded."""
        if not error:
            since, self._since = self._since, None
            return "responding again, after %s" % show_duration(now - since) if since is not None else ""
        if self._since is None:
            self._since, self._last_message, self._pause = now, now, FIRST_REPEAT
            return "not responding: %s. Nothing is lost: jobs continue, and Outlast keeps trying" % error
        # A clock that was set back must not suppress the message.
        if 0 <= now - self._last_message < self._pause:
            return ""
        self._last_message, self._pause = now, min(2 * self._pause, LONGEST_REPEAT)
        return "not responding since %s (%s): %s. Nothing is lost, and Outlast keeps trying" % (
            show_time(self._since),
            show_duration(max(0.0, now - self._since)),
            error,
        )

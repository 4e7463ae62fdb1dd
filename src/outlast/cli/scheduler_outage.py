"""What `up` says while a scheduler does not answer: what, since when, and that nothing is lost."""

from __future__ import annotations

from outlast.cli.common import clock
from outlast.units import show_duration

#: It is said again after this long, then after twice as long, and so on, in seconds.
FIRST_AGAIN = 60.0
LONGEST_AGAIN = 1800.0


class Silence:
    """Remembers since when there is trouble, and when that was last said."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._said = 0.0
        self._pause = FIRST_AGAIN

    def after(self, trouble: str, now: float) -> str:
        """What to say after a look that met `trouble`, or none; empty: nothing new."""
        if not trouble:
            since, self._since = self._since, None
            return "answers again, after %s" % show_duration(now - since) if since is not None else ""
        if self._since is None:
            self._since, self._said, self._pause = now, now, FIRST_AGAIN
            return "does not answer: %s. Nothing is lost: jobs go on, and Outlast keeps asking" % trouble
        # A clock that was set back must not silence this.
        if 0 <= now - self._said < self._pause:
            return ""
        self._said, self._pause = now, min(2 * self._pause, LONGEST_AGAIN)
        return "has not answered since %s (%s): %s. Nothing is lost, and Outlast keeps asking" % (
            clock(self._since),
            show_duration(max(0.0, now - self._since)),
            trouble,
        )

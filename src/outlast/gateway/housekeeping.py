"""Housekeeping: messages and answers that nobody needs any more are removed. Requests and results stay."""

from __future__ import annotations

import logging

from outlast.filesystem import describe_error
from outlast.gateway.gateway_directory import GatewayDirectory
from outlast.gateway.record.record import Record

_log = logging.getLogger(__name__)

#: Seconds between two rounds, and what one step of a round removes: the service does not wait for long.
INTERVAL = 3600.0
_MOST = 500


class Housekeeping:
    """Removes what is older than `keep` seconds, a part in each step."""

    def __init__(self, directory: GatewayDirectory, record: Record, keep: float) -> None:
        self._directory = directory
        self._record = record
        self._keep = keep
        self._due = 0.0

    def step(self, now: float) -> None:
        """Remove a part of what is old; when nothing is left, the next round is an hour later."""
        if now < self._due:
            return
        before = now - self._keep
        removed = self._record.forget_messages(before, _MOST)
        files = self._record.forget_bodies(before, _MOST)
        for name in files:
            try:
                (self._directory.answers / name).unlink(missing_ok=True)
            except OSError as error:
                _log.warning("an old answer cannot be removed: %s", describe_error(error))
        if not removed and not files:
            self._due = now + INTERVAL

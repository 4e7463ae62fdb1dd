"""The most bytes of an answer by value: by the settings, by the broker's version, and as learnt."""

from __future__ import annotations

from outlast.gateway.answers.choose import most_by_value
from outlast.gateway.broker.link import BrokerLink
from outlast.gateway.record.record import Record

_KEY = "largest_answer"


class AnswerLimit:
    """The limit; `most` may be called by any thread, `lower` by the one that writes the record."""

    def __init__(self, setting: int, record: Record, link: BrokerLink) -> None:
        self._setting = setting
        self._record = record
        self._link = link
        known = record.about(_KEY)
        self._learnt = int(known) if known.isdecimal() else setting

    def most(self) -> int:
        """Return the bytes that an answer may have now."""
        return min(self._learnt, most_by_value(self._setting, self._link.health.message_limit))

    def lower(self, refused: int) -> None:
        """Record that the broker did not take an answer of so many bytes."""
        self._learnt = min(self._learnt, refused * 3 // 4)
        self._record.set_about(_KEY, str(self._learnt))

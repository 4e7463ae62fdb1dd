"""The messages of a record, as they were taken from the broker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from outlast.gateway.record.record_file import RecordFile
from outlast.gateway.record.rows import (
    MESSAGE_COLUMNS,
    RecordedMessage,
    RecordedRequest,
    dump_properties,
)
from outlast.gateway.requests import Delivery

#: The most bytes of a body that are recorded: no larger one is parsed.
LARGEST_BODY = 256 * 1024
#: The bytes that are kept of a larger one.
_BEGINNING = 4096
#: Seconds within which a message that the broker delivers again counts as the same message, not as another
#: one with the same content.
SAME_DELIVERY = 900.0


class Messages(RecordFile):
    """The messages. Every method that writes is one transaction, or joins that of its caller."""

    def add_messages(self, deliveries: Sequence[tuple[Delivery, str]], now: float) -> list[int]:
        """Record messages with their digests, durably, in one transaction; return their numbers."""
        numbers = []
        with self.transaction():
            for delivery, digest in deliveries:
                body = delivery.body
                if len(body) > LARGEST_BODY:
                    body = body[:_BEGINNING]
                cursor = self.query(
                    "INSERT INTO messages (at, queue, digest, size, body, properties, redelivered, acked, "
                    "state, reason, request) VALUES (?, ?, ?, ?, ?, ?, ?, 0, 'recorded', '', NULL)",
                    *(now, delivery.queue, digest, max(delivery.size, len(delivery.body)), body),
                    *(dump_properties(delivery.properties), int(delivery.redelivered)),
                )
                numbers.append(int(cursor.lastrowid or 0))
        return numbers

    def new_messages(self, most: int) -> list[RecordedMessage]:
        """Return the messages that were not interpreted yet, oldest first."""
        rows = self.query(
            "SELECT %s FROM messages WHERE state = 'recorded' ORDER BY number LIMIT ?" % MESSAGE_COLUMNS, most
        )
        return [RecordedMessage.from_row(row) for row in rows]

    def message(self, number: int) -> RecordedMessage | None:
        """Return a message; None if there is none of this number."""
        row = self.query("SELECT %s FROM messages WHERE number=?" % MESSAGE_COLUMNS, number).fetchone()
        return RecordedMessage.from_row(row) if row else None

    def quarantined(self, most: int = 1000) -> list[RecordedMessage]:
        """Return the messages that were put aside, oldest first."""
        rows = self.query(
            "SELECT %s FROM messages WHERE state = 'quarantined' ORDER BY number LIMIT ?" % MESSAGE_COLUMNS,
            most,
        )
        return [RecordedMessage.from_row(row) for row in rows]

    def count_quarantined(self) -> int:
        """Return how many messages were put aside."""
        row = self.query("SELECT count(*) FROM messages WHERE state = 'quarantined'").fetchone()
        return int(row[0])

    def messages_of(self, request: RecordedRequest, most: int = 1000) -> list[RecordedMessage]:
        """Return the messages with which a request was sent, oldest first; several if it was repeated."""
        rows = self.query(
            "SELECT %s FROM messages WHERE digest=? AND request=? ORDER BY number LIMIT ?" % MESSAGE_COLUMNS,
            *(request.digest, request.number, most),
        )
        return [RecordedMessage.from_row(row) for row in rows.fetchall()]

    def set_message(self, number: int, state: str, reason: str = "", request: int | None = None) -> None:
        """Record what a message was: request, duplicate, control, refused, quarantined or discarded."""
        with self.transaction():
            self.query(
                "UPDATE messages SET state=?, reason=?, request=? WHERE number=?",
                *(state, reason[:2000], request, number),
            )

    def mark_acked(self, numbers: Iterable[int]) -> None:
        """Record that messages were acknowledged; the broker may still deliver them again."""
        with self.transaction():
            for number in numbers:
                self.query("UPDATE messages SET acked=1 WHERE number=?", number)

    def is_same_delivery(self, message: RecordedMessage) -> bool:
        """Return True if the broker delivered a message again that was recorded before.

        Such a message was not acknowledged, or the connection ended before the broker knew. Another message
        with the same content is a question of its own, which is answered again.
        """
        if not message.delivery.redelivered:
            return False
        row = self.query(
            "SELECT 1 FROM messages WHERE digest=? AND number<? AND queue=? AND properties=? "
            "AND (acked=0 OR at > ?) LIMIT 1",
            *(message.digest, message.number, message.delivery.queue),
            *(dump_properties(message.delivery.properties), message.at - SAME_DELIVERY),
        ).fetchone()
        return row is not None

    def forget_messages(self, before: float, most: int) -> int:
        """Remove messages that were interpreted before a time, and return how many; requests stay known."""
        with self.transaction():
            cursor = self.query(
                "DELETE FROM messages WHERE number IN (SELECT number FROM messages WHERE at < ? "
                "AND state NOT IN ('recorded', 'quarantined') ORDER BY number LIMIT ?)",
                *(before, most),
            )
        return int(cursor.rowcount)

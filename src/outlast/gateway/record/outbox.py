"""The outbox: answers that are kept until the broker has confirmed them and has not returned them."""

from __future__ import annotations

from outlast.gateway.record.record_file import RecordFile
from outlast.gateway.record.rows import ANSWER_COLUMNS, RecordedAnswer
from outlast.gateway.requests import PublishResult

#: A larger body is kept in a file beside the record.
LARGEST_IN_RECORD = 256 * 1024
#: Seconds until an answer that was not taken is sent again: doubled each time, up to the longest.
FIRST_PAUSE = 2.0
LONGEST_PAUSE = 600.0


class Outbox(RecordFile):
    """The answers of a record."""

    def add_answer(
        self,
        *,
        routing_key: str,
        correlation: bytes | None,
        kind: str,
        now: float,
        body: bytes | None = None,
        file: str | None = None,
        size: int = 0,
        request: int | None = None,
        message: int | None = None,
        content_type: str = "application/json",
        expiration: int | None = None,
        exchange: str = "",
    ) -> int:
        """Put an answer into the outbox and return its number. Its body is here, or in a durable file."""
        with self.transaction():
            cursor = self.query(
                "INSERT INTO outbox (request, message, exchange, routing_key, correlation, kind, "
                "content_type, expiration, body, file, size, state, made, due, tries, reason) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'waiting', ?, ?, 0, '')",
                *(request, message, exchange, routing_key, correlation, kind, content_type, expiration),
                *(body, file, size if body is None else len(body), now, now),
            )
        return int(cursor.lastrowid or 0)

    def due_answer_numbers(self, now: float, most: int) -> list[int]:
        """Return the answers that are to be sent now, those that wait longest first.

        One that is due later than its pause after now was put off by a clock that was ahead: it is due.
        """
        rows = self.query(
            "SELECT number FROM outbox WHERE state='waiting' AND (due <= ?1 OR due > ?1 + "
            "CASE WHEN tries = 0 THEN 0 ELSE min(?2, ?3 * (1 << min(tries - 1, 20))) END) "
            "ORDER BY due, number LIMIT ?4",
            *(now, LONGEST_PAUSE, FIRST_PAUSE, most),
        )
        return [number for (number,) in rows.fetchall()]

    def answer(self, number: int) -> RecordedAnswer | None:
        """Return an answer; None if there is none of this number."""
        row = self.query("SELECT %s FROM outbox WHERE number=?" % ANSWER_COLUMNS, number).fetchone()
        return RecordedAnswer.from_row(row) if row else None

    def answers_of(self, request: int) -> list[RecordedAnswer]:
        """Return the answers to a request, oldest first."""
        rows = self.query(
            "SELECT %s FROM outbox WHERE request=? ORDER BY number" % ANSWER_COLUMNS, request
        ).fetchall()
        return [RecordedAnswer.from_row(row) for row in rows]

    def waiting_answers(self) -> tuple[int, float | None]:
        """Return how many answers are not confirmed, and when the oldest was made."""
        number, oldest = self.query("SELECT count(*), min(made) FROM outbox WHERE state='waiting'").fetchone()
        return int(number), oldest

    def oldest_waiting_answer(self) -> RecordedAnswer | None:
        """Return the answer that has waited longest for a confirm; None if none waits."""
        row = self.query(
            "SELECT %s FROM outbox WHERE state='waiting' ORDER BY made, number LIMIT 1" % ANSWER_COLUMNS
        ).fetchone()
        return RecordedAnswer.from_row(row) if row else None

    def confirm(self, number: int, now: float) -> None:
        """Record that the broker has an answer."""
        with self.transaction():
            self.query(
                "UPDATE outbox SET state='confirmed', confirmed=?, reason='', tries=tries+1 WHERE number=?",
                *(now, number),
            )

    def put_off(self, number: int, now: float, result: PublishResult, reason: str) -> float:
        """Record that an answer was not taken; return when it is sent again."""
        with self.transaction():
            found = self.answer(number)
            tries = found.tries if found else 0
            due = now + min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(tries, 20))
            self.query(
                "UPDATE outbox SET tries=tries+1, due=?, reason=? WHERE number=? AND state='waiting'",
                *(due, "%s: %s" % (result.value, reason[:500]), number),
            )
        return due

    def retire(self, number: int, state: str, reason: str) -> None:
        """Record that an answer is not sent any more: dead (given up) or withdrawn (another replaces it)."""
        with self.transaction():
            self.query("UPDATE outbox SET state=?, reason=? WHERE number=?", *(state, reason[:500], number))

    def withdraw_answers(self, request: int, reason: str) -> None:
        """Retire all answers to a request: another one will replace them."""
        with self.transaction():
            self.query(
                "UPDATE outbox SET state='withdrawn', reason=? WHERE request=? AND state != 'withdrawn'",
                *(reason[:500], request),
            )

    def send_again(self, number: int, now: float) -> None:
        """Make an answer due now, whatever became of it before; it is tried for as long as a new one."""
        with self.transaction():
            self.query(
                "UPDATE outbox SET state='waiting', made=?, due=?, tries=0, confirmed=NULL WHERE number=?",
                *(now, now, number),
            )

    def forget_bodies(self, before: float, most: int) -> list[str]:
        """Drop the bodies of answers that were settled before a time; return the names of their files."""
        with self.transaction():
            rows = self.query(
                "SELECT number, file FROM outbox WHERE made < ? AND state != 'waiting' "
                "AND (body IS NOT NULL OR file IS NOT NULL) ORDER BY number LIMIT ?",
                *(before, most),
            ).fetchall()
            for number, _ in rows:
                self.query("UPDATE outbox SET body=NULL, file=NULL WHERE number=?", number)
        return [file for _, file in rows if file]

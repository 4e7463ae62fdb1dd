"""The record: requests and what became of them, with the messages and answers that belong to them.

Every method that writes is one transaction, or joins that of its caller. A request goes through its states in
one direction (`STEPS`); what is impossible raises ImpossibleRequestStep and writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from outlast.gateway.record.message_record import Messages
from outlast.gateway.record.outbox import Outbox
from outlast.gateway.record.rows import (
    REQUEST_COLUMNS,
    RecordedRequest,
    dump_body,
    dump_failure,
)
from outlast.gateway.requests import RequestFailure, RequestState, TrainingRequest, run_name

_S = RequestState
#: The states that may follow a state.
STEPS: Mapping[RequestState, frozenset[RequestState]] = {
    _S.RECEIVED: frozenset({_S.REFUSED, _S.ACCEPTED}),
    _S.ACCEPTED: frozenset({_S.RUNNING, _S.ENDED}),
    _S.RUNNING: frozenset({_S.RUNNING, _S.ENDED}),
    _S.REFUSED: frozenset({_S.ANSWERED, _S.UNDELIVERED}),
    _S.ENDED: frozenset({_S.ANSWERED, _S.UNDELIVERED}),
    # The engineer retries: the run, or the delivery of its answer.
    _S.ANSWERED: frozenset({_S.ACCEPTED}),
    _S.UNDELIVERED: frozenset({_S.ACCEPTED, _S.ANSWERED, _S.ENDED, _S.REFUSED}),
}


class ImpossibleRequestStep(Exception):
    """A change of state that cannot be: a bug, or two gateways on one record."""


@dataclass(frozen=True)
class Origin:
    """Where a request came from, as it is recorded with it."""

    id: bytes
    digest: str
    queue: str
    dialect: str
    user: str
    reply_to: str
    correlation: bytes | None


class Record(Messages, Outbox):
    """The record of one gateway."""

    def add_request(
        self,
        origin: Origin,
        body: TrainingRequest,
        now: float,
        *,
        deadline: float | None = None,
        failure: RequestFailure | None = None,
        run_of: str = "",
    ) -> RecordedRequest:
        """Record a request: refused with `failure`, else accepted as a run named `run_of` and its number."""
        state = RequestState.REFUSED if failure else RequestState.ACCEPTED
        with self.transaction():
            cursor = self.query(
                "INSERT INTO requests (id, digest, queue, dialect, template, user, reply_to, correlation, "
                "at, deadline, state, body, run, cancel, failure, note) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '', '', ?, '')",
                *(origin.id, origin.digest, origin.queue, origin.dialect, body.template, origin.user),
                *(origin.reply_to, origin.correlation, now, deadline, state.value, dump_body(body)),
                dump_failure(failure),
            )
            number = int(cursor.lastrowid or 0)
            if run_of:
                self.query("UPDATE requests SET run=? WHERE number=?", run_name(run_of, number), number)
        found = self.request(number)
        assert found is not None
        return found

    def next_number(self) -> int:
        """Return the number that the next request gets."""
        return int(self.query("SELECT coalesce(max(number), 0) + 1 FROM requests").fetchone()[0])

    def request(self, number: int) -> RecordedRequest | None:
        """Return the request of this number; None if there is none."""
        return self._one_request("number=?", number)

    def request_by_id(self, id: bytes) -> RecordedRequest | None:
        """Return the request with this id; None if there is none."""
        return self._one_request("id=?", id)

    def request_by_run(self, run: str) -> RecordedRequest | None:
        """Return the request of this run; None if there is none."""
        return self._one_request("run=?", run)

    def _one_request(self, where: str, value: object) -> RecordedRequest | None:
        row = self.query("SELECT %s FROM requests WHERE %s" % (REQUEST_COLUMNS, where), value).fetchone()
        return RecordedRequest.from_row(row) if row else None

    def find_requests(self, part: bytes, most: int) -> list[RecordedRequest]:
        """Return the newest requests whose id or run contains `part`."""
        rows = self.query(
            "SELECT %s FROM requests WHERE instr(id, ?) OR instr(CAST(run AS BLOB), ?) "
            "ORDER BY number DESC LIMIT ?" % REQUEST_COLUMNS,
            *(part, part, most),
        )
        return [RecordedRequest.from_row(row) for row in rows.fetchall()]

    def requests(
        self,
        states: Sequence[RequestState] = (),
        *,
        template: str = "",
        user: str = "",
        most: int = -1,
        newest_first: bool = False,
    ) -> Iterator[RecordedRequest]:
        """Yield requests in these states (none: all), of a template and a user if given."""
        where, arguments = ["1"], list[object]()
        if states:
            where.append("state IN (%s)" % ",".join("?" * len(states)))
            arguments += [state.value for state in states]
        for column, value in (("template", template), ("user", user)):
            if value:
                where.append("%s=?" % column)
                arguments.append(value)
        order = "DESC" if newest_first else "ASC"
        rows = self.query(
            "SELECT %s FROM requests WHERE %s ORDER BY number %s LIMIT ?"
            % (REQUEST_COLUMNS, " AND ".join(where), order),
            *arguments,
            most,
        )
        for row in rows:
            yield RecordedRequest.from_row(row)

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the number of requests by template and state."""
        found: dict[str, dict[str, int]] = {}
        for template, state, number in self.query(
            "SELECT template, state, count(*) FROM requests GROUP BY template, state"
        ):
            found.setdefault(template, {})[state] = number
        return found

    def open_requests(self, template: str, user: str | None = None) -> int:
        """Return how many requests of a template (and a user) were accepted and have not ended."""
        where, arguments = "", list[object]()
        if user is not None:
            where, arguments = " AND user=?", [user]
        # Without the hint it would count among all requests that the user ever sent.
        row = self.query(
            "SELECT count(*) FROM requests INDEXED BY open_requests "
            "WHERE template=? AND state IN ('accepted', 'running')" + where,
            template,
            *arguments,
        ).fetchone()
        return int(row[0])

    def accepted_since(self, template: str, user: str, since: float) -> int:
        """Return how many requests of a user were accepted since a time."""
        row = self.query(
            "SELECT count(*) FROM requests WHERE template=? AND user=? AND at>=? AND run != ''",
            *(template, user, since),
        ).fetchone()
        return int(row[0])

    def choose_next(self, template: str, running: int) -> list[RecordedRequest]:
        """Return the accepted requests to submit next, so that at most `running` are under way.

        The user with the fewest runs under way goes first, of several the one who waited longest since the
        last turn; the requests of one user in their order.
        """
        under_way = dict(
            self.query(
                "SELECT user, count(*) FROM requests WHERE template=? AND state IN ('accepted', 'running') "
                "AND submitted IS NOT NULL GROUP BY user",
                template,
            ).fetchall()
        )
        room = running - sum(under_way.values())
        if room <= 0:
            return []
        waiting: dict[str, list[int]] = {}
        users = [
            user
            for (user,) in self.query(
                "SELECT DISTINCT user FROM requests WHERE template=? AND state='accepted' "
                "AND submitted IS NULL AND cancel=''",
                template,
            )
        ]
        for user in users:
            rows = self.query(
                "SELECT number FROM requests WHERE template=? AND user=? AND state='accepted' "
                "AND submitted IS NULL AND cancel='' ORDER BY number LIMIT ?",
                *(template, user, room),
            )
            waiting[user] = [number for (number,) in rows]
        turns = {user: self._last_turn(template, user) for user in waiting}
        chosen: list[int] = []
        while room > len(chosen) and waiting:
            user = min(waiting, key=lambda one: (under_way.get(one, 0), turns[one], waiting[one][0]))
            chosen.append(waiting[user].pop(0))
            under_way[user] = under_way.get(user, 0) + 1
            turns[user] = inf
            if not waiting[user]:
                del waiting[user]
        return [found for found in map(self.request, chosen) if found is not None]

    def _last_turn(self, template: str, user: str) -> float:
        """Return when a request of this user was submitted last; 0 if none was."""
        row = self.query(
            "SELECT coalesce(max(submitted), 0) FROM requests "
            "WHERE template=? AND user=? AND submitted IS NOT NULL",
            *(template, user),
        ).fetchone()
        return float(row[0])

    def to_cancel(self, now: float) -> list[RecordedRequest]:
        """Return the open requests that are to be cancelled, or whose deadline is over."""
        rows = self.query(
            "SELECT %s FROM requests WHERE state IN ('accepted', 'running') AND (cancel != '' OR "
            "(deadline IS NOT NULL AND deadline <= ?)) ORDER BY number" % REQUEST_COLUMNS,
            now,
        )
        return [RecordedRequest.from_row(row) for row in rows.fetchall()]

    def mark_submitted(self, number: int, now: float) -> None:
        """Record that the run of a request was handed to the controller."""
        self._update(number, submitted=now)

    def ask_cancel(self, number: int, code: str, note: str = "") -> bool:
        """Record that an open request is to be cancelled; return False if it is over."""
        with self.transaction():
            found = self.request(number)
            if found is None or found.state not in (RequestState.ACCEPTED, RequestState.RUNNING):
                return False
            if not found.cancel:
                self._update(number, cancel=code, note=note or found.note)
        return True

    def start(self, number: int, now: float) -> bool:
        """Record that the run of a request has started; return True the first time."""
        with self.transaction():
            found = self._step(number, RequestState.RUNNING)
            if found.started is None:
                self._update(number, started=now)
        return found.started is None

    def end(self, number: int, now: float, failure: RequestFailure | None) -> None:
        """Record the end of a request: with a failure, or with a result that is still to be collected."""
        with self.transaction():
            self._step(number, RequestState.ENDED)
            self._update(number, ended=now, failure=dump_failure(failure))

    def fail_ended(self, number: int, failure: RequestFailure) -> None:
        """Record that a request that has ended has no result after all."""
        with self.transaction():
            found = self.request(number)
            if found is None or found.state is not RequestState.ENDED:
                raise ImpossibleRequestStep("request %d has not ended" % number)
            self._update(number, failure=dump_failure(failure))

    def close_request(self, number: int, state: RequestState, now: float, note: str = "") -> None:
        """Record that a request was answered, or that its answer could not be delivered."""
        with self.transaction():
            found = self._step(number, state)
            self._update(number, answered=now, note=note or found.note)

    def reopen(self, number: int, state: RequestState, now: float, *, submitted: bool = True) -> None:
        """Record that the engineer retries a request that is over: its run, or the delivery of its answer.

        The earlier answers to a request that runs again are withdrawn, since it gets another. With
        `submitted` False, its run is still to be handed to the controller.
        """
        with self.transaction():
            self._step(number, state)
            if state is RequestState.ACCEPTED:
                self._update(
                    number,
                    submitted=now if submitted else None,
                    started=None,
                    ended=None,
                    answered=None,
                    cancel="",
                    failure=None,
                    note="",
                )
                self.withdraw_answers(number, "the request was run again")
            else:
                self._update(number, answered=None)

    def set_note(self, number: int, note: str) -> None:
        """Record a sentence for people, such as why a request waits."""
        self._update(number, note=note[:1000])

    def without_answer(self, most: int) -> list[RecordedRequest]:
        """Return the requests that have ended, or were refused, and have no answer in the outbox yet."""
        rows = self.query(
            "SELECT %s FROM requests WHERE state IN ('refused', 'ended') AND NOT EXISTS "
            "(SELECT 1 FROM outbox WHERE outbox.request = requests.number "
            "AND outbox.state IN ('waiting', 'confirmed', 'dead')) "
            "ORDER BY number LIMIT ?" % REQUEST_COLUMNS,
            most,
        )
        return [RecordedRequest.from_row(row) for row in rows.fetchall()]

    def _step(self, number: int, state: RequestState) -> RecordedRequest:
        found = self.request(number)
        if found is None or state not in STEPS.get(found.state, ()):
            before = found.state.value if found else "unknown"
            raise ImpossibleRequestStep("request %d: from %s to %s" % (number, before, state.value))
        self._update(number, state=state.value)
        return found

    def _update(self, number: int, **values: object) -> None:
        with self.transaction():
            self.query(
                "UPDATE requests SET %s WHERE number=?" % ", ".join("%s=?" % key for key in values),
                *values.values(),
                number,
            )

    # What was followed of the experiments' journals.

    def cursor(self, template: str) -> int:
        """Return the last entry of the journal of a template's experiment that was followed."""
        row = self.query("SELECT entry FROM cursors WHERE template=?", template).fetchone()
        return int(row[0]) if row else 0

    def set_cursor(self, template: str, entry: int) -> None:
        """Record up to which entry the journal was followed, in the transaction of what followed from it."""
        with self.transaction():
            self.query("INSERT OR REPLACE INTO cursors VALUES (?, ?)", template, entry)

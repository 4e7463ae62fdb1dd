"""The journal: all state of an experiment in one SQLite file inside it.

The table `entries` is append-only and authoritative. `runs` and `attempts` hold its fold, written in the same
transaction, so that showing ten thousand runs does not read a hundred thousand rows. Every write checks
that the lease is still held: a controller that was taken over can never write again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.domain.alike_failures import AlikeFailures
from outlast.domain.model import Attempt, EntryKind, JournalEntry, Run, RunState, Spec
from outlast.journal.codec import Parse, dump, read_attempt, read_run, read_spec
from outlast.journal.journal_file import LATEST, JournalFile
from outlast.journal.records import Records

#: Specs that are kept in memory: an experiment may have one for each of its runs.
_MOST_SPECS = 512
_OVER = tuple(state.value for state in RunState if state.over)


@dataclass(frozen=True)
class EntryRow:
    """An entry with its number in the journal."""

    number: int
    entry: JournalEntry


class Journal(JournalFile, Records):
    """The journal of one experiment, open for reading, or with `create` for writing under a lease.

    All methods raise JournalDamaged, JournalHeld or NotWritable instead of SQLite's errors.
    """

    def __init__(self, path: Path, *, create: bool = False) -> None:
        Records.__init__(self)
        self._loaded = False
        self._computed_known = False
        self._alike_known = False
        JournalFile.__init__(self, path, create=create)

    # Reading.

    def live(self) -> Mapping[str, Run]:
        if not self._loaded:
            marks = ",".join("?" * len(_OVER))
            with self._translate_errors():
                for (record,) in self._db.execute(
                    "SELECT record FROM runs WHERE state NOT IN (%s) ORDER BY position" % marks, _OVER
                ):
                    run = self._decode(read_run, record)
                    self._runs[run.name] = run
                for (record,) in self._db.execute("SELECT record FROM attempts WHERE state != 'ended'"):
                    attempt = self._decode(read_attempt, record)
                    self._attempts[attempt.token] = attempt
            self._loaded = True
        return self._runs

    def run(self, name: str) -> Run | None:
        known = super().run(name)
        if known is not None:
            return known
        with self._translate_errors():
            row = self._db.execute("SELECT record FROM runs WHERE name=?", (name,)).fetchone()
        return self._decode(read_run, row[0]) if row else None

    def runs(self) -> Iterator[Run]:
        """Yield all runs in the order of their submission."""
        with self._translate_errors():
            for (record,) in self._db.execute("SELECT record FROM runs ORDER BY position"):
                yield self._decode(read_run, record)

    def last_computed(self, spec: int) -> float:
        if not self._computed_known:
            # Needed only during outages of data sources; `append` keeps it up to date from then on.
            for run in self.runs():
                self._note_computed(run)
            self._computed_known = True
        return super().last_computed(spec)

    def alike_failures(self) -> AlikeFailures:
        if not self._alike_known:
            for run in self.failed_runs():
                self._note_failure(run)
            self._alike_known = True
        return super().alike_failures()

    def failed_runs(self) -> Iterator[Run]:
        """Yield the failed runs in the order of their submission."""
        failed = (RunState.FAILED.value,)
        with self._translate_errors():
            for (record,) in self._db.execute(
                "SELECT record FROM runs WHERE state=? ORDER BY position", failed
            ):
                yield self._decode(read_run, record)

    def most_relevant_runs(self, most: int) -> list[Run]:
        """Return up to `most` runs: failed ones first, then accepted, active, waiting and the rest."""
        first = ("failed", "accepted", "active", "waiting")
        order = "CASE state %s ELSE 9 END" % " ".join(
            "WHEN '%s' THEN %d" % (s, i) for i, s in enumerate(first)
        )
        with self._translate_errors():
            rows = self._db.execute("SELECT record FROM runs ORDER BY %s, position LIMIT ?" % order, (most,))
            return [self._decode(read_run, record) for (record,) in rows]

    def names(self) -> list[str]:
        """Return the names of all runs in the order of their submission."""
        with self._translate_errors():
            return [name for (name,) in self._db.execute("SELECT name FROM runs ORDER BY position")]

    def live_names(self) -> list[str]:
        """Return the names of the runs that are not over, in the order of their submission."""
        marks = ",".join("?" * len(_OVER))
        with self._translate_errors():
            rows = self._db.execute(
                "SELECT name FROM runs WHERE state NOT IN (%s) ORDER BY position" % marks, _OVER
            )
            return [name for (name,) in rows]

    def counts(self) -> Mapping[str, int]:
        """Return the number of runs by state."""
        with self._translate_errors():
            counts = dict(self._db.execute("SELECT state, count(*) FROM runs GROUP BY state").fetchall())
        return {self._decode(_read_state, state): number for state, number in counts.items()}

    def attempt(self, token: str) -> Attempt | None:
        known = super().attempt(token)
        if known is not None:
            return known
        with self._translate_errors():
            row = self._db.execute("SELECT record FROM attempts WHERE token=?", (token,)).fetchone()
        return self._decode(read_attempt, row[0]) if row else None

    def attempts(self, run: str | None = None) -> Iterator[Attempt]:
        """Yield the attempts of one run, or of all runs by name, in order."""
        where, arguments = ("WHERE run=?", (run,)) if run is not None else ("", ())
        with self._translate_errors():
            for (record,) in self._db.execute(
                "SELECT record FROM attempts %s ORDER BY run, number" % where, arguments
            ):
                yield self._decode(read_attempt, record)

    def entries(
        self, run: str | None = None, after: int = 0, kinds: Sequence[EntryKind] = ()
    ) -> Iterator[EntryRow]:
        """Yield the entries of one run, or of all, after the number `after`; `kinds`: only of these kinds."""
        where, arguments = "WHERE number > ?", [after, *([run] if run is not None else []), *kinds]
        if run is not None:
            where += " AND run=?"
        if kinds:
            where += " AND kind IN (%s)" % ",".join("?" * len(kinds))
        with self._translate_errors():
            for number, at, name, kind, token, data in self._db.execute(
                "SELECT number, at, run, kind, token, data FROM entries %s ORDER BY number" % where, arguments
            ):
                facts = self._decode(_read_data, data)
                yield EntryRow(number, JournalEntry(at, name, self._decode(_read_kind, kind), token, facts))

    def last_change(self, run: str) -> float | None:
        """Return when the last entry about a run was recorded; None if there is none."""
        query = "SELECT at FROM entries WHERE run = ? ORDER BY number DESC LIMIT 1"
        with self._translate_errors():
            row = self._db.execute(query, (run,)).fetchone()
        # A journal of another user may have anything there.
        return row[0] if row and isinstance(row[0], float) and 0 <= row[0] < LATEST else None

    def last_entry(self) -> int:
        """Return the number of the newest entry; 0 if there is none."""
        with self._translate_errors():
            return int(self._db.execute("SELECT coalesce(max(number), 0) FROM entries").fetchone()[0])

    def spec(self, number: int) -> Spec:
        if number not in self._specs:
            with self._translate_errors():
                row = self._db.execute("SELECT record FROM specs WHERE number=?", (number,)).fetchone()
            if len(self._specs) >= _MOST_SPECS:
                self._specs.pop(next(iter(self._specs)))
            self._specs[number] = self._decode(read_spec, row[0] if row else "")
        return self._specs[number]

    def newest_spec(self) -> Spec | None:
        with self._translate_errors():
            row = self._db.execute("SELECT max(number) FROM specs").fetchone()
        return self.spec(row[0]) if row[0] is not None else None

    def has_request(self, name: str) -> bool:
        """Return True if the request of this name has been recorded."""
        with self._translate_errors():
            return bool(self._db.execute("SELECT 1 FROM requests WHERE name=?", (name,)).fetchone())

    # Writing.

    def forget(self) -> None:
        """Drop what is in memory, so that it is read from disk again."""
        self._runs.clear()
        self._attempts.clear()
        self._computed.clear()
        self._alike.clear()
        self._loaded = False
        self._computed_known = False
        self._alike_known = False

    def add_spec(self, spec: Spec) -> int:
        record = dump(spec)
        with self._transaction():
            self._db.execute("INSERT OR IGNORE INTO specs (record) VALUES (?)", (record,))
            row = self._db.execute("SELECT number FROM specs WHERE record=?", (record,)).fetchone()
        return int(row[0])

    def record_request(self, name: str, at: float, entries: Sequence[JournalEntry]) -> None:
        """Record a request and the entries that follow from it, in one transaction.

        It must not have been recorded before (see `has_request`).
        """
        with self._transaction():
            self._db.execute("INSERT INTO requests VALUES (?, ?)", (name, at))
            self.append(entries)

    def _persist(
        self, entries: Sequence[JournalEntry], runs: Iterable[Run], attempts: Iterable[Attempt]
    ) -> None:
        with self._transaction():
            self._db.executemany(
                "INSERT INTO entries (at, run, kind, token, data) VALUES (?, ?, ?, ?, ?)",
                ((e.at, e.run, e.kind.value, e.token, dump(e.data)) for e in entries),
            )
            self._db.executemany(
                "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?)",
                ((run.name, run.position, run.state.value, dump(run)) for run in runs),
            )
            self._db.executemany(
                "INSERT OR REPLACE INTO attempts VALUES (?, ?, ?, ?, ?)",
                ((a.token, a.run, a.number, a.state.value, dump(a)) for a in attempts),
            )

    def _dismiss(self, runs: Iterable[Run]) -> None:
        for run in runs:
            if run.last is not None and not run.state.over:
                self._attempts.pop(run.last.token, None)
            elif run.state.over and run.accepted:
                self._attempts.pop(run.accepted, None)


def _read_data(record: str, parse: Parse) -> Mapping[str, Any]:
    facts = parse(record)
    if not isinstance(facts, dict):
        raise TypeError("not an object")
    return facts


def _read_kind(kind: str, parse: Parse) -> EntryKind:
    return EntryKind(kind)


def _read_state(state: str, parse: Parse) -> str:
    return RunState(state).value

"""The state of all runs in memory: applies entries by the fold, all or none.

`Journal` adds storage on disk; the simulator uses no disk.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from outlast.domain.alike_failures import AlikeFailures, FailedRun, summarize
from outlast.domain.model import ATTEMPT_KINDS, Attempt, EntryKind, JournalEntry, Run, Spec
from outlast.journal.entry_limit import limit


class Records:
    """The runs that are not over, their current attempts, and the attempts read or changed since."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._attempts: dict[str, Attempt] = {}
        self._specs: dict[int, Spec] = {}
        self._computed: dict[int, float] = {}
        self._alike: dict[str, dict[str, FailedRun]] = {}

    # Reading.

    def live(self) -> Mapping[str, Run]:
        """Return the runs that are not over, by name, in the order of their submission."""
        return self._runs

    def current(self, run: Run) -> Attempt | None:
        """Return the current attempt of a run; None if it has none."""
        return self._attempts[run.current] if run.current else None

    def run(self, name: str) -> Run | None:
        """Return the run of this name; None if there is none."""
        return self._runs.get(name)

    def attempt(self, token: str) -> Attempt | None:
        """Return the attempt with this token; None if there is none."""
        return self._attempts.get(token)

    def last_computed(self, spec: int) -> float:
        """Return when an attempt of this spec that reached its training last ended; -inf if none did."""
        return self._computed.get(spec, -math.inf)

    def alike_failures(self) -> AlikeFailures:
        """Return the runs that failed for a bug, by what their failures have in common."""
        return self._alike

    def spec(self, number: int) -> Spec:
        return self._specs[number]

    def newest_spec(self) -> Spec | None:
        """Return the spec that was submitted last; None if none was."""
        return self._specs[max(self._specs)] if self._specs else None

    # Writing.

    def add_spec(self, spec: Spec) -> int:
        """Return the number of `spec`, adding it if it is new."""
        for number, known in self._specs.items():
            if known == spec:
                return number
        number = max(self._specs, default=0) + 1
        self._specs[number] = spec
        return number

    def append(self, entries: Sequence[JournalEntry]) -> None:
        """Apply all entries (and make them durable), or none. Raise ImpossibleStep."""
        from outlast.domain.fold import apply  # readers of a journal do not need it

        entries = [limit(entry) for entry in entries]
        runs: dict[str, Run] = {}
        attempts: dict[str, Attempt] = {}
        for entry in entries:
            run = runs.get(entry.run) or self.run(entry.run)
            attempt = None
            if (
                entry.token is not None
                and entry.kind in ATTEMPT_KINDS
                and entry.kind is not EntryKind.INTENDED
            ):
                attempt = attempts.get(entry.token) or self.attempt(entry.token)
            run, attempt = apply(run, attempt, entry)
            runs[run.name] = run
            if attempt is not None:
                attempts[attempt.token] = attempt
        self._persist(entries, runs.values(), attempts.values())
        for run in runs.values():
            self._note_computed(run)
            self._note_failure(run)
            if run.state.over:
                self._runs.pop(run.name, None)
            else:
                self._runs[run.name] = run
        self._attempts.update(attempts)
        self._dismiss(runs.values())

    def _note_computed(self, run: Run) -> None:
        if run.last is not None and run.last.computed:
            self._computed[run.spec] = max(run.last.at, self._computed.get(run.spec, -math.inf))

    def _note_failure(self, run: Run) -> None:
        for failed in self._alike.values():
            failed.pop(run.name, None)
        failure = summarize(run)
        if failure is not None:
            self._alike.setdefault(run.alike, {})[run.name] = failure

    def _persist(
        self, entries: Sequence[JournalEntry], runs: Iterable[Run], attempts: Iterable[Attempt]
    ) -> None:
        """Make the changes durable, before they are applied in memory."""

    def _dismiss(self, runs: Iterable[Run]) -> None:
        """Drop from memory what is no longer needed after these runs changed."""

"""Deliberate failures: an attempt is killed without warning, then the newest checkpoint is truncated."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from outlast.domain.accounts import read_account
from outlast.domain.model import Attempt, AttemptState, EntryKind, JournalEntry, Outcome
from outlast.exchange.attempt_log import last_progress, read_report
from outlast.exchange.experiment import Experiment
from outlast.training.checkpoints import checkpoint_names, file_format

#: The first attempt is not killed, so that there are checkpoints of two attempts.
FIRST_TO_KILL = 2
#: The share of all steps at which the first attempt is evicted if its limit has not ended it by then. The
#: limit is too long if the machine was busier during the undisturbed run.
LARGEST_SHARE = 0.5


class DemoTrouble:
    """Call `kill_if_due` after each pass of the controller, and `on_entries` with new journal entries."""

    def __init__(
        self,
        experiment: Experiment,
        kill: Callable[[str], None],
        evict: Callable[[str], None],
        report: Callable[[str], None],
    ) -> None:
        self._experiment = experiment
        self._kill = kill
        self._evict = evict
        self._evicted = ""
        self._report = report
        #: The attempt that was killed, and whether the kill ended it.
        self._target: Attempt | None = None
        self.killed = False
        #: The name of the truncated checkpoint, and whether a later attempt put it aside.
        self.torn = ""
        self.noticed = False

    def will_end(self, attempt: Attempt | None) -> bool:
        """Return True if this attempt may be evicted or killed, so that its progress must be polled often."""
        return self._target is None and attempt is not None

    def kill_if_due(self, attempt: Attempt | None) -> None:
        """Kill the attempt once it has made progress beyond its last checkpoint; only evict the first one."""
        if attempt is None or not self.will_end(attempt) or attempt.state is not AttemptState.RUNNING:
            return
        directory = self._experiment.exchange_of(attempt)
        progress = last_progress(directory / "progress.jsonl")
        if progress is None:
            return
        if attempt.number < FIRST_TO_KILL:
            self._evict_if_due(attempt, progress["step"], progress["total"])
            return
        report = read_report(directory / "events.jsonl", directory / "progress.jsonl")
        if report is None or report.step is None or progress["step"] <= report.step:
            return
        self._report("killing attempt %d without warning, at step %d" % (attempt.number, progress["step"]))
        self._target = attempt
        self._kill(attempt.token)

    def _evict_if_due(self, attempt: Attempt, step: int, total: int) -> None:
        if step > LARGEST_SHARE * total and attempt.token != self._evicted:
            self._report("evicting attempt %d at step %d, before its limit" % (attempt.number, step))
            self._evicted = attempt.token
            self._evict(attempt.token)

    def on_entries(self, entries: Sequence[JournalEntry]) -> None:
        """Handle new journal entries; an attempt's end arrives before the next attempt begins."""
        for entry in entries:
            if entry.kind is EntryKind.ENDED:
                self._ended(entry)

    def _ended(self, entry: JournalEntry) -> None:
        account = read_account(entry.data.get("account", {}))
        if self.torn and any(self.torn in note for note in account.notes):
            self.noticed = True
            self._report("the torn checkpoint was put aside, and the one of step %s loaded" % account.resumed)
        if self._target is None or entry.token != self._target.token:
            return
        if entry.data["outcome"] == Outcome.EVICTED:
            self.killed = True
            self._tear(entry.run)
        else:
            self._report("attempt %d had already ended; killing the next one instead" % self._target.number)
            self._target = None

    def _tear(self, run: str) -> None:
        directory = self._experiment.checkpoints(run)
        names = [path.name for path in directory.iterdir() if checkpoint_names.is_checkpoint(path.name)]
        self.torn = max(names, key=checkpoint_names.parse_age)
        path = directory / self.torn / file_format.part_name()
        size = path.stat().st_size
        os.truncate(path, size // 2)
        self._report("tearing the newest checkpoint: %s, %d of %d bytes left" % (self.torn, size // 2, size))

"""Trouble made on purpose: one attempt killed without warning, and then the newest checkpoint torn."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from outlast.domain.model import Attempt, AttemptState, EntryKind, JournalEntry, Outcome
from outlast.exchange.attempt_log import last_progress, read_report
from outlast.exchange.experiment import Experiment
from outlast.training.checkpoints import checkpoint_names, file_format

#: The first attempt is left alone, so that there are checkpoints of two attempts.
FIRST_TO_KILL = 2


class DemoTrouble:
    """`look` after each pass of the controller; `entries` is told what the journal gets."""

    def __init__(
        self, experiment: Experiment, kill: Callable[[str], None], say: Callable[[str], None]
    ) -> None:
        self._experiment = experiment
        self._kill = kill
        self._say = say
        #: The attempt that was sent a kill, and whether its end was that.
        self._target: Attempt | None = None
        self.killed = False
        #: The name of the checkpoint that was torn, and whether a later attempt put it aside.
        self.torn = ""
        self.noticed = False

    def is_near(self, attempt: Attempt | None) -> bool:
        """Whether this attempt is about to be killed, so that its progress must be looked at often."""
        return self._target is None and attempt is not None and attempt.number >= FIRST_TO_KILL

    def look(self, attempt: Attempt | None) -> None:
        """Kill the attempt once it has saved something and has gone beyond it."""
        if attempt is None or not self.is_near(attempt) or attempt.state is not AttemptState.RUNNING:
            return
        place = self._experiment.exchange_of(attempt)
        said = last_progress(place / "progress.jsonl")
        if said is None:
            return
        report = read_report(place / "events.jsonl", place / "progress.jsonl")
        if report is None or report.step is None or said["step"] <= report.step:
            return
        self._say("killing attempt %d without warning, at step %d" % (attempt.number, said["step"]))
        self._target = attempt
        self._kill(attempt.token)

    def entries(self, entries: Sequence[JournalEntry]) -> None:
        """The controller's listener: it hears of an attempt's end before the next attempt begins."""
        for entry in entries:
            if entry.kind is EntryKind.ENDED:
                self._ended(entry)

    def _ended(self, entry: JournalEntry) -> None:
        account = entry.data.get("account", {})
        if self.torn and any(self.torn in note for note in account.get("notes", ())):
            self.noticed = True
            self._say(
                "the torn checkpoint was put aside, and the one of step %s loaded" % account.get("resumed")
            )
        if self._target is None or entry.token != self._target.token:
            return
        if entry.data["outcome"] == Outcome.EVICTED:
            self.killed = True
            self._tear(entry.run)
        else:
            self._say("attempt %d had ended before that; the next one then" % self._target.number)
            self._target = None

    def _tear(self, run: str) -> None:
        directory = self._experiment.checkpoints(run)
        names = [path.name for path in directory.iterdir() if checkpoint_names.is_checkpoint(path.name)]
        self.torn = max(names, key=checkpoint_names.parse_age)
        path = directory / self.torn / file_format.part_name()
        size = path.stat().st_size
        os.truncate(path, size // 2)
        self._say("tearing the newest checkpoint: %s, %d of %d bytes left" % (self.torn, size // 2, size))

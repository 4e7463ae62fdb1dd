"""Supervision of the templates' experiments: a thread for each, so that a scheduler that hangs stops one."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from outlast.controller.supervisor import Supervisor, control
from outlast.errors import JournalHeld, JournalLocked, JournalUnavailable, OutlastError
from outlast.exchange.experiment import Experiment

_log = logging.getLogger(__name__)

#: Seconds until an experiment that cannot be supervised is tried again: doubled each time.
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0
#: Seconds for which `stop` waits for a pass to end.
LONGEST_PASS = 30.0


class _Stopped(Exception):
    """The gateway stops."""


@dataclass(frozen=True)
class SupervisionState:
    """How the supervision of an experiment is."""

    passes: int = 0
    #: Why it is not supervised, or its scheduler does not respond; empty: it is supervised.
    trouble: str = ""
    trouble_since: float | None = None
    notes: tuple[str, ...] = ()


class ExperimentSupervision:
    """A thread that makes passes over one experiment until it is stopped.

    `on_pass` is called in it after each pass: there may be something new in the journal.
    """

    def __init__(self, experiment: Experiment, on_pass: Callable[[], None] = lambda: None) -> None:
        self._experiment = experiment
        self._on_pass = on_pass
        self._stop = threading.Event()
        self._state = SupervisionState()
        self._thread = threading.Thread(
            target=self._run, name="supervise-%s" % experiment.root.name, daemon=True
        )

    @property
    def state(self) -> SupervisionState:
        """How it is now."""
        return self._state

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to stop after its pass."""
        self._stop.set()

    def join(self) -> None:
        """Wait until the thread has stopped, for a pass at most: the next gateway takes over its lease."""
        self._thread.join(LONGEST_PASS)

    def _run(self) -> None:
        pause, passes = FIRST_PAUSE, 0
        while not self._stop.is_set():
            try:
                with control(self._experiment, "gateway") as supervisor:
                    self._supervise(supervisor)
            except _Stopped:
                return
            except JournalHeld as error:
                self._note_trouble("another process supervises it: %s" % error)
            except OutlastError as error:
                self._note_trouble(str(error))
            except Exception as error:  # the other experiments go on; this one is tried again
                text = "internal error: %s: %s" % (type(error).__name__, error)
                if text != self._state.trouble:
                    _log.exception("supervision of %s failed", self._experiment.root)
                self._note_trouble(text)
            if self._state.passes > passes:
                pause, passes = FIRST_PAUSE, self._state.passes
            self._stop.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _supervise(self, supervisor: Supervisor) -> None:
        while not self._stop.is_set():
            try:
                done = supervisor.step()
                self._note_pass(done.scheduler_error, done.notes)
                self._on_pass()
                supervisor.wait(self._check)
            except (JournalUnavailable, JournalLocked) as error:
                supervisor.recover(error, self._note_trouble)

    def _check(self) -> None:
        """Raise _Stopped if the gateway stops: the pause between two passes may take a minute."""
        if self._stop.is_set():
            raise _Stopped

    def _note_pass(self, scheduler_error: str, notes: list[str]) -> None:
        before = self._state
        text = "the scheduler does not respond: %s" % scheduler_error if scheduler_error else ""
        since = (before.trouble_since or time.time()) if text else None
        self._state = SupervisionState(before.passes + 1, text, since, tuple(notes[:20]))

    def _note_trouble(self, text: str) -> None:
        before = self._state
        since = before.trouble_since or time.time()
        self._state = SupervisionState(before.passes, text, since, before.notes)

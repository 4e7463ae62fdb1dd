"""One process's training: environment, clock, checkpoints and telling, tied together."""

from __future__ import annotations

import math
import operator
import os
import platform
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, Mapping, NoReturn, SupportsIndex

from outlast.training import names
from outlast.training.clock import Clock
from outlast.training.errors import Damaged
from outlast.training.store import Store
from outlast.training.telling import Telling, warn
from outlast.training.tree import take_apart


@dataclass(frozen=True)
class Settings:
    """What the environment says; outside a job it says nothing and the defaults hold."""

    directory: str = names.DEFAULT_DIRECTORY
    keep: int = names.DEFAULT_KEEP
    deadline: float | None = None
    grace: float = 0.0
    progress_file: str | None = None
    run: str | None = None
    attempt: str | None = None
    #: Processes with one token are of one attempt.
    token: str | None = None


def read_settings(environment: Mapping[str, str]) -> Settings:
    """A value that is no number is reported and counts as not given: a training must not die of it."""

    def number(name: str) -> float | None:
        text = environment.get(name)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if math.isfinite(value):
            return value
        warn("%s=%.40r is no number and is ignored" % (name, text))
        return None

    keep = number(names.CHECKPOINT_KEEP)
    return Settings(
        directory=environment.get(names.CHECKPOINT_DIR) or names.DEFAULT_DIRECTORY,
        keep=names.DEFAULT_KEEP if keep is None else int(keep),
        deadline=number(names.DEADLINE),
        grace=max(0.0, number(names.GRACE) or 0.0),
        progress_file=environment.get(names.PROGRESS_FILE) or None,
        run=environment.get(names.RUN),
        attempt=environment.get(names.ATTEMPT),
        token=environment.get(names.TOKEN) or None,
    )


class Session:
    """What stands behind `outlast.load()`, `outlast.save()` and the others."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.clock = Clock(settings.deadline, settings.grace)
        self._telling = Telling(settings.progress_file)
        self._lock = threading.RLock()
        self._opened: Store | None = None

    @property
    def _store(self) -> Store:
        """Opened at the first use, so that a script may change its directory before that but not after."""
        if self._opened is None:
            self._opened = Store(
                os.path.abspath(self._settings.directory),
                self._settings.keep,
                self._head,
                warn,
                self._tell_aside,
                self._settings.token,
            )
        return self._opened

    def _tell_aside(self, name: str, why: str) -> None:
        self._telling.tell("aside", name=name, why=why)

    def load(self) -> Any:
        with self._lock:
            loaded = self._store.load()
        state, step = (None, None) if loaded is None else (loaded[0], loaded[1].step)
        self._telling.tell("loaded", step=step)
        return state

    def save(self, state: Any, step: SupportsIndex) -> bool:
        number = operator.index(step)
        if number < 0:
            raise ValueError("step is %d; steps are counted from 0" % number)
        taken = take_apart(state)
        self._telling.flush()
        began = time.monotonic()
        try:
            with self._lock:
                size = self._store.save(taken, number)
        except (OSError, Damaged) as error:
            self.clock.saved(time.monotonic() - began, durable=False)
            warn("step %d is NOT saved: %s; the training goes on" % (number, error))
            self._telling.tell("save-failed", step=number, why=str(error))
            return False
        seconds = time.monotonic() - began
        self.clock.saved(seconds, durable=True)
        self._telling.tell("saved", step=number, seconds=seconds, bytes=size)
        return True

    def progress(self, step: SupportsIndex, total: SupportsIndex | None, metrics: Mapping[str, Any]) -> None:
        whole = None if total is None else operator.index(total)
        self._telling.progress(operator.index(step), whole, metrics)

    def leave(self) -> NoReturn:
        # A save of another thread is let finish: leaving in its midst would waste it.
        with self._lock:
            self._telling.flush()
        raise SystemExit(names.EXIT_CONTINUE)

    def _head(self) -> dict[str, Any]:
        """What a person wants to know of a checkpoint, or of two that differ in the last bit."""
        versions = {"python": platform.python_version()}
        for library in ("numpy", "torch"):
            module = sys.modules.get(library)
            if module is not None:
                versions[library] = str(getattr(module, "__version__", "unknown"))
        torch_threads = getattr(sys.modules.get("torch"), "get_num_threads", None)
        return {
            "run": self._settings.run,
            "attempt": self._settings.attempt,
            "created": time.time(),
            "versions": versions,
            "threads": {
                "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
                "torch": torch_threads() if callable(torch_threads) else None,
            },
        }

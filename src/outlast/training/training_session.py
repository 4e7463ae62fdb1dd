"""One process's training: environment, clock, checkpoints and telling, tied together."""

from __future__ import annotations

import math
import operator
import os
import platform
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Mapping, NoReturn, SupportsIndex

from outlast.training import env
from outlast.training.background import BackgroundWorker
from outlast.training.checkpoints import ranks
from outlast.training.checkpoints.checkpoint_store import CheckpointStore, Opening
from outlast.training.checkpoints.copy_buffer import CopyBuffer
from outlast.training.checkpoints.file_format import lay_out
from outlast.training.checkpoints.kept_files import KeptFiles
from outlast.training.checkpoints.ranks import Ranks
from outlast.training.checkpoints.state_tree import take_apart
from outlast.training.deadline import Deadline
from outlast.training.errors import Damaged, SaveFailed, Superseded
from outlast.training.progress_log import ProgressLog, warn
from outlast.training.save_interval import SaveInterval, SavePlan, read_plan

#: A save that waits so many seconds for the one before is mentioned.
_WORTH_SAYING = 0.1


@dataclass(frozen=True)
class SessionSettings:
    """What the environment says; outside a job it says nothing and the defaults hold."""

    directory: str = env.DEFAULT_DIRECTORY
    keep: int = env.DEFAULT_KEEP
    deadline: float | None = None
    grace: float = 0.0
    progress_file: str | None = None
    run: str | None = None
    attempt: str | None = None
    #: Processes with one token are of one attempt.
    token: str | None = None
    plan: SavePlan = field(default_factory=SavePlan)
    #: Where kept files are; None: in the current directory.
    output: str | None = None


def read_settings(environment: Mapping[str, str]) -> SessionSettings:
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

    keep = number(env.CHECKPOINT_KEEP)
    return SessionSettings(
        directory=environment.get(env.CHECKPOINT_DIR) or env.DEFAULT_DIRECTORY,
        keep=env.DEFAULT_KEEP if keep is None else int(keep),
        deadline=number(env.DEADLINE),
        grace=max(0.0, number(env.GRACE) or 0.0),
        progress_file=environment.get(env.PROGRESS_FILE) or None,
        run=environment.get(env.RUN),
        attempt=environment.get(env.ATTEMPT),
        token=environment.get(env.TOKEN) or None,
        plan=read_plan(environment, number),
        output=environment.get(env.OUTPUT_DIR) or None,
    )


@dataclass(frozen=True)
class _PendingSave:
    """A state on its way to the disk: seconds that the training waited for the one before, and in all."""

    step: int
    content: memoryview
    began: float
    waited: float
    blocked: float
    why: str


class TrainingSession:
    """What stands behind `outlast.load()`, `outlast.save()` and the others."""

    def __init__(self, settings: SessionSettings) -> None:
        self._settings = settings
        self.clock = Deadline(settings.deadline, settings.grace)
        self.rhythm = SaveInterval(self.clock, settings.plan)
        self._telling = ProgressLog(settings.progress_file)
        self._lock = threading.RLock()
        self._opened: CheckpointStore | None = None
        self._found: Ranks | None = None
        self.kept = KeptFiles(settings.output or "", settings.token is not None, warn)
        self._stage = CopyBuffer()
        self._behind = BackgroundWorker()
        self._leaving = False
        #: Bytes of the checkpoint that was loaded, until the training is seen to go on.
        self._loaded_size = 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        """A child has its parent's memory, but neither its threads nor whatever held its locks."""
        self._lock = threading.RLock()
        self._stage = CopyBuffer()
        self._behind = BackgroundWorker()

    @property
    def _store(self) -> CheckpointStore:
        """Opened at the first use, so that a script may change its directory before that but not after."""
        if self._opened is None:
            self._opened = CheckpointStore(
                os.path.abspath(self._settings.directory),
                self._settings.keep,
                self._head,
                warn,
                self._tell_aside,
                self._settings.token,
                self._party,
            )
        return self._opened

    @property
    def _party(self) -> Ranks:
        """The processes of this training, as they are at the first use."""
        if self._found is None:
            self._found = ranks.find()
        return self._found

    def _tell_aside(self, name: str, why: str) -> None:
        self._telling.tell("aside", name=name, why=why)

    def load(self) -> Any:
        with self._lock:
            loaded = self._store.load()
        (state, kept), step = ((None, {}), None) if loaded is None else (loaded[0], loaded[1].step)
        self._loaded_size = 0 if loaded is None else loaded[1].size
        self.kept.loaded(kept)
        self._tell("loaded", step=step)
        return state

    def _tell(self, event: str, **details: Any) -> None:
        """Of several processes the first speaks for all."""
        if self._party.rank == 0:
            self._telling.tell(event, **details)

    def save(self, state: Any, step: SupportsIndex, wait: bool = False) -> None:
        """Raises what became of the save before; with `wait` of this one."""
        number = operator.index(step)
        if number < 0:
            raise ValueError("step is %d; steps are counted from 0" % number)
        self._behind.raise_failure()
        began = time.monotonic()
        taken = take_apart(state, self.kept.take())
        self._telling.flush()
        waited = self._wait_for_memory(number)
        layout = lay_out(taken)
        content = self._stage.lend(layout.size)
        layout.fill(content)
        opening = self._open(number) if self._party.world > 1 else None
        blocked = time.monotonic() - began
        self.rhythm.taken(blocked)
        saving = _PendingSave(number, content, began, waited, blocked, self.rhythm.why)
        self._behind.begin(lambda: self._write(saving, opening), self._tidy)
        if wait:
            self.wait()

    def _wait_for_memory(self, step: int) -> float:
        """Until the state before has been written from where this one is to be copied to; the seconds."""
        began = time.monotonic()
        self._behind.wait_for_work()
        self._behind.raise_failure()
        waited = time.monotonic() - began
        if waited >= _WORTH_SAYING:
            warn("the save of step %d has waited %.1f s for the one before; save less often" % (step, waited))
        return waited

    def expect(self, state: Any) -> None:
        """States like this one will be saved. Raises TypeError, naming the place, if they cannot be."""
        self._stage.prepare(lay_out(take_apart(state)).size)

    def _expect_save(self) -> None:
        """Who loads only to look at a state needs no second copy of it; who asks when to stop will save."""
        if self._loaded_size:
            self._stage.prepare(self._loaded_size)
            self._loaded_size = 0

    def should_stop(self) -> bool:
        self._behind.raise_failure(Superseded)
        self._expect_save()
        return self._party.any_of(self.clock.should_stop())[0]

    def should_save(self) -> bool:
        self._expect_save()
        return self._party.any_of(self._party.rank == 0 and self.rhythm.due())[0]

    def stop_or_save(self) -> tuple[bool, bool]:
        """Whether to stop, which any of the processes may have been told to, and whether a save is due."""
        self._behind.raise_failure(Superseded)
        self._expect_save()
        stop, due = self.clock.should_stop(), self.rhythm.due()
        return self._party.any_of(stop, due and self._party.rank == 0)  # type: ignore[return-value]

    def wait(self) -> None:
        self._behind.wait_for_all()
        self._behind.raise_failure()

    def _open(self, step: int) -> Opening | OSError:
        """One place for the parts of all processes; an error is theirs to hear in the usual way."""
        try:
            return self._party.share(lambda: self._store.open(step))
        except OSError as error:
            return error

    def _write(self, saving: _PendingSave, opening: Opening | OSError | None) -> None:
        try:
            if isinstance(opening, OSError):
                raise opening
            with self._lock:
                size = self._store.save(saving.content, saving.step, opening)
        except (OSError, Damaged) as error:
            why = "step %d is NOT saved: %s; the checkpoints before are as they were" % (saving.step, error)
            self.rhythm.failed()
            warn(why)
            self._tell("save-failed", step=saving.step, why=str(error))
            raise SaveFailed(why) from error
        seconds = time.monotonic() - saving.began
        self.rhythm.saved(saving.blocked - saving.waited, seconds)
        self._tell(
            "saved",
            step=saving.step,
            seconds=seconds,
            blocked=saving.blocked,
            waited=saving.waited,
            why=saving.why,
            bytes=size,
        )

    def _tidy(self) -> None:
        if not self._leaving and self._party.rank == 0:
            with self._lock:
                self._store.tidy()

    def progress(self, step: SupportsIndex, total: SupportsIndex | None, metrics: Mapping[str, Any]) -> None:
        whole = None if total is None else operator.index(total)
        self._telling.progress(operator.index(step), whole, metrics)

    def leave(self) -> NoReturn:
        self._leaving = True
        began = time.monotonic()
        self._behind.wait_for_work()
        waited = time.monotonic() - began
        self._behind.raise_failure()
        self._telling.flush()
        self._tell("left", waited=waited)
        raise SystemExit(env.EXIT_CONTINUE)

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

"""The training session of one process: ties together environment, deadline, checkpoints and progress log."""

from __future__ import annotations

import math
import operator
import os
import platform
import shlex
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Mapping, NoReturn, SupportsIndex

from outlast.training import env
from outlast.training.background import BackgroundWorker
from outlast.training.checkpoints.checkpoint_store import CheckpointStore, PendingCheckpoint
from outlast.training.checkpoints.copy_buffer import CopyBuffer
from outlast.training.checkpoints.file_format import lay_out
from outlast.training.checkpoints.kept_files import KeptFiles
from outlast.training.checkpoints.ranks import Ranks, detect_ranks
from outlast.training.checkpoints.state_tree import flatten
from outlast.training.deadline import Deadline
from outlast.training.errors import Damaged, SaveFailed, Superseded
from outlast.training.job_clock import read_end
from outlast.training.progress_log import ProgressLog, warn
from outlast.training.save_interval import SaveInterval, SavePlan, read_plan

#: A save that waits this many seconds for the previous one causes a warning.
_WARN_AFTER = 0.1


@dataclass(frozen=True)
class SessionSettings:
    """The settings from the environment; the defaults apply outside a job."""

    directory: str = env.DEFAULT_DIRECTORY
    keep: int = env.DEFAULT_KEEP
    #: When the process must have ended, on the monotonic clock; None without a deadline.
    ends: float | None = None
    grace: float = 0.0
    progress_file: str | None = None
    run: str | None = None
    attempt: str | None = None
    #: Processes with the same token belong to the same attempt.
    token: str | None = None
    plan: SavePlan = field(default_factory=SavePlan)
    #: Base directory of the kept files; None: the current directory.
    output: str | None = None


def read_settings(environment: Mapping[str, str]) -> SessionSettings:
    """Return the settings in the environment. A value that is no number causes a warning and is ignored."""

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
        warn("%s=%.40r is not a number and is ignored" % (name, text))
        return None

    keep = number(env.CHECKPOINT_KEEP)
    return SessionSettings(
        directory=environment.get(env.CHECKPOINT_DIR) or env.DEFAULT_DIRECTORY,
        keep=env.DEFAULT_KEEP if keep is None else int(keep),
        ends=read_end(environment, number),
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
    """A copied state that is being written.

    `waited`: seconds that the loop waited for the previous save; `blocked`: seconds that it was blocked in
    all.
    """

    step: int
    content: memoryview
    began: float
    waited: float
    blocked: float
    why: str


class TrainingSession:
    """The state behind `outlast.load()`, `outlast.save()` and the other functions."""

    def __init__(self, settings: SessionSettings) -> None:
        self._settings = settings
        self.deadline = Deadline(settings.ends, settings.grace)
        self.save_interval = SaveInterval(self.deadline, settings.plan)
        self._progress_log = ProgressLog(settings.progress_file)
        self._lock = threading.RLock()
        self._opened_store: CheckpointStore | None = None
        self._detected_ranks: Ranks | None = None
        self.kept = KeptFiles(settings.output or "", settings.token is not None, warn)
        self._copy_buffer = CopyBuffer()
        self._background = BackgroundWorker()
        self._leaving = False
        #: Bytes of the loaded checkpoint, until the script is seen to continue training.
        self._loaded_size = 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        """Replace locks, threads and buffer: a child has its parent's memory, but not its threads."""
        self._lock = threading.RLock()
        self._copy_buffer = CopyBuffer()
        self._background = BackgroundWorker()

    @property
    def _store(self) -> CheckpointStore:
        """The checkpoint store, opened at first use; until then the script may change its directory."""
        if self._opened_store is None:
            self._opened_store = CheckpointStore(
                os.path.abspath(self._settings.directory),
                self._settings.keep,
                self._head,
                warn,
                self._report_bad,
                self._settings.token,
                self.ranks,
            )
        return self._opened_store

    @property
    def ranks(self) -> Ranks:
        """The processes of this training run, detected at first use."""
        if self._detected_ranks is None:
            self._detected_ranks = detect_ranks()
        return self._detected_ranks

    def _report_bad(self, name: str, why: str) -> None:
        self._progress_log.write_event("aside", name=name, why=why)

    def load(self) -> Any:
        """Return the newest saved state, restore kept files, and log the event; None if nothing was saved."""
        with self._lock:
            loaded = self._store.load()
        (state, kept), step = ((None, {}), None) if loaded is None else (loaded[0], loaded[1].step)
        self._loaded_size = 0 if loaded is None else loaded[1].size
        with self.ranks.failing_together():
            self.kept.restore(kept)
        self._write_event("loaded", step=step)
        if step is not None:
            self._announce_resuming(step)
        return state

    def _announce_resuming(self, step: int) -> None:
        """Outside a job, print which checkpoint is used: it may be one that the user has forgotten."""
        if self._settings.token is None and self._settings.run is None and self.ranks.rank == 0:
            place = shlex.quote(self._settings.directory)
            warn("resuming from step %d in %s; to start afresh: rm -r %s" % (step, place, place))

    def _write_event(self, event: str, **details: Any) -> None:
        """Log an event; of several processes only the first does."""
        if self.ranks.rank == 0:
            self._progress_log.write_event(event, **details)

    def save(self, state: Any, step: SupportsIndex, wait: bool = False) -> None:
        """Copy the state and write it in the background.

        Raises the failure of an earlier save; with `wait`, also of this one.
        """
        number = operator.index(step)
        if not 0 <= number < 2**63:
            raise ValueError("step is %d, but steps are counted from 0 and have at most 63 bits" % number)
        self._background.raise_failure()
        began = time.monotonic()
        flat = flatten(state, self.kept.collect())
        self._progress_log.flush()
        waited = self._wait_for_memory(number)
        layout = lay_out(flat)
        content = self._copy_buffer.get(layout.size)
        layout.fill(content)
        pending = self._begin_shared(number) if self.ranks.world > 1 else None
        blocked = time.monotonic() - began
        self.save_interval.note_copied(blocked)
        saving = _PendingSave(number, content, began, waited, blocked, self.save_interval.why)
        self._background.submit(lambda: self._write(saving, pending), self._remove_old)
        if wait:
            self.wait()

    def _wait_for_memory(self, step: int) -> float:
        """Wait until the previous state is written, so its memory can be reused. Return the seconds."""
        began = time.monotonic()
        self._background.wait_for_work()
        self._background.raise_failure()
        waited = time.monotonic() - began
        if waited >= _WARN_AFTER:
            warn("the save of step %d waited %.1f s for the previous one; save less often" % (step, waited))
        return waited

    def preallocate_for(self, state: Any) -> None:
        """Allocate memory for saving states like this one.

        Raises TypeError, naming the place, if it cannot be saved.
        """
        self._copy_buffer.preallocate(lay_out(flatten(state)).size)

    def _preallocate_after_load(self) -> None:
        """Allocate memory for saving a state like the loaded one.

        Called when the script asks whether to stop or save: a script that only reads a state needs no such
        memory.
        """
        if self._loaded_size:
            self._copy_buffer.preallocate(self._loaded_size)
            self._loaded_size = 0

    def should_stop(self) -> bool:
        """Return True if any process has to stop. Raises Superseded."""
        self._background.raise_failure(Superseded)
        self._preallocate_after_load()
        return self.ranks.any_rank(self.deadline.should_stop())[0]

    def should_save(self) -> bool:
        """Return True if the first process finds that a save is due."""
        self._preallocate_after_load()
        return self.ranks.any_rank(self.ranks.rank == 0 and self.save_interval.is_due())[0]

    def stop_or_save(self) -> tuple[bool, bool]:
        """Return whether to stop, if any process has to, and whether a save is due. Raises Superseded."""
        self._background.raise_failure(Superseded)
        self._preallocate_after_load()
        stop, due = self.deadline.should_stop(), self.save_interval.is_due()
        return self.ranks.any_rank(stop, due and self.ranks.rank == 0)  # type: ignore[return-value]

    def wait(self) -> None:
        """Wait until all saves are durable. Raises the failure of one that is not."""
        self._background.wait_for_all()
        self._background.raise_failure()

    def _begin_shared(self, step: int) -> PendingCheckpoint | OSError:
        """Begin one checkpoint for the parts of all processes; return an error instead of raising it."""
        try:
            return self.ranks.broadcast(lambda: self._store.begin(step))
        except OSError as error:
            return error

    def _write(self, saving: _PendingSave, pending: PendingCheckpoint | OSError | None) -> None:
        try:
            if isinstance(pending, OSError):
                raise pending
            with self._lock:
                size = self._store.save(saving.content, saving.step, pending)
        except (OSError, Damaged) as error:
            why = "step %d is NOT saved: %s; earlier checkpoints are unchanged" % (saving.step, error)
            self.save_interval.note_failed()
            warn(why)
            self._write_event("save-failed", step=saving.step, why=str(error))
            raise SaveFailed(why) from error
        seconds = time.monotonic() - saving.began
        self.save_interval.note_saved(saving.blocked - saving.waited, seconds)
        self._write_event(
            "saved",
            step=saving.step,
            seconds=seconds,
            blocked=saving.blocked,
            waited=saving.waited,
            why=saving.why,
            bytes=size,
        )

    def _remove_old(self) -> None:
        if not self._leaving and self.ranks.rank == 0:
            with self._lock:
                self._store.remove_old()

    def progress(self, step: SupportsIndex, total: SupportsIndex | None, metrics: Mapping[str, Any]) -> None:
        """Report progress. Raises TypeError if `step` or `total` is no integer."""
        whole = None if total is None else operator.index(total)
        self._progress_log.progress(operator.index(step), whole, metrics)

    def leave(self) -> NoReturn:
        """Wait for the last save and exit with the code for "continue me"."""
        self._leaving = True
        began = time.monotonic()
        self._background.wait_for_work()
        waited = time.monotonic() - began
        self._background.raise_failure()
        self._progress_log.flush()
        self._write_event("left", waited=waited)
        raise SystemExit(env.EXIT_CONTINUE)

    def _head(self) -> dict[str, Any]:
        """Return information about this process for people who inspect a checkpoint or compare two."""
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

"""The diagnosis of a failed training from the end of its log: a sentence for the user and a signature.

Two failures with the same signature are the same bug: the frames of the last traceback and the exception's
type are compared, not the message, which may contain addresses, paths and times. Of a training with several
ranks, the rank that failed first counts.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal as signal_numbers
from dataclasses import dataclass

from outlast import untrusted_files
from outlast.node.diagnosis import launcher_log, log_tracebacks
from outlast.node.diagnosis.launcher_log import CLOSING_SIGNALS, RankExit
from outlast.node.diagnosis.log_tracebacks import Traceback
from outlast.node.process import signal_name
from outlast.node.protocol import Outcome

_WINDOW_BYTES = 256 * 1024
_TAIL_LINES = 20
_TAIL_BYTES = 4096
#: The most characters of a line that are parsed: half of them from its beginning, half from its end.
_LONGEST_LINE = 8192
#: The most lines of other text between the tracebacks of ranks that failed together.
_MAX_GAP = 50

_VARYING = re.compile(r"0x[0-9a-fA-F]+|\d+")
#: Signals that a shell reports by its own exit code, 128 and the number.
_SHELL_SIGNALS = (
    *(signal_numbers.SIGKILL, signal_numbers.SIGTERM, signal_numbers.SIGSEGV, signal_numbers.SIGBUS),
    *(signal_numbers.SIGILL, signal_numbers.SIGFPE, signal_numbers.SIGXCPU),
)
#: PyTorch's DataLoader: a process that loads data was killed.
_KILLED_WORKER = re.compile(r"DataLoader worker .{0,200} is killed by signal: Killed")
_LOST_WORKER = re.compile(r"DataLoader worker .{0,200} exited unexpectedly")


@dataclass(frozen=True)
class Failure:
    """The outcome of a failed training, a sentence for the user, and the signature."""

    outcome: Outcome
    detail: str
    signature: str
    #: The signal that ended the training, or the rank that failed first.
    signal: int | None = None


def read_end(path: str, start: int = 0) -> str:
    """Return the end of a log, from the offset `start` at the earliest; empty if it cannot be read."""
    try:
        with untrusted_files.open_file(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(start, size - _WINDOW_BYTES, 0))
            return file.read(_WINDOW_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def tail(text: str) -> str:
    """Return the last lines of a log, for the user: at most 20 lines and 4096 bytes."""
    last = "\n".join(text.splitlines()[-_TAIL_LINES:]).encode("utf-8", "replace")[-_TAIL_BYTES:]
    return last.decode("utf-8", "ignore")


def signature_of(*parts: object) -> str:
    """Return a short hash of the texts of `parts`."""
    return hashlib.sha256("\0".join(str(part) for part in parts).encode("utf-8", "replace")).hexdigest()[:16]


def diagnose(text: str, code: int | None, signal: int | None, oom_killed: bool) -> Failure:
    """Return why the training failed; `text` is the end of its log.

    `oom_killed` is True if the kernel killed a process of this job for its memory while the training ran.
    """
    return _Diagnosis([_shorten(line) for line in text.splitlines()], code, signal, oom_killed).decide()


class _Diagnosis:
    """The search for the first failure in a log: of the training itself, or of one of its ranks."""

    def __init__(self, lines: list[str], code: int | None, signal: int | None, oom_killed: bool) -> None:
        self._code = code
        self._signal = signal
        self._oom_killed = oom_killed or launcher_log.has_memory_kill(lines)
        found = log_tracebacks.parse(lines)
        launchers = [one for one in found if launcher_log.is_of_launcher(one)]
        self._tracebacks = [one for one in found if not launcher_log.is_of_launcher(one)]
        self._recorded = log_tracebacks.parse(launcher_log.recorded_tracebacks(lines))
        self._exits = launcher_log.parse_exits(lines, launchers)
        if signal is not None and not launcher_log.has_killed_itself(lines):
            self._exits = []  # the launcher was killed, and has not logged why
        #: The lines before the report of a launcher.
        self._lines = lines[: min((one.first for one in launchers), default=len(lines))]

    def decide(self) -> Failure:
        for one in self._exits:
            found = self._of_rank(one)
            if found is not None:
                return found
        if self._exits:
            return self._of_lost_peers()
        # A signal is not caused by an exception that was caught and logged some time before.
        signal = self._signal
        if signal is None and self._code is not None and self._code - 128 in _SHELL_SIGNALS:
            signal = self._code - 128
        if signal is None or signal == signal_numbers.SIGABRT:
            traceback = self._first_of_ranks() or next(reversed(self._tracebacks), None)
            if traceback is not None:
                return self._of_traceback(traceback)
        return self._of_end(self._code, signal)

    def _of_rank(self, rank: RankExit) -> Failure | None:
        """Return the failure of a rank; None if it only follows from the failure of another one."""
        if rank.forced or (rank.signal in CLOSING_SIGNALS and not rank.is_root):
            return None
        if rank.signal is not None and rank.signal != signal_numbers.SIGABRT:
            return self._of_end(None, rank.signal, rank)
        own = self._tracebacks_of(rank)
        causes = [one for one in own if not launcher_log.is_lost_peer(one)]
        if own and own[-1].rank is not None:
            causes = causes if own[-1] in causes else []
        if causes:
            return self._of_traceback(causes[-1])
        # An interpreter that ends with a traceback exits with 1.
        return self._of_end(rank.code, rank.signal, rank) if not own or rank.code != 1 else None

    def _of_lost_peers(self) -> Failure:
        """Return the failure of a training of which every rank lost another one, or was ended."""
        if self._oom_killed:
            return _of_memory_kill()
        traceback = next(reversed(self._tracebacks_of(self._exits[0])), None)
        if traceback is not None:
            return self._of_traceback(traceback)
        return self._of_end(self._exits[0].code, self._exits[0].signal, self._exits[0])

    def _tracebacks_of(self, rank: RankExit) -> list[Traceback]:
        """Return the tracebacks of a rank; those without a rank if it has none."""
        if rank.rank is None:
            first = self._first_of_ranks()
            return [first] if first is not None else self._final_tracebacks()
        own = [one for one in self._tracebacks if rank.is_of(one)]
        own = own or [one for one in self._recorded if rank.is_of(one)]
        return own or [one for one in self._final_tracebacks() if one.rank is None]

    def _first_of_ranks(self) -> Traceback | None:
        """Return the first of the last tracebacks of several ranks; None if there are not several."""
        last = {one.rank: one for one in self._final_tracebacks() if one.rank is not None}
        causes = [one for one in last.values() if not launcher_log.is_lost_peer(one)] or list(last.values())
        return min(causes, key=lambda one: one.last) if len(last) > 1 else None

    def _final_tracebacks(self) -> list[Traceback]:
        """Return the tracebacks at the end of the log, as they follow one another."""
        found: list[Traceback] = []
        first = len(self._lines)
        for one in reversed(self._tracebacks):
            if first - one.last > _MAX_GAP:
                break
            found.append(one)
            first = min(first, one.first)
        return found[::-1]

    def _of_traceback(self, traceback: Traceback) -> Failure:
        text = f"{traceback.exception}: {traceback.message}"
        killed = _KILLED_WORKER.search(text)
        if self._oom_killed and (killed or _LOST_WORKER.search(text)):
            return _of_memory_kill()
        outcome = Outcome.CRASHED
        if traceback.exception.endswith("MemoryError") or "out of memory" in text.lower():
            outcome = Outcome.OUT_OF_MEMORY
        elif _is_disk_full(text):
            outcome = Outcome.OUT_OF_DISK
        signal = int(signal_numbers.SIGKILL) if killed else None
        return Failure(outcome, str(traceback), signature_of(*traceback.identity), signal)

    def _of_end(self, code: int | None, signal: int | None, rank: RankExit | None = None) -> Failure:
        """Return the failure of a training, or a rank, that left no traceback."""
        if self._oom_killed and signal == signal_numbers.SIGKILL:
            return _of_memory_kill()
        lines = [line.strip() for line in self._lines if not launcher_log.is_log_line(line)]
        last = next((line for line in reversed(lines) if line), "")
        who = rank or "the training"
        if signal is not None:
            detail = f"{who} was ended by {signal_name(signal)}, which Outlast did not send"
        else:
            detail = f"{who} exited with {code}"
        if rank is None:  # else the last line is that of any rank
            detail += f"; its last line: {last[:300]}" if last else "; it wrote nothing"
        if signal is None and any(_is_disk_full(line) for line in lines[-_TAIL_LINES:]):
            return Failure(
                Outcome.OUT_OF_DISK, f"no space was left on a disk: {detail}", signature_of("disk")
            )
        parts = (code, signal, _VARYING.sub("", last) if rank is None else "rank")
        return Failure(Outcome.CRASHED, detail, signature_of(*parts), signal)


def _of_memory_kill() -> Failure:
    detail = "the kernel killed the training because the job's memory was used up"
    return Failure(Outcome.OUT_OF_MEMORY, detail, signature_of("oom-kill"), int(signal_numbers.SIGKILL))


def _is_disk_full(text: str) -> bool:
    return "No space left on device" in text or "Disk quota exceeded" in text


def _shorten(line: str) -> str:
    half = _LONGEST_LINE // 2
    return line if len(line) <= _LONGEST_LINE else line[:half] + line[-half:]

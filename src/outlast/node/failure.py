"""The diagnosis of a failed training from the end of its log: a sentence for the user and a signature.

Two failures with the same signature are the same bug: the frames of the last traceback and the exception's
type are compared, not the message, which may contain addresses, paths and times.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal as signal_numbers
from dataclasses import dataclass

from outlast.node.process import signal_name
from outlast.node.protocol import Outcome

_WINDOW_BYTES = 256 * 1024
_TAIL_LINES = 20
_TAIL_BYTES = 4096

_HEADER = re.compile(
    r"(?P<indent>[\s|+]*)(?:Original |Exception Group )?Traceback \(most recent call last\):\s*$"
)
_FRAME = re.compile(r'\s*File "(?P<file>.+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_EXCEPTION = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
#: torchrun and similar launchers put the rank in front of every line.
_RANK = re.compile(r"^\[?(?:rank)?\d+\]?: ")
_VARYING = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass(frozen=True)
class TracebackFrame:
    file: str
    line: int
    function: str


@dataclass(frozen=True)
class Traceback:
    frames: tuple[TracebackFrame, ...]
    exception: str
    message: str

    def __str__(self) -> str:
        text = f"{self.exception}: {self.message}" if self.message else self.exception
        place = self._place()
        return f"{text} ({os.path.basename(place.file)} line {place.line})" if place else text

    def _place(self) -> TracebackFrame | None:
        """Return the innermost frame in the user's code, where the cause of an error in a library is."""
        own = [frame for frame in self.frames if not _is_library(frame.file)] or self.frames
        return own[-1] if own else None


@dataclass(frozen=True)
class Failure:
    """The outcome of a failed training, a sentence for the user, and the signature."""

    outcome: Outcome
    detail: str
    signature: str


def read_end(path: str, start: int = 0) -> str:
    """Return the end of a log, from the offset `start` at the earliest; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
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
    if oom_killed and (signal == signal_numbers.SIGKILL or code == 128 + signal_numbers.SIGKILL):
        detail = "the kernel killed the training because the job's memory was used up"
        return Failure(Outcome.OUT_OF_MEMORY, detail, signature_of("oom-kill"))
    # A signal is not caused by an exception that was caught and logged some time before.
    if signal is None or signal == signal_numbers.SIGABRT:
        traceback = last_traceback(text)
        if traceback is not None:
            frames = [(os.path.basename(f.file), f.line, f.function) for f in traceback.frames]
            signature = signature_of(*frames, traceback.exception)
            return Failure(_outcome_of(traceback), str(traceback), signature)
    last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
    if signal is not None:
        ended = f"the training was ended by {signal_name(signal)}, which Outlast did not send"
    else:
        ended = f"the training exited with {code}"
    detail = f"{ended}; its last line: {last[:300]}" if last else f"{ended}; it wrote nothing"
    if signal is None and any(_is_disk_full(line) for line in text.splitlines()[-_TAIL_LINES:]):
        return Failure(Outcome.OUT_OF_DISK, f"no space was left on a disk: {detail}", signature_of("disk"))
    return Failure(Outcome.CRASHED, detail, signature_of(code, signal, _VARYING.sub("", last)))


def _is_disk_full(text: str) -> bool:
    return "No space left on device" in text or "Disk quota exceeded" in text


def _outcome_of(traceback: Traceback) -> Outcome:
    text = f"{traceback.exception}: {traceback.message}"
    if traceback.exception.endswith("MemoryError") or "out of memory" in text.lower():
        return Outcome.OUT_OF_MEMORY
    if _is_disk_full(text):
        return Outcome.OUT_OF_DISK
    return Outcome.CRASHED


def last_traceback(text: str) -> Traceback | None:
    """Return the last traceback in a log, or None. Of chained exceptions the last ended the program."""
    lines = [_RANK.sub("", line) for line in text.splitlines()]
    for index in range(len(lines) - 1, -1, -1):
        header = _HEADER.match(lines[index])
        if header:
            return _parse(lines[index + 1 :], len(header.group("indent")))
    return None


def _parse(lines: list[str], indent: int) -> Traceback | None:
    frames: list[TracebackFrame] = []
    for line in lines:
        body = line[indent:]
        frame = _FRAME.match(body)
        if frame:
            frames.append(
                TracebackFrame(frame.group("file"), int(frame.group("line")), frame.group("function") or "")
            )
        elif body and not body[0].isspace():
            found = _EXCEPTION.match(body)
            if found is None:
                return None
            return Traceback(tuple(frames), found.group("type"), (found.group("message") or "")[:300].strip())
    return None


def _is_library(file: str) -> bool:
    return file.startswith("<") or "site-packages" in file or "/lib/python" in file or ".pyz/" in file

"""Why a training failed, read from the end of its log: a sentence for the user and a signature.

Two failures with the same signature are the same bug: the frames of the last traceback and the exception's
type are compared, not its message, which may hold addresses, paths and times.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal as signal_numbers
from dataclasses import dataclass

from outlast.node.process import signal_name
from outlast.node.protocol import Outcome

_WINDOW = 256 * 1024
_TAIL_LINES = 20
_TAIL_BYTES = 4096

_HEADER = re.compile(
    r"(?P<indent>[\s|+]*)(?:Original |Exception Group )?Traceback \(most recent call last\):\s*$"
)
_FRAME = re.compile(r'\s*File "(?P<file>.+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_EXCEPTION = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
#: torchrun and friends put the rank in front of every line.
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
        """The innermost line of the user's: errors surface inside libraries, but are made outside."""
        own = [frame for frame in self.frames if not _is_library(frame.file)] or self.frames
        return own[-1] if own else None


@dataclass(frozen=True)
class Failure:
    outcome: Outcome
    detail: str
    signature: str


def read_end(path: str, start: int = 0) -> str:
    """The last part of a log, but nothing before the offset `start`; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(start, size - _WINDOW, 0))
            return file.read(_WINDOW).decode("utf-8", "replace")
    except OSError:
        return ""


def tail(text: str) -> str:
    last = "\n".join(text.splitlines()[-_TAIL_LINES:]).encode("utf-8", "replace")[-_TAIL_BYTES:]
    return last.decode("utf-8", "ignore")


def signature_of(*parts: object) -> str:
    return hashlib.sha256("\0".join(str(part) for part in parts).encode("utf-8", "replace")).hexdigest()[:16]


def diagnose(text: str, code: int | None, signal: int | None, oom_killed: bool) -> Failure:
    """`oom_killed`: the kernel killed a process of this job for its memory while the training ran."""
    if oom_killed and (signal == signal_numbers.SIGKILL or code == 128 + signal_numbers.SIGKILL):
        detail = "the kernel killed the training because the job's memory was used up"
        return Failure(Outcome.OUT_OF_MEMORY, detail, signature_of("oom-kill"))
    # Death by a signal is not the work of an exception that was caught and logged some time before.
    if signal is None or signal == signal_numbers.SIGABRT:
        traceback = last_traceback(text)
        if traceback is not None:
            frames = [(os.path.basename(f.file), f.line, f.function) for f in traceback.frames]
            mark = signature_of(*frames, traceback.exception)
            return Failure(_outcome_of(traceback), str(traceback), mark)
    last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
    if signal is not None:
        ended = f"the training was ended by {signal_name(signal)}, which Outlast did not send"
    else:
        ended = f"the training exited with {code}"
    detail = f"{ended}; its last line: {last[:300]}" if last else f"{ended}; it wrote nothing"
    if signal is None and any(_full_disk(line) for line in text.splitlines()[-_TAIL_LINES:]):
        return Failure(Outcome.OUT_OF_DISK, f"no space was left on a disk: {detail}", signature_of("disk"))
    return Failure(Outcome.CRASHED, detail, signature_of(code, signal, _VARYING.sub("", last)))


def _full_disk(said: str) -> bool:
    return "No space left on device" in said or "Disk quota exceeded" in said


def _outcome_of(traceback: Traceback) -> Outcome:
    said = f"{traceback.exception}: {traceback.message}"
    if traceback.exception.endswith("MemoryError") or "out of memory" in said.lower():
        return Outcome.OUT_OF_MEMORY
    if _full_disk(said):
        return Outcome.OUT_OF_DISK
    return Outcome.CRASHED


def last_traceback(text: str) -> Traceback | None:
    """The last one printed; of chained exceptions that is the one that ended the program."""
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

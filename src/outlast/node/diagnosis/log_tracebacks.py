"""Parser for the tracebacks in a log that several processes may have written to.

torchrun, srun and mpirun put the rank in front of each line; the lines with the same prefix are one stream,
and are parsed apart from the others. Without a prefix the lines of several tracebacks may be mixed.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

_LONGEST_MESSAGE = 300
#: The most lines of other text within tracebacks that are mixed with one another.
_MAX_FOREIGN_LINES = 20

_HEADER = re.compile(
    r"(?P<indent>[\s|+]*)(?:Original |Exception Group )?Traceback \(most recent call last\):\s*$"
)
_FRAME = re.compile(r'\s*File "(?P<file>.+)", line (?P<line>\d{1,9})(?:, in (?P<function>.+))?$')
_EXCEPTION = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*)|:?\s*)$")
_EXCEPTION_NAME = re.compile(r"(?:Error|Exception|Interrupt|Exit|Group|Iteration)$")
#: What launchers put in front of a line: `[rank1]: ` (PyTorch), `[default1]:` (torchrun --tee), `1: ` (srun
#: --label), `[1] ` (MPICH), `[1,1]<stderr>:` (Open MPI). Two of them may follow one another.
_PREFIX = re.compile(
    r"(?:\[rank:? ?(?P<rank>\d{1,9})\]:? ?"
    r"|\[[A-Za-z_]\w{0,40}?(?P<local>\d{1,9})\]:"
    r"|\[(?:[\w.@-]{1,80},)?(?P<mpi>\d{1,9})\](?:<std(?:out|err)>)?:? ?"
    r"|\s{0,8}(?P<task>\d{1,9}): )"
)
#: What pdsh, which DeepSpeed uses, puts in front of a line: the host's name.
_HOST_PREFIX = re.compile(
    r"(?P<host>[A-Za-z][\w.-]{0,80}): "
    r"(?=(?:Original )?Traceback \(most recent call last\):)"
)


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
    #: True if the frames belong to several tracebacks that were written at the same time.
    mixed: bool = False
    #: The rank whose stream it is in; None if its lines have no prefix with a rank.
    rank: int | None = None
    #: The numbers of its first and last line in the log.
    first: int = 0
    last: int = 0

    def __str__(self) -> str:
        message = self.message[:_LONGEST_MESSAGE].strip()
        text = f"{self.exception}: {message}" if message else self.exception
        place = self._place()
        return f"{text} ({os.path.basename(place.file)} line {place.line})" if place else text

    @property
    def identity(self) -> tuple[object, ...]:
        """The parts that are the same whenever the same error occurs."""
        frames = [(os.path.basename(one.file), one.line, one.function) for one in self.frames]
        return (*(sorted(set(frames)) if self.mixed else frames), self.exception)

    def _place(self) -> TracebackFrame | None:
        """Return the innermost frame in the user's code, where the cause of an error in a library is."""
        own = [frame for frame in self.frames if not _is_library(frame.file)] or self.frames
        return own[-1] if own else None


@dataclass
class _Open:
    """A traceback that is being read, or several that are mixed."""

    indent: int
    first: int
    headers: int = 1
    frames: list[TracebackFrame] = field(default_factory=list)
    exceptions: list[tuple[str, str]] = field(default_factory=list)
    foreign: int = 0


class _Stream:
    """Collects the tracebacks of one stream, line by line."""

    def __init__(self, rank: int | None) -> None:
        self.rank = rank
        self.found: list[Traceback] = []
        self._open: _Open | None = None

    def add(self, number: int, text: str) -> None:
        header = _HEADER.match(text)
        if header:
            if self._open is None:
                self._open = _Open(len(header.group("indent")), number)
            else:
                self._open.headers += 1
        elif self._open is not None:
            self._add_to_open(self._open, number, text)

    def close(self, number: int) -> None:
        """End the traceback that is being read; it counts if one of its exceptions was there."""
        one, self._open = self._open, None
        if one is not None and one.exceptions:
            mixed = one.headers > 1
            frames = tuple(dict.fromkeys(one.frames)) if mixed else tuple(one.frames)
            kind, message = one.exceptions[0]
            self.found.append(Traceback(frames, kind, message, mixed, self.rank, one.first, number))

    def _add_to_open(self, one: _Open, number: int, text: str) -> None:
        body = text[one.indent :]
        frame = _FRAME.match(body)
        if frame:
            one.frames.append(
                TracebackFrame(frame.group("file"), int(frame.group("line")), frame.group("function") or "")
            )
        elif body and not body[0].isspace():
            found = _EXCEPTION.match(body)
            if found and (one.headers == 1 or _EXCEPTION_NAME.search(found.group("type"))):
                one.exceptions.append((found.group("type"), (found.group("message") or "").strip()))
            else:
                one.foreign += 1
            allowed = 0 if one.headers == 1 else _MAX_FOREIGN_LINES
            if len(one.exceptions) == one.headers or one.foreign > allowed:
                self.close(number)


def parse(lines: list[str]) -> list[Traceback]:
    """Return the tracebacks in a log by their last lines; those without an exception are left out."""
    hosts = {found.group("host") for found in map(_HOST_PREFIX.match, lines) if found}
    streams: dict[str, _Stream] = {}
    for number, line in enumerate(lines):
        prefix, rank = _split_prefix(line, hosts)
        streams.setdefault(prefix.rstrip(), _Stream(rank)).add(number, line[len(prefix) :])
    for stream in streams.values():
        stream.close(len(lines) - 1)
    return sorted((one for stream in streams.values() for one in stream.found), key=lambda one: one.last)


def strip_prefix(line: str) -> str:
    """Return a line without what a launcher put in front of it."""
    return line[len(_split_prefix(line, frozenset())[0]) :]


def _split_prefix(line: str, hosts: set[str] | frozenset[str]) -> tuple[str, int | None]:
    """Return the prefix of a line, empty if it has none, and the rank in it."""
    end, rank = 0, None
    host, separator, _ = line.partition(": ")
    if host in hosts:
        end = len(host) + len(separator)
    while True:
        found = _PREFIX.match(line, end)
        if found is None:
            return line[:end], rank
        end = found.end()
        # PyTorch's own prefix has the rank among all processes, and comes last.
        rank = int(next(value for value in found.groups() if value is not None))


def _is_library(file: str) -> bool:
    return file.startswith("<") or "site-packages" in file or "/lib/python" in file or ".pyz/" in file

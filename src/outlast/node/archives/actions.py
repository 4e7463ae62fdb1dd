"""What a reader of archives finds, in words for whoever puts it on disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from outlast.node.archives.sink import Block

_NOTHING = memoryview(b"")


class ActionKind(Enum):
    FOLDER = "make a directory"
    WHOLE = "write a file at once"
    BEGIN = "begin a file"
    KEEP = "begin an archive that is kept as it is until the end"
    MORE = "add to the file"
    END = "close the file"


class ArchiveAction(NamedTuple):
    do: ActionKind
    path: bytes = b""
    executable: bool = False
    content: memoryview = _NOTHING


@dataclass
class ParserOutput:
    """What one block comes to."""

    steps: list[ArchiveAction] = field(default_factory=list)
    #: The bytes that are in no file.
    literals: list[Block] = field(default_factory=list)
    #: Lengths: so many literal bytes, then so many of a file, and again; literal ones are left in the end.
    runs: list[int] = field(default_factory=list)
    literal_rest: int = 0

    def literal(self, data: Block) -> None:
        self.literals.append(data)
        self.literal_rest += len(data)

    def content(self, step: ArchiveAction) -> None:
        self.steps.append(step)
        self.runs += (self.literal_rest, len(step.content))
        self.literal_rest = 0


@dataclass
class Current:
    """The file whose content is next."""

    path: bytes
    executable: bool
    kept: bool
    size: int
    done: int = 0

    @property
    def left(self) -> int:
        return self.size - self.done

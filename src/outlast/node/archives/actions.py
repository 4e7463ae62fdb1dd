"""The actions that archive readers emit and that `writer` carries out on disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from outlast.node.archives.sink import Block

_NO_CONTENT = memoryview(b"")


class ActionKind(Enum):
    MAKE_DIRECTORY = "make a directory"
    WRITE_FILE = "write a file at once"
    BEGIN_FILE = "begin a file"
    BEGIN_ARCHIVE = "begin an archive that is kept as it is until the end"
    APPEND = "add to the file"
    END_FILE = "close the file"


class ArchiveAction(NamedTuple):
    kind: ActionKind
    path: bytes = b""
    executable: bool = False
    content: memoryview = _NO_CONTENT


@dataclass
class ParserOutput:
    """The result of parsing one block: actions for the writer, and the bytes that are in no file."""

    actions: list[ArchiveAction] = field(default_factory=list)
    #: The bytes that are in no file: headers and padding.
    literals: list[Block] = field(default_factory=list)
    #: Lengths in stream order, alternating: literal bytes, file content, literal bytes, file content, …
    runs: list[int] = field(default_factory=list)
    #: The number of literal bytes after the last run.
    trailing_literals: int = 0

    def add_literal(self, data: Block) -> None:
        self.literals.append(data)
        self.trailing_literals += len(data)

    def add_content(self, action: ArchiveAction) -> None:
        """Add an action whose content is the next part of the stream."""
        self.actions.append(action)
        self.runs += (self.trailing_literals, len(action.content))
        self.trailing_literals = 0


@dataclass
class CurrentFile:
    """The file whose content comes next in the stream."""

    path: bytes
    executable: bool
    #: True for a nested archive that is stored as it came: its bytes cannot be rebuilt from its members.
    is_kept: bool
    size: int
    #: Bytes of content that have been parsed.
    done: int = 0

    @property
    def remaining(self) -> int:
        return self.size - self.done

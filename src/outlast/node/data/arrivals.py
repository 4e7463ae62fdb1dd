"""What a connection is asked for, and what it tells: bytes, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

from outlast.node.data.troubles import Trouble

if TYPE_CHECKING:
    from outlast.node.data.receiver import Receiver


@dataclass(frozen=True)
class Span:
    """From `start` up to, not including, `stop`; None: to the end."""

    start: int
    stop: int | None = None


@dataclass(frozen=True)
class Piece:
    offset: int
    data: memoryview
    #: What `data` is a part of, to be given back; None: it is a copy.
    buffer: memoryview | None
    receiver: Receiver
    #: Seconds since its last byte came: in vain was more awaited.
    age: float = 0.0

    @property
    def length(self) -> int:
        return len(self.data)


@dataclass(frozen=True)
class Sized:
    """How large the file is was heard for the first time, and whoever heard it waits until there is room."""


@dataclass(frozen=True)
class Skipped:
    """So many bytes came that were there already, from a source that cannot begin elsewhere."""

    count: int
    receiver: Receiver


@dataclass(frozen=True)
class Failed:
    """The receiver has ended; what is left of its span begins at `at`."""

    receiver: Receiver
    trouble: Trouble
    at: int


@dataclass(frozen=True)
class Ended:
    """The source says that the file ends at `at`."""

    receiver: Receiver
    at: int


@dataclass(frozen=True)
class Left:
    """The receiver has ended: there is nothing more for it to do."""

    receiver: Receiver


@dataclass(frozen=True)
class Broken:
    """The sink would not take a piece, or a source has a defect: for whoever called the fetch."""

    error: BaseException
    #: What the sink would not take.
    piece: Piece | None = None


Arrival = Union[Sized, Skipped, Failed, Ended, Left, Broken]

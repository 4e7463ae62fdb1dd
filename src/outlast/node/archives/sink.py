"""Where the bytes of one item go, in their order: a file, or a tree of files that is unpacked on the way."""

from __future__ import annotations

from typing import Callable, Protocol, Union

#: What passes through the fetch.
Block = Union[bytes, memoryview]


class Sink(Protocol):
    """All of it is called by one thread at a time.

    A sink survives the process: what `write` took is on disk (not necessarily durable against a power cut)
    when it returns, or at most one buffer of it is lost. Nothing is visible under its final name before
    `finish`, so what is visible is whole and checked.
    """

    def resume(self, identity: str, replay: Callable[[Block], None]) -> int:
        """How many bytes, from the first on, an earlier process has left here; each of them goes to `replay`.

        `identity` names the bytes that are wanted. What was left for another identity is removed first.
        """

    def write(self, block: Block) -> None:
        """The next bytes; the block belongs to the caller again afterwards. Raises OSError or BadArchive."""

    def restart(self) -> None:
        """What came so far is not to be had again from where it stops, or was wrong: all of it is removed."""

    def finish(self) -> None:
        """The bytes were all of them, and the right ones: make them visible, durably. Raises BadArchive."""

    def close(self) -> None:
        """Release descriptors; what is unfinished stays for the next process."""


class BadArchive(ValueError):
    """The bytes are the right ones, or nobody can tell, but they cannot be unpacked safely. For the user."""

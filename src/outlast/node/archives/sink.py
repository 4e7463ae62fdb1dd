"""The destination of one item's bytes, in order: a file, or a tree of files that is unpacked on the way."""

from __future__ import annotations

from typing import Callable, Protocol, Union

#: A part of an item's bytes.
Block = Union[bytes, memoryview]


class Sink(Protocol):
    """Receives the bytes of one item. All methods are called by one thread at a time.

    A sink survives its process: when `write` returns, the bytes are on disk (not necessarily durable against
    a power cut), except for one buffer at most. Nothing is visible under its final name before `finish`, so
    whatever is visible is complete and verified.
    """

    def resume(self, identity: str, replay: Callable[[Block], None]) -> int:
        """Return how many bytes, from the first on, an earlier process left; pass all of them to `replay`.

        `identity` names the expected bytes. What was left for another identity is removed first.
        """

    def write(self, block: Block) -> None:
        """Store the next bytes; the caller may reuse the block afterwards. Raises OSError or BadArchive."""

    def restart(self) -> None:
        """Remove all bytes so far: they were wrong, or no source can continue where they end."""

    def finish(self) -> None:
        """Make the item visible, durably: all bytes have come and are verified. Raises BadArchive."""

    def close(self) -> None:
        """Release descriptors; unfinished work stays for the next process."""


class BadArchive(ValueError):
    """An archive that cannot be unpacked or read safely, with a message for the user."""

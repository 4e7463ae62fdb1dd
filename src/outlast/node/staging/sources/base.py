"""One place that has the bytes: an HTTP server, a cache of a federation, a file.

A source is asked for a range and gives a body, which is read into the caller's buffers. Whatever goes wrong
comes as a `Trouble` that names the source; neither a source nor a body retries, waits for better times or
knows of its siblings: that is the fetch's work.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Protocol


@dataclass(frozen=True)
class FileVersion:
    """What a source says of the whole file. None and empty: it does not say."""

    size: int | None = None
    #: A strong ETag; weak ones prove nothing about bytes and are left out.
    etag: str = ""
    modified: str = ""
    #: Hexadecimal, by algorithm.
    digests: Mapping[str, str] = field(default_factory=dict)

    def contradicts(self, other: FileVersion) -> bool:
        """Whether both say something of the file, and not the same."""
        if self.size is not None and other.size is not None and self.size != other.size:
            return True
        return any(other.digests.get(name, value) != value for name, value in self.digests.items())


class Body(Protocol):
    #: Where in the file it begins. 0 although another start was asked for: the source knows no ranges.
    start: int
    version: FileVersion

    def read_into(self, buffer: memoryview) -> int:
        """At least one byte, or 0 at the end that the source had announced.

        Raises Trouble. Never waits longer than the stall limit for the next byte.
        """

    def close(self) -> None:
        """Ends the connection if it is not at its end. Safe to call twice, and from another thread."""


class Source(Protocol):
    #: For people and logs: scheme, host and path; no query, no user, no token.
    name: str

    def open(self, start: int, stop: int | None = None) -> Body:
        """The bytes from `start` up to, not including, `stop` (None: to the end). Raises Trouble."""

    def version(self) -> FileVersion:
        """What it says of the file without sending it, with digests where it has them. Raises Trouble."""

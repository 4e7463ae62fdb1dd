"""The interface of sources: an HTTP server, a federation's cache, or a file that has the bytes.

A source returns a body for a range; the body is read into the caller's buffers. Every failure is raised as a
`SourceError` that names the source. Neither sources nor bodies retry, wait or know of other sources: that is
the job of the fetch.
"""

from __future__ import annotations

from typing import Protocol

from outlast.node.staging.file_version import FileVersion


class Body(Protocol):
    """The bytes of one range of a file, as they arrive."""

    #: Offset of the first byte in the file. 0, although another start was requested, if the source does not
    #: support ranges.
    start: int
    version: FileVersion

    def read_into(self, buffer: memoryview) -> int:
        """Read at least one byte and return the count, or return 0 at the end that the source announced.

        Raises SourceError. Never waits longer than the stall timeout for the next byte.
        """

    def close(self) -> None:
        """Close the connection if it is still open. Safe to call twice, and from another thread."""


class Source(Protocol):
    """A place that has the bytes of an item."""

    #: Display name: scheme, host and path, without query, user and token.
    name: str

    def open(self, start: int, stop: int | None = None) -> Body:
        """Request the bytes from `start` to `stop`, exclusive (None: to the end). Raises SourceError."""

    def version(self) -> FileVersion:
        """Return what the source reports about the file, with digests if it has them. Raises SourceError."""

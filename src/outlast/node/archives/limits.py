"""How much an archive may become: bytes, members, archives in archives, and bytes out of fewer bytes.

An archive is a program for the unpacker, and comes from outside. Without limits a few kilobytes fill a disk,
or use up all the inodes of a file system that others work on too.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlast.node.archives.sink import BadArchive
from outlast.node.archives.tar_headers import shown


@dataclass(frozen=True)
class ArchiveLimits:
    """The defaults leave room for ten times ImageNet (1.3 million files, 150 GB)."""

    #: Of all files together.
    bytes: int = 4 << 40
    #: Files and directories together.
    members: int = 20_000_000
    #: Archives inside archives; 1 is the outermost one.
    depth: int = 4
    #: Bytes that decompression gives for each byte that came in…
    ratio: int = 200
    #: …and what it may give in any case: small archives of very regular data are no bombs.
    free_bytes: int = 1 << 30
    #: Of a whole path. Linux takes 4,096; the target's own path needs some of them.
    path_bytes: int = 3072
    #: Directories inside directories.
    path_parts: int = 64


class LimitAccount:
    """What one archive, with all that is inside of it, has used of its limits. Shared by all its readers."""

    def __init__(self, limits: ArchiveLimits) -> None:
        self.limits = limits
        #: Bytes that came from outside.
        self.taken = 0
        self._members = 0
        self._bytes = 0
        self._decompressed = 0

    def member(self, path: bytes, size: int) -> None:
        """A file of `size` bytes, or a directory, is about to be made. Raises BadArchive."""
        self._members += 1
        self._bytes += size
        if self._members > self.limits.members:
            raise BadArchive(
                "the archive has more than %d members, and nothing of it is kept" % self.limits.members
            )
        if self._bytes > self.limits.bytes:
            raise BadArchive(
                "%s claims %d bytes: the archive's files would have more than %d bytes together, and nothing "
                "of it is kept" % (shown(path), size, self.limits.bytes)
            )

    def decompressed(self, count: int) -> None:
        """`count` bytes came out of a decompressor. Raises BadArchive."""
        self._decompressed += count
        if self._decompressed > max(self.limits.free_bytes, self.limits.ratio * self.taken):
            raise BadArchive(
                "%d compressed bytes became more than %d: it looks made to fill the disk, and nothing of it "
                "is kept" % (self.taken, self._decompressed - count)
            )

    def deeper(self, path: bytes, depth: int) -> None:
        """The archive `path` is inside of `depth` others. Raises BadArchive."""
        if depth + 1 > self.limits.depth:
            raise BadArchive(
                "%s would be archive number %d inside one another, and %d is the limit; with `unpack: yes` "
                "the archives inside stay as they are" % (shown(path), depth + 1, self.limits.depth)
            )

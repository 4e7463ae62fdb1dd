"""Limits on what one archive may expand to: bytes, members, nesting and compression ratio.

An archive comes from outside and is a program for the unpacker. Without limits a few kilobytes could fill a
disk, or use up all inodes of a shared file system.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlast.node.archives.sink import BadArchive
from outlast.node.archives.tar_headers import printable


@dataclass(frozen=True)
class ArchiveLimits:
    """Limits for one archive; the defaults allow ten times ImageNet (1.3 million files, 150 GB)."""

    #: Of all files together.
    bytes: int = 4 << 40
    #: Files and directories together.
    members: int = 20_000_000
    #: Archives inside archives; 1 is the outermost one.
    depth: int = 4
    #: Decompressed bytes for each byte that came in…
    ratio: int = 200
    #: …and decompressed bytes that are always allowed: a small archive of very regular data is no bomb.
    free_bytes: int = 1 << 30
    #: Of all decompressed bytes, those of archives inside archives counted again.
    decompressed: int = 16 << 40
    #: Of a whole path. Linux allows 4,096; the target's own path needs some of them.
    path_bytes: int = 3072
    #: Components of a path.
    path_parts: int = 64


#: Of an archive from a stranger: names for an inode each, and what surrounds the files in a tar.
_MOST_MEMBERS, _FRAMING = 1_000_000, 1 << 20


def limits_for_stranger(most: int) -> ArchiveLimits:
    """Return the limits for an archive from a stranger, whose files may have `most` bytes together."""
    return ArchiveLimits(bytes=most, members=_MOST_MEMBERS, decompressed=2 * most + _FRAMING)


class ArchiveUsage:
    """The share of its limits that one archive has used; all readers of archives inside it add to it."""

    def __init__(self, limits: ArchiveLimits) -> None:
        self.limits = limits
        #: Bytes of the outermost archive that have come in.
        self.bytes_in = 0
        self._members = 0
        self._bytes = 0
        self._decompressed = 0

    def add_member(self, path: bytes, size: int) -> None:
        """Count a file of `size` bytes, or a directory, before it is created. Raises BadArchive."""
        self._members += 1
        self._bytes += size
        if self._members > self.limits.members:
            raise BadArchive(
                "the archive has more than %d members; nothing of it is kept" % self.limits.members
            )
        if self._bytes > self.limits.bytes:
            raise BadArchive(
                "%s claims %d bytes: the archive's files would have more than %d bytes together; nothing of "
                "it is kept" % (printable(path), size, self.limits.bytes)
            )

    def add_decompressed(self, count: int) -> None:
        """Count `count` bytes of decompressor output. Raises BadArchive."""
        self._decompressed += count
        most = max(self.limits.free_bytes, self.limits.ratio * self.bytes_in)
        if self._decompressed > min(most, self.limits.decompressed):
            raise BadArchive(
                "%d compressed bytes expanded to more than %d: the archive looks made to fill the disk; "
                "nothing of it is kept" % (self.bytes_in, self._decompressed - count)
            )

    def check_depth(self, path: bytes, depth: int) -> None:
        """Raise BadArchive if the archive `path`, which is inside `depth` others, is nested too deeply."""
        if depth + 1 > self.limits.depth:
            raise BadArchive(
                "%s is at nesting level %d, and the limit is %d; with `unpack: yes` nested archives stay as "
                "they are" % (printable(path), depth + 1, self.limits.depth)
            )

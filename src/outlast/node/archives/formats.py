"""Archive formats: detected by the first bytes, and recognised by a file's name."""

from __future__ import annotations

from enum import Enum

from outlast.node.archives import tar_headers
from outlast.node.archives.sink import BadArchive


class ArchiveFormat(Enum):
    TAR = "tar"
    ZIP = "zip"
    GZIP = "gzip"
    BZIP2 = "bzip2"
    XZ = "xz"
    ZSTD = "zstd"
    OTHER = "something else"


#: The number of first bytes that `detect` needs.
HEAD_SIZE = tar_headers.BLOCK

_MAGIC = (
    (b"\x1f\x8b", ArchiveFormat.GZIP),
    (b"BZh", ArchiveFormat.BZIP2),
    (b"\xfd7zXZ\0", ArchiveFormat.XZ),
    (b"\x28\xb5\x2f\xfd", ArchiveFormat.ZSTD),
    (b"PK\3\4", ArchiveFormat.ZIP),
    (b"PK\5\6", ArchiveFormat.ZIP),
)
_TAR_SUFFIX = b".tar"
_COMPRESSED_TAR_SUFFIXES = (
    b".tar.gz",
    b".tgz",
    b".tar.bz2",
    b".tbz2",
    b".tbz",
    b".tar.xz",
    b".txz",
    b".tar.zst",
    b".tzst",
)
_ARCHIVE_SUFFIXES = (_TAR_SUFFIX, *_COMPRESSED_TAR_SUFFIXES, b".zip")
_COMPRESSION_SUFFIXES = (b".gz", b".bz2", b".xz", b".zst")


def detect(head: bytes) -> ArchiveFormat:
    """Return the format of a file that begins with `head`: `HEAD_SIZE` bytes, or all if it is shorter."""
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    return ArchiveFormat.TAR if is_tar(head) else ArchiveFormat.OTHER


def is_tar(head: bytes) -> bool:
    """Return True if `head` begins with a valid tar header, or with the end mark of an empty tar."""
    if len(head) < tar_headers.BLOCK:
        return False
    block = head[: tar_headers.BLOCK]
    if block == tar_headers.END:
        return True
    try:
        tar_headers.parse(block)
    except BadArchive:
        return False
    return True


def is_tar_name(path: bytes) -> bool:
    """Return True if the name has the suffix of an uncompressed tar."""
    return _has_suffix(path, (_TAR_SUFFIX,))


def is_archive_name(path: bytes) -> bool:
    """Return True if the name has the suffix of an archive.

    A single compressed file does not count: much software reads `.nii.gz` or `.csv.gz` directly.
    """
    return _has_suffix(path, _ARCHIVE_SUFFIXES)


def _has_suffix(path: bytes, suffixes: tuple[bytes, ...]) -> bool:
    # A name that is only the suffix would leave no name for the directory.
    return path[-8:].lower().endswith(suffixes) and strip_suffix(path).rpartition(b"/")[2] != b""


def strip_suffix(path: bytes) -> bytes:
    """Return the name of an archive's directory, or of a single file after decompression."""
    lower = path.lower()
    for suffix in (*_ARCHIVE_SUFFIXES, *_COMPRESSION_SUFFIXES):
        if lower.endswith(suffix):
            return path[: -len(suffix)]
    return path

"""What an archive is, by its first bytes; and what a file claims to be, by its name."""

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


#: As many first bytes as it takes to tell.
ENOUGH = tar_headers.BLOCK

_MAGIC = (
    (b"\x1f\x8b", ArchiveFormat.GZIP),
    (b"BZh", ArchiveFormat.BZIP2),
    (b"\xfd7zXZ\0", ArchiveFormat.XZ),
    (b"\x28\xb5\x2f\xfd", ArchiveFormat.ZSTD),
    (b"PK\3\4", ArchiveFormat.ZIP),
    (b"PK\5\6", ArchiveFormat.ZIP),
)
_TAR = b".tar"
_COMPRESSED_TARS = (
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
_ARCHIVES = (_TAR, *_COMPRESSED_TARS, b".zip")
_SINGLE = (b".gz", b".bz2", b".xz", b".zst")


def of(head: bytes) -> ArchiveFormat:
    """By its first `ENOUGH` bytes, or all there are."""
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    return ArchiveFormat.TAR if is_tar(head) else ArchiveFormat.OTHER


def is_tar(head: bytes) -> bool:
    if len(head) < tar_headers.BLOCK:
        return False
    block = head[: tar_headers.BLOCK]
    if block == tar_headers.END:
        return True  # a tar without members
    try:
        tar_headers.parse(block)
    except BadArchive:
        return False
    return True


def claims_tar(path: bytes) -> bool:
    """Whether a file is called like a tar as it is, without compression."""
    return _claims(path, (_TAR,))


def claims_archive(path: bytes) -> bool:
    """Whether a file is called like an archive.

    A single file that is compressed is none: much software reads `.nii.gz` or `.csv.gz` as it is.
    """
    return _claims(path, _ARCHIVES)


def _claims(path: bytes, suffixes: tuple[bytes, ...]) -> bool:
    # A name that is nothing but the suffix leaves no name for the directory.
    return path[-8:].lower().endswith(suffixes) and without_suffix(path).rpartition(b"/")[2] != b""


def without_suffix(path: bytes) -> bytes:
    """What an archive's directory, or a single file once it is decompressed, is called."""
    lower = path.lower()
    for suffix in (*_ARCHIVES, *_SINGLE):
        if lower.endswith(suffix):
            return path[: -len(suffix)]
    return path

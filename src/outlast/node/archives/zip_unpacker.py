"""Zip archives. Their table of contents is at the end, so they are unpacked once they are all there.

The standard library reads them; what may be unpacked is decided here, by the same names and limits as for a
tar. Members that share bytes are refused: that is how a small zip becomes enormous without a high ratio in
any one of its members.
"""

from __future__ import annotations

import stat
import struct
import zipfile
import zlib

from outlast.node.archives import formats, safe_names
from outlast.node.archives.actions import ActionKind, ArchiveAction
from outlast.node.archives.sink import BadArchive
from outlast.node.archives.tar_headers import shown
from outlast.node.archives.writer import ArchiveWriter
from outlast.node.files import open_file

_PIECE = 1 << 20
_ENCRYPTED = 0x1
#: Of a member's own header, before its name.
_LOCAL_HEADER = 30
#: What the reading of a broken archive may raise; OSError with no number comes from bzip2.
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, struct.error, ValueError, IndexError, OverflowError)
_UNKNOWN = (NotImplementedError, RuntimeError)


def unpack(file: str, placing: ArchiveWriter) -> None:
    """Raises BadArchive and OSError."""
    try:
        with open_file(file) as raw, zipfile.ZipFile(raw) as archive:
            members = archive.infolist()
            _check_overlaps(members, archive.start_dir)
            for member in members:
                _unpack_member(archive, member, placing)
    except BadArchive:
        raise
    except _BROKEN as error:
        raise BadArchive("the zip is broken: %s" % error) from error
    except _UNKNOWN as error:
        raise BadArchive("the zip needs what this Python does not know: %s" % error) from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise BadArchive("the zip is broken: %s" % error) from error
    except Exception as error:
        # lzma may be missing from this Python, and so may the name of its error.
        if type(error).__name__ != "LZMAError":
            raise
        raise BadArchive("the zip is broken: %s" % error) from error


def _check_overlaps(members: list[zipfile.ZipInfo], end: int) -> None:
    free = 0
    for member in sorted(members, key=lambda member: member.header_offset):
        if member.header_offset < free or member.header_offset + _LOCAL_HEADER > end:
            raise BadArchive("the zip is broken: %s is where something else is" % _shown(member))
        free = member.header_offset + _LOCAL_HEADER + member.compress_size
    if free > end:
        raise BadArchive("the zip is broken: members reach into its table of contents")


def _unpack_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, placing: ArchiveWriter) -> None:
    account, nested = placing.shelf.account, placing.shelf.nested
    # The library cuts names at a NUL and has a separator of its own idea; the original has neither.
    name = member.orig_filename.encode("utf-8", "surrogateescape")
    path = safe_names.clean(name, account.limits)
    mode = member.external_attr >> 16
    account.member(path, member.file_size)
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise BadArchive(
            "%s is a link, a device or a pipe; only files and directories are unpacked" % _shown(member)
        )
    if name.endswith(b"/"):
        if member.file_size:
            raise BadArchive("%s is a directory and has content" % _shown(member))
        placing.run([ArchiveAction(ActionKind.FOLDER, path)])
        return
    if not path or stat.S_ISDIR(mode):
        raise BadArchive("a file has the name or the mode of a directory: %s" % _shown(member))
    if member.flag_bits & _ENCRYPTED:
        raise BadArchive("%s is encrypted, and there is no password; pack it without" % _shown(member))
    keep = nested and member.file_size and formats.claims_archive(path)
    if keep:
        account.deeper(path, placing.depth)
    placing.run([ArchiveAction(ActionKind.KEEP if keep else ActionKind.BEGIN, path, bool(mode & 0o111))])
    with archive.open(member) as content:
        while True:
            placing.shelf.pulse()
            piece = content.read(_PIECE)
            if not piece:
                break
            account.decompressed(len(piece))
            placing.run([ArchiveAction(ActionKind.MORE, content=memoryview(piece))])
    placing.run([ArchiveAction(ActionKind.END)])


def _shown(member: zipfile.ZipInfo) -> str:
    return shown(member.orig_filename.encode("utf-8", "surrogateescape"))

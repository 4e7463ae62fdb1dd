"""Unpacking of zips, once they are complete: their table of contents is at the end.

The standard library reads them, a part of the table of contents at a time; names and limits are checked here,
by the same rules as for a tar. Members that share bytes are refused: that is how a small zip expands
enormously without a high compression ratio in any single member.
"""

from __future__ import annotations

import operator
import stat
import struct
import zipfile
import zlib
from array import array
from typing import BinaryIO

from outlast.node.archives import formats, safe_names, zip_table
from outlast.node.archives.actions import ActionKind, ArchiveAction
from outlast.node.archives.sink import BadArchive
from outlast.node.archives.tar_headers import printable
from outlast.node.archives.writer import ArchiveWriter
from outlast.untrusted_files import open_file

_CHUNK = 1 << 20
_ENCRYPTED = 0x1
#: The size of a member's local header, without its name, in bytes.
_LOCAL_HEADER = 30
#: Raised by the standard library for a broken archive; bzip2 also raises OSError without an errno.
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, struct.error, ValueError, IndexError, OverflowError)
_UNSUPPORTED = (NotImplementedError, RuntimeError)


def unpack(file: str, writer: ArchiveWriter) -> None:
    """Unpack the zip `file` with `writer`. Raises BadArchive and OSError."""
    try:
        with open_file(file) as raw:
            _check_overlaps(raw, writer)
            for archive in zip_table.parts(raw, writer.context.usage.limits.members):
                for member in archive.infolist():
                    _unpack_member(archive, member, writer)
    except BadArchive:
        raise
    except _BROKEN as error:
        raise BadArchive("the zip is broken: %s" % error) from error
    except _UNSUPPORTED as error:
        raise BadArchive("the zip needs a feature that this Python does not support: %s" % error) from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise BadArchive("the zip is broken: %s" % error) from error
    except Exception as error:
        # Compared by name because this Python may have been built without lzma.
        if type(error).__name__ != "LZMAError":
            raise
        raise BadArchive("the zip is broken: %s" % error) from error


def _check_overlaps(file: BinaryIO, writer: ArchiveWriter) -> None:
    """Raise BadArchive if members share bytes, or are not before the table of contents."""
    starts, sizes, end = array("Q"), array("Q"), 0
    for archive in zip_table.parts(file, writer.context.usage.limits.members):
        end = archive.start_dir
        for member in archive.infolist():
            writer.context.pulse()
            if not 0 <= member.header_offset <= end - _LOCAL_HEADER - member.compress_size:
                raise BadArchive("the zip is broken: %s overlaps something else" % _printable_name(member))
            starts.append(member.header_offset)
            sizes.append(member.compress_size)
    previous_end = 0
    # Nearly all archives list their members in order, so that no list of all of them is needed.
    in_order = all(map(operator.le, starts, starts[1:]))
    for index in range(len(starts)) if in_order else sorted(range(len(starts)), key=starts.__getitem__):
        if starts[index] < previous_end:
            raise BadArchive(
                "the zip is broken: the member at byte %d overlaps something else" % starts[index]
            )
        previous_end = starts[index] + _LOCAL_HEADER + sizes[index]


def _unpack_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, writer: ArchiveWriter) -> None:
    usage, nested = writer.context.usage, writer.context.nested
    # The library truncates `filename` at a NUL and replaces separators; `orig_filename` is unchanged.
    name = member.orig_filename.encode("utf-8", "surrogateescape")
    path = safe_names.clean(name, usage.limits)
    mode = member.external_attr >> 16
    usage.add_member(path, member.file_size)
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise BadArchive(
            "%s is a link, a device or a pipe; only files and directories are unpacked"
            % _printable_name(member)
        )
    if name.endswith(b"/"):
        if member.file_size:
            raise BadArchive("%s is a directory with content" % _printable_name(member))
        writer.apply([ArchiveAction(ActionKind.MAKE_DIRECTORY, path)])
        return
    if not path or stat.S_ISDIR(mode):
        raise BadArchive("a file has the name or the mode of a directory: %s" % _printable_name(member))
    if member.flag_bits & _ENCRYPTED:
        raise BadArchive("%s is encrypted; pack it without a password" % _printable_name(member))
    is_kept = nested and member.file_size and formats.is_archive_name(path)
    if is_kept:
        usage.check_depth(path, writer.depth)
    begin = ActionKind.BEGIN_ARCHIVE if is_kept else ActionKind.BEGIN_FILE
    writer.apply([ArchiveAction(begin, path, bool(mode & 0o111))])
    with archive.open(member) as content:
        while True:
            writer.context.pulse()
            chunk = content.read(_CHUNK)
            if not chunk:
                break
            usage.add_decompressed(len(chunk))
            writer.apply([ArchiveAction(ActionKind.APPEND, content=memoryview(chunk))])
    writer.apply([ArchiveAction(ActionKind.END_FILE)])


def _printable_name(member: zipfile.ZipInfo) -> str:
    return printable(member.orig_filename.encode("utf-8", "surrogateescape"))

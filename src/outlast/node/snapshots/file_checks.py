"""Checks of checkpoint files that were cut short or overwritten in part; no content is executed or loaded.

A kill in the middle of a write leaves the first part of a file. Formats that tell their own size or have
checksums show it: zip (`torch.save`, `.npz`, `.keras`), safetensors, `.npy`, HDF5. All others count as whole.
"""

from __future__ import annotations

import ast
import struct
import zipfile
from typing import BinaryIO, Callable

from outlast.node.checkpoint_formats import ENDINGS, HDF5, NPY, ZIP
from outlast.untrusted_files import parse_json

_ZIP_ENDINGS = (".npz", ".keras")
_HDF5_ENDINGS = (".h5", ".hdf5")
#: The superblock of HDF5 begins at 0, or at a power of two from 512 on.
_HDF5_PLACES = (0, 512, 1024, 2048, 4096)
_BLOCK_BYTES = 1 << 20
#: A table of contents, or a header, of more bytes than this is not read: its file counts as whole.
_MOST_TABLE = 64 << 20
#: The end of a zip file with the longest comment.
_ZIP_TAIL = 65_536 + 22 + 20
#: Compressed members are checked up to this many bytes, and up to this many times the size of the file.
_MOST_INFLATED = 1 << 30
_MOST_RATIO = 20


def find_defect(file: BinaryIO, name: str, size: int, pulse: Callable[[], None]) -> str | None:
    """Return what is wrong with a checkpoint file; empty if it is whole, None if that cannot be checked.

    Raises OSError, and whatever `pulse` raises.
    """
    lower = name.lower()
    if size == 0:
        return "it is empty" if lower.endswith(ENDINGS) else None
    file.seek(0)
    start = file.read(8)
    if start.startswith(ZIP) or lower.endswith(_ZIP_ENDINGS):
        return _check_zip(file, size, pulse)
    if lower.endswith(".safetensors"):
        return _check_safetensors(file, size)
    if start.startswith(NPY) or (lower.endswith(".npy") and NPY.startswith(start)):
        return _check_npy(file, size)
    if start == HDF5 or lower.endswith(_HDF5_ENDINGS):
        return _check_hdf5(file, size)
    if size < len(ZIP) and ZIP.startswith(start) and lower.endswith(ENDINGS):
        return "it ends after %d bytes" % size
    return None


def _check_zip(file: BinaryIO, size: int, pulse: Callable[[], None]) -> str | None:
    file.seek(max(0, size - _ZIP_TAIL))
    tail = file.read(_ZIP_TAIL)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < 22:
        return "its table of contents is missing"
    if _table_bytes(tail, at) > _MOST_TABLE:
        return None
    try:
        with zipfile.ZipFile(file) as archive:
            return _check_members(archive, size, pulse)
    except (zipfile.BadZipFile, EOFError, ValueError, struct.error, IndexError) as error:
        return "its table of contents is damaged: %s" % error
    except (NotImplementedError, RuntimeError):
        return None  # encrypted, or a method that this Python does not know


def _table_bytes(tail: bytes, at: int) -> int:
    """Return the size of the table of contents; `at` is where the record of the end begins in `tail`."""
    wide = tail.rfind(b"PK\x06\x06", 0, at)
    if wide >= 0 and at - wide >= 56:
        return int(struct.unpack_from("<Q", tail, wide + 40)[0])
    return int(struct.unpack_from("<I", tail, at + 12)[0])


def _check_members(archive: zipfile.ZipFile, size: int, pulse: Callable[[], None]) -> str | None:
    """Compare all members with their checksums. Writers may leave out the checksums of all stored members."""
    budget = max(_MOST_INFLATED, _MOST_RATIO * size)
    matching, damaged = 0, ""
    for member in archive.infolist():
        stored = member.compress_type == zipfile.ZIP_STORED
        budget -= 0 if stored else member.file_size
        if member.header_offset + member.compress_size > size or (stored and member.file_size > size):
            return "the member %s ends outside of the file" % member.filename[:100]
        if not stored and budget < 0:
            continue
        try:
            with archive.open(member) as content:
                while content.read(_BLOCK_BYTES):
                    pulse()
            matching += member.file_size > 0
        except zipfile.BadZipFile as error:
            if not stored or "CRC" not in str(error):
                raise
            damaged = damaged or "the checksum of the member %s is wrong" % member.filename[:100]
        except Exception as error:
            if type(error).__module__ not in ("zlib", "_bz2", "_lzma", "lzma"):
                raise
            return "the member %s is damaged" % member.filename[:100]
    return damaged if matching else None


def _check_safetensors(file: BinaryIO, size: int) -> str | None:
    file.seek(0)
    start = file.read(8)
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
    if 8 + length > size:
        return "its header is cut short"
    if length > _MOST_TABLE:
        return None
    try:
        header = parse_json(file.read(length))
        ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return "its header is damaged"
    expected = 8 + length + max(ends, default=0)
    return "" if size >= expected else "it has %d of %d bytes" % (size, expected)


def _check_npy(file: BinaryIO, size: int) -> str | None:
    file.seek(6)
    start = file.read(6)
    if len(start) < 6:
        return "its header is cut short"
    wide = start[0] >= 2
    length, at = (struct.unpack_from("<I", start, 2)[0], 12) if wide else (start[2] + 256 * start[3], 10)
    if length > 1 << 20:
        return None
    if at + length > size:
        return "its header is cut short"
    file.seek(at)
    try:
        header = ast.literal_eval(file.read(length).decode("latin-1"))
        items = 1
        for extent in header["shape"]:
            items *= int(extent)
        kind = header["descr"]
        if not isinstance(kind, str) or kind[1:2] not in ("f", "i", "u", "c", "b", "V", "S"):
            return None  # a compound type, or objects
        expected = at + length + items * int(kind[2:])
    except (ValueError, TypeError, KeyError, SyntaxError, MemoryError, RecursionError):
        return None
    return "" if size >= expected else "it has %d of %d bytes" % (size, expected)


def _check_hdf5(file: BinaryIO, size: int) -> str | None:
    for place in _HDF5_PLACES:
        file.seek(place)
        block = file.read(64)
        if block.startswith(HDF5):
            break
    else:
        return "its superblock is missing"
    if len(block) < 64:
        return "its superblock is cut short"
    version = block[8]
    # Sizes of addresses, and where the addresses begin: base, free space or extension, end of the file.
    width, at = (block[13], 24 + 4 * (version == 1)) if version < 2 else (block[9], 12)
    if version > 3 or width not in (4, 8):
        return None
    base = int.from_bytes(block[at : at + width], "little")
    end = int.from_bytes(block[at + 2 * width : at + 3 * width], "little")
    if end == 2 ** (8 * width) - 1:
        return "it was not closed"
    # Files before version 2 count the end from the start of the file.
    return "" if size >= end or base > size else "it has %d of %d bytes" % (size, end)

"""Archives for tests, from a dictionary of names and contents."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

Files = Mapping[str, "bytes | Files"]


def tar(files: Files, form: int = tarfile.USTAR_FORMAT) -> bytes:
    """What is a dictionary itself becomes a tar inside; a name that ends in "/", a directory."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name, content in files.items():
            data = content if isinstance(content, bytes) else tar(content, form)
            info = tarfile.TarInfo(name.rstrip("/") if name != "/" else name)
            info.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def header(name: str, size: int = 0, kind: bytes = b"0", link: str = "") -> bytes:
    """One header block, whatever it claims; sizes beyond eight gigabytes are written in base 256."""
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = size, kind, link
    return info.tobuf(tarfile.GNU_FORMAT)


def padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 512)


def rehead(block: bytes, place: int, value: bytes) -> bytes:
    """A header with `value` written at `place`, and the checksum that makes it a header again."""
    changed = bytearray(block)
    changed[place : place + len(value)] = value
    changed[148:156] = b" " * 8
    changed[148:156] = b"%06o\0 " % sum(changed)
    return bytes(changed)


def zipped(files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def put(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path

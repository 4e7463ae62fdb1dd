"""Builds the zipapp for compute nodes: the node program and what training scripts import."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from functools import lru_cache
from pathlib import Path

from outlast.untrusted_files import create_file

_SHEBANG = b"#!/usr/bin/env python3\n"
_MAIN = b"""\
import sys

if sys.version_info < (3, 8):
    sys.exit("outlast: this node's python3 is %d.%d; Python 3.8 or later is needed" % sys.version_info[:2])

from outlast.node.main import main

sys.exit(main(sys.argv[1:]))
"""
#: The oldest time that a zip archive can hold; a constant, so that the same sources give the same bytes.
_TIME = (1980, 1, 1, 0, 0, 0)


def build(target: Path) -> None:
    """Write the zipapp to `target` atomically: a job may be reading an existing one."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with create_file(temporary) as file:
            file.write(_content())
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o755)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def digest() -> str:
    """Return the SHA-256 of the file that `build` writes."""
    return hashlib.sha256(_content()).hexdigest()


@lru_cache(maxsize=1)
def _content() -> bytes:
    package = Path(__file__).parents[1]
    sources = [package / "__init__.py", package / "untrusted_files.py"]
    for room in ("data", "frameworks", "node", "training"):
        sources += (package / room).rglob("*.py")
    files = {f"outlast/{source.relative_to(package).as_posix()}": source.read_bytes() for source in sources}
    files["__main__.py"] = _MAIN
    buffer = io.BytesIO()
    buffer.write(_SHEBANG)
    # Stored, not deflated: the bytes do not depend on the version of zlib, and imports are faster.
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            info = zipfile.ZipInfo(name, _TIME)
            info.external_attr = 0o644 << 16
            info.create_system = 3  # Unix, on every platform
            archive.writestr(info, files[name])
    return buffer.getvalue()

"""Archives for tests, built from a dictionary of names and contents."""

from __future__ import annotations

import argparse
import io
import random
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import pytest

from outlast.node.archives import writeback

Files = Mapping[str, "bytes | Files"]


def tar(files: Files, form: int = tarfile.USTAR_FORMAT) -> bytes:
    """Return a tar of these files; a dictionary becomes an inner tar, a name that ends in "/" a directory."""
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
    """Return one header block, valid or not; sizes beyond eight gigabytes are written in base 256."""
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = size, kind, link
    return info.tobuf(tarfile.GNU_FORMAT)


def padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 512)


def patch_header(block: bytes, offset: int, value: bytes) -> bytes:
    """Return a header with `value` written at `offset` and a valid checksum."""
    changed = bytearray(block)
    changed[offset : offset + len(value)] = value
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
    """Write a file and return its path."""
    path.write_bytes(content)
    return path


def class_names(count: int) -> list[str]:
    return ["n%08d" % (1440764 + 97 * number) for number in range(count)]


def contents(seed: int, files: int, size: int) -> Iterator[bytes]:
    """Yield incompressible bytes, with lengths around `size`."""
    rng = random.Random(seed)
    pool = rng.randbytes(4 * size)
    for _ in range(files):
        length = rng.randrange(size // 2, size + size // 2)
        start = rng.randrange(len(pool) - length)
        yield pool[start : start + length]


def nested_tar(target: BinaryIO, files: int, classes: int, size: int = 10_000, seed: int = 1) -> int:
    """Write a tar with one tar per class, like ImageNet's; return the total size of the files in it."""
    total = 0
    content = contents(seed, files, size)
    with tarfile.open(fileobj=target, mode="w", format=tarfile.GNU_FORMAT) as outer:
        for number, name in enumerate(class_names(classes)):
            inner = io.BytesIO()
            with tarfile.open(fileobj=inner, mode="w", format=tarfile.GNU_FORMAT) as archive:
                for index in range(files * number // classes, files * (number + 1) // classes):
                    data = next(content)
                    member = tarfile.TarInfo("%s_%d.JPEG" % (name, index))
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
                    total += len(data)
            member = tarfile.TarInfo("%s.tar" % name)
            member.size = inner.tell()
            inner.seek(0)
            outer.addfile(member, inner)
    return total


def tar_of(files: dict[str, bytes], format: int = tarfile.PAX_FORMAT) -> bytes:
    """Return a tar of these files; a name that ends in a slash is a directory."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name.rstrip("/"))
            if name.endswith("/"):
                member.type, member.mode = tarfile.DIRTYPE, 0o755
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def zip_of(files: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def snapshot(root: Path) -> dict[str, bytes | None]:
    """Return everything below `root`, hidden or not: the content of files, None for directories."""
    return {
        str(path.relative_to(root)): None if path.is_dir() and not path.is_symlink() else path.read_bytes()
        for path in sorted(root.rglob("*"))
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--size", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with options.target.open("wb") as file:
        total = nested_tar(file, options.files, options.classes, options.size, options.seed)
    print("%d files, %d bytes, %d classes" % (options.files, total, options.classes))
    return 0


if __name__ == "__main__":
    sys.exit(main())


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace syncs, which are slow on a busy disk; the list has the paths that would be synced."""
    synced: list[str] = []
    monkeypatch.setattr(writeback, "sync_file_system", lambda descriptor, path: synced.append(path))
    return synced

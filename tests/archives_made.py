"""Archives made from a seed, for tests and benchmarks: the shape of ImageNet, a tar of one tar per class.

`python tests/archives_made.py --files 50000 --classes 100 FILE` writes one and prints what is in it.
"""

from __future__ import annotations

import argparse
import io
import random
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def class_names(count: int) -> list[str]:
    return ["n%08d" % (1440764 + 97 * number) for number in range(count)]


def contents(seed: int, files: int, size: int) -> Iterator[bytes]:
    """Bytes that do not compress, of lengths around `size`."""
    rng = random.Random(seed)
    pool = rng.randbytes(4 * size)
    for _ in range(files):
        length = rng.randrange(size // 2, size + size // 2)
        start = rng.randrange(len(pool) - length)
        yield pool[start : start + length]


def nested_tar(target: BinaryIO, files: int, classes: int, size: int = 10_000, seed: int = 1) -> int:
    """A tar with one tar per class, as ImageNet comes; the bytes of the files in it."""
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
    """A tar of these files; a name that ends in a slash is a directory."""
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
    """Everything below `root`, hidden or not: the content of files, None for directories."""
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

"""The archive with the code of a job: one tar file, with the same bytes for the same files."""

from __future__ import annotations

import hashlib
import os
import tarfile
from typing import BinaryIO, Callable, Iterable, Iterator

from outlast.node.files import read_blocks
from outlast.node.pulse import no_pulse
from outlast.untrusted_files import open_file

_EXCLUDED = frozenset({"__pycache__", ".git", ".venv"})


class BadCodeArchive(ValueError):
    """The archive is not the one that was packed, or contains something that is not allowed."""


def pack(root: str | os.PathLike[str], names: Iterable[str], target: str | os.PathLike[str]) -> str:
    """Write the files and folders `names` below `root` into the archive `target`. Return its SHA-256.

    Raises ValueError with a text for the user if a name does not exist or leads out of `root`.
    """
    top, goal = os.path.realpath(root), os.path.realpath(target)
    found: dict[str, str] = {}
    for name in names:
        clean = os.path.normpath(name)
        if os.path.isabs(name) or clean.split(os.sep)[0] == os.pardir:
            raise ValueError(f"{name!r} leads out of {top}; only files below it can be packed for a job")
        for inside, path in _walk(top, clean, ()):
            if path != goal:
                found[inside] = path
    temporary = f"{goal}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w+b") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
                for inside in sorted(found):
                    _add(archive, inside, found[inside])
            file.flush()
            os.fsync(file.fileno())
            digest = _sha256(file)
        os.replace(temporary, goal)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    return digest


def size(root: str | os.PathLike[str], names: Iterable[str]) -> int:
    """Return the number of bytes that `pack` would write. Raises ValueError as `pack` does."""
    top = os.path.realpath(root)
    found = {inside: path for name in names for inside, path in _walk(top, os.path.normpath(name), ())}
    return sum(os.path.getsize(path) for path in found.values() if os.path.isfile(path))


def _walk(top: str, name: str, above: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield name and real path of a file, or of a folder and all in it. Raises ValueError."""
    path = os.path.realpath(os.path.join(top, name))
    if path != top and not path.startswith(os.path.join(top, "")):
        raise ValueError(f"{name!r} is a link to {path}, which is outside of {top}; copy it there instead")
    if os.path.isdir(path):
        if path in above:
            raise ValueError(f"{name!r} is a link to a folder that contains it")
        yield name, path
        for entry in sorted(os.listdir(path)):
            if entry not in _EXCLUDED:
                yield from _walk(top, os.path.normpath(os.path.join(name, entry)), (*above, path))
    elif os.path.isfile(path):
        yield name, path
    elif os.path.lexists(os.path.join(top, name)) and os.path.exists(path):
        raise ValueError(f"{name!r} is neither a file nor a folder; it cannot be packed for a job")
    else:
        raise ValueError(f"{name!r}: no such file or folder in {top}")


def _add(archive: tarfile.TarFile, inside: str, path: str) -> None:
    if inside == os.curdir:
        return
    info = tarfile.TarInfo(inside.replace(os.sep, "/"))
    if os.path.isdir(path):
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(info)
        return
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        info.size = status.st_size
        info.mode = 0o755 if status.st_mode & 0o100 else 0o644
        archive.addfile(info, file)


def unpack(source: str, sha256: str | None, target: str, pulse: Callable[[], None] = no_pulse) -> None:
    """Verify the archive and unpack it into the existing directory `target`.

    Raises BadCodeArchive or OSError.
    """
    with open_file(source) as file:
        if sha256 is not None:
            found = _sha256(file, pulse)
            if found != sha256:
                raise BadCodeArchive(
                    f"{source} is not what was packed: SHA-256 {found[:12]}…, not {sha256[:12]}…"
                )
        file.seek(0)
        try:
            with tarfile.open(fileobj=file, mode="r:") as archive:
                for member in archive:
                    _extract(archive, member, target, pulse)
        except tarfile.TarError as error:
            raise BadCodeArchive(f"{source} is not a readable tar archive: {error}") from error


def _extract(
    archive: tarfile.TarFile, member: tarfile.TarInfo, target: str, pulse: Callable[[], None]
) -> None:
    parts = member.name.split("/")
    if member.name.startswith("/") or os.pardir in parts or "\0" in member.name:
        raise BadCodeArchive(
            f"the archive contains the name {member.name!r}, which leads out of the job's directory"
        )
    path = os.path.join(target, *parts)
    if member.isdir():
        os.makedirs(path, exist_ok=True)
        return
    content = archive.extractfile(member) if member.isreg() else None
    if content is None:
        raise BadCodeArchive(f"the archive contains {member.name!r}, which is neither a file nor a directory")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    mode = 0o777 if member.mode & 0o100 else 0o666
    # O_EXCL: an entry must not write through a file that another one has created.
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode)
    with open(descriptor, "wb") as file:
        for block in read_blocks(content, pulse):
            file.write(block)


def _sha256(file: BinaryIO, pulse: Callable[[], None] = no_pulse) -> str:
    digest = hashlib.sha256()
    file.seek(0)
    for block in read_blocks(file, pulse):
        digest.update(block)
    return digest.hexdigest()

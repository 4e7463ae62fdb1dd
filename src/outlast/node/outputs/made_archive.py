"""An archive of what a training made in its working directory, where that does not outlive the job.

It is complete when it has its name, and never changes. Its content comes from the training: it is unpacked
only below the working directory of the same run, and no name or link in it leads out of that.
"""

from __future__ import annotations

import contextlib
import os
import tarfile
from typing import Callable, Iterable

from outlast.node.files import make_tree_accessible, read_blocks
from outlast.node.outputs.collection import LeftFile
from outlast.node.outputs.made_files import EARLIER, CodeListing, find_made, inner_link
from outlast.node.outputs.output_tree import is_below
from outlast.node.pulse import Interrupted, no_pulse
from outlast.untrusted_files import create_file, is_plain_name, open_below, open_file

NAME = "made.tar"
#: The key of the header with the SHA-256 of the code that the training was started with.
_CODE = "OUTLAST.code"


def pack(
    working: str,
    code: CodeListing,
    target: str,
    limit: int | None,
    named: Iterable[str] = (),
    pulse: Callable[[], None] = no_pulse,
) -> list[LeftFile]:
    """Write what the training made into the archive `target`; return the files that are not in it.

    The named outputs come first, then the other files, the smallest first, as long as they have `limit` bytes
    together. If `pulse` interrupts, the archive ends before the file at hand. Raises OSError.
    """
    make_tree_accessible(working)
    prefixes = tuple(os.path.join(os.path.normpath(name), "") for name in named)
    files: list[tuple[bool, int, str]] = []
    temporary = target + ".tmp"
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(create_file(temporary))
        archive = stack.enter_context(
            tarfile.open(
                fileobj=file, mode="w", format=tarfile.PAX_FORMAT, pax_headers={_CODE: code.sha256 or "none"}
            )
        )
        for entry in find_made(working, code):
            if entry.is_file:
                is_other = not os.path.join(entry.path, "").startswith(prefixes)
                files.append((is_other, entry.status.st_size, entry.path))
                continue
            info = tarfile.TarInfo(entry.path)
            info.type = tarfile.DIRTYPE if entry.is_directory else tarfile.SYMTYPE
            info.linkname = "" if entry.is_directory else inner_link(entry, working)
            archive.addfile(info)
        left, total = [], 0
        interrupted = False
        for is_other, size, path in sorted(files):
            total += size if is_other else 0
            if interrupted or (is_other and limit is not None and total > limit):
                left.append(LeftFile(path, size))
                continue
            place = archive.offset
            try:
                _add(archive, working, path, pulse)
            except FileNotFoundError:
                continue  # a temporary file of a process that is still alive
            except (OSError, Interrupted) as error:
                interrupted = isinstance(error, Interrupted)
                left.append(LeftFile(path, size))
                file.seek(place)
                file.truncate()
                archive.offset = place
    os.replace(temporary, target)
    return left


class MadeSnapshot:
    """The archive of a working directory in use, written anew only if something has changed."""

    def __init__(
        self, working: str, code: CodeListing, target: str, limit: int, named: Iterable[str] = ()
    ) -> None:
        self._working = working
        self._code = code
        self._target = target
        self._limit = limit
        self._named = tuple(named)
        self._state: frozenset[tuple[str, int, int]] = frozenset()

    def pack(self) -> str | None:
        """Return the path of the archive; None if the training has made nothing. Raises OSError."""
        found = find_made(self._working, self._code)
        state = frozenset((one.path, one.status.st_size, one.status.st_mtime_ns) for one in found)
        if state != self._state:
            pack(self._working, self._code, self._target, self._limit, self._named)
            self._state = state
        return self._target if state else None


def _add(archive: tarfile.TarFile, working: str, path: str, pulse: Callable[[], None]) -> None:
    with open_below(working, path) as content:
        status = os.fstat(content.fileno())
        info = tarfile.TarInfo(path)
        info.size, info.mode, info.mtime = status.st_size, status.st_mode & 0o777, int(status.st_mtime)
        archive.addfile(info, _Pulsing(content, pulse))  # type: ignore[arg-type]


class _Pulsing:
    """A file that calls the pulse before each read."""

    def __init__(self, file: object, pulse: Callable[[], None]) -> None:
        self._read = file.read  # type: ignore[attr-defined]
        self._pulse = pulse

    def read(self, size: int) -> bytes:
        self._pulse()
        content: bytes = self._read(size)
        return content


def unpack(source: str, working: str, code: CodeListing, pulse: Callable[[], None] = no_pulse) -> list[str]:
    """Unpack an archive into a working directory that has the code; return a warning for each failure.

    If the code has changed since, its files take precedence over changed ones of the same name, which get the
    ending `.earlier`. Raises OSError for errors of the file system.
    """
    warnings = []
    links = []
    try:
        with open_file(source) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            is_other_code = archive.pax_headers.get(_CODE) != (code.sha256 or "none")
            for member in archive:
                if not is_plain_name(member.name):
                    warnings.append(
                        f"{member.name[:200]!r} was not brought back: it leads out of its directory"
                    )
                elif member.issym():
                    links.append((member.name, member.linkname))
                else:
                    try:
                        ending = EARLIER if is_other_code and member.name in code.files else ""
                        _extract(archive, member, os.path.join(working, member.name + ending), pulse)
                    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
                        warnings.append(f"{member.name} was not brought back: {error.strerror}")
    except tarfile.TarError as error:
        warnings.append(f"not all files of the earlier attempt could be brought back: {error}")
    # Last: nothing is unpacked through a link.
    for name, goal in links:
        path = os.path.join(working, name)
        with contextlib.suppress(OSError):  # the code has a file or directory of this name
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if is_below(os.path.realpath(os.path.dirname(path)) + "/", os.path.realpath(working) + "/"):
                os.symlink(goal, path)
    return warnings


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str, pulse: Callable[[], None]) -> None:
    if member.isdir():
        os.makedirs(path, exist_ok=True)
        return
    content = archive.extractfile(member) if member.isreg() else None
    if content is None:
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with create_file(path) as file:
        for block in read_blocks(content, pulse):
            file.write(block)
        os.fchmod(file.fileno(), (member.mode & 0o777) | 0o600)
        os.utime(file.fileno(), (member.mtime, member.mtime))

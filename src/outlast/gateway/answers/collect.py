"""The files of a finished run's result, with sizes and digests. A training wrote them: nothing is trusted."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from outlast.filesystem import is_gone
from outlast.gateway.answers.errors import ResultChanged, UploadError
from outlast.gateway.requests import FailureCode, RequestFailure, ResultFile
from outlast.node.pulse import no_pulse
from outlast.text import counted, printable
from outlast.units import show_size
from outlast.untrusted_files import directory_below, is_plain_name, open_below, open_file, walk

#: The most files of one answer, which are all open at once while it is encoded, and the most bytes.
MOST_FILES = 200
MOST_BYTES = 200 * 10**9
#: The longest name of a file in an answer, in bytes.
_LONGEST_NAME = 1000
_BLOCK = 1 << 20
#: The file is not there, or it is something else than a regular file that can be read. Everything else is an
#: error of the file system, which may end.
_MISSING = frozenset({errno.ENOENT})
_UNUSABLE = frozenset(
    {
        *(errno.ELOOP, errno.ENOTDIR, errno.EINVAL, errno.ENXIO, errno.EISDIR, errno.ENODEV),
        *(errno.EACCES, errno.EPERM, errno.ENAMETOOLONG),
    }
)


class _Unfit(Exception):
    """The results cannot be sent as they are."""

    def __init__(self, code: FailureCode, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.failure = RequestFailure(code, message, advice)


def collect(
    results: Path, answer: Mapping[str, str], pulse: Callable[[], None] = no_pulse
) -> tuple[ResultFile, ...] | RequestFailure:
    """Return the files of an answer, or why there is none. Raise OSError if they cannot be read now.

    `results` is the run's directory in `results/`, `answer` as in `Template`. `pulse` is called for each
    block and may raise.
    """
    try:
        wanted = [(name, *_required(path)) for name, path in answer.items()] or _all_files(results, pulse)
        return _collect(results, wanted, pulse)
    except _Unfit as error:
        return error.failure


@contextmanager
def open_result(results: Path, file: ResultFile) -> Iterator[BinaryIO]:
    """Open a collected file again, under the same precautions. Raise ResultChanged, or OSError."""
    relative = file.path.relative_to(results).as_posix()
    try:
        with open_below(results.parent, f"{results.name}/{relative}") as stream:
            if os.fstat(stream.fileno()).st_size != file.size:
                raise ResultChanged(file.name)
            yield stream
    except OSError as error:
        if error.errno in _MISSING | _UNUSABLE:
            raise ResultChanged(file.name) from None
        raise


def checked_blocks(
    stream: BinaryIO, file: ResultFile, pulse: Callable[[], None] = no_pulse
) -> Iterator[bytes]:
    """Yield the file's content in blocks, the last one only if all of it has the digest of `file`.

    Raise ResultChanged if it does not, and UploadError for errors of the file system.
    """
    digest, left = hashlib.sha256(), file.size
    while left:
        pulse()
        try:
            block = stream.read(min(_BLOCK, left))
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise UploadError(True, f"the file for {file.name!r} cannot be read: {reason.lower()}") from None
        digest.update(block)
        left -= len(block)
        if not block or (not left and digest.hexdigest() != file.sha256):
            raise ResultChanged(file.name)
        yield block


def read_result(results: Path, file: ResultFile, pulse: Callable[[], None] = no_pulse) -> bytes:
    """Return the content of a collected file. Raise UploadError (ResultChanged), or OSError."""
    with open_result(results, file) as stream:
        return b"".join(checked_blocks(stream, file, pulse))


def _required(path: str) -> tuple[str, bool]:
    return path.removesuffix("?"), not path.endswith("?")


def _all_files(results: Path, pulse: Callable[[], None]) -> list[tuple[str, str, bool]]:
    """Return all regular files below `results`, hidden ones too; links and everything else are left out."""
    found: list[tuple[str, str, bool]] = []
    entries = 0
    try:
        with directory_below(results.parent, results.name) as top:
            for entry in walk(top, pulse):
                entries += 1
                if entries > 10 * MOST_FILES or len(found) >= MOST_FILES:
                    raise _too_many()
                if entry.is_file:
                    found.append((_shown_name(entry.path), entry.path, True))
    except OSError as error:
        raise _for_directory(error, results) from None
    if not found:
        raise _unusable("the results", "contain no file")
    return found


def _shown_name(path: str) -> str:
    """Return the name of a file in an answer: its path, if that is text."""
    try:
        encoded = path.encode("utf-8")
    except UnicodeEncodeError:
        raise _unusable("the results", "contain a file whose name is not UTF-8") from None
    if printable(path) != path or len(encoded) > _LONGEST_NAME:
        raise _unusable("the results", "contain a file whose name has control characters or is too long")
    return path


def _collect(
    results: Path, wanted: list[tuple[str, str, bool]], pulse: Callable[[], None]
) -> tuple[ResultFile, ...]:
    if len(wanted) > MOST_FILES:
        raise _too_many()
    left, found = MOST_BYTES, []
    try:
        with directory_below(results.parent, results.name) as top:
            for name, path, required in wanted:
                file = _measure(top, results, name, path, required, left, pulse)
                if file is not None:
                    found.append(file)
                    left -= file.size
    except OSError as error:
        raise _for_directory(error, results) from None
    if not found:
        raise _unusable("the results", "contain none of the files of an answer")
    return tuple(found)


def _measure(
    top: int, results: Path, name: str, path: str, required: bool, most: int, pulse: Callable[[], None]
) -> ResultFile | None:
    """Return a file with its size and digest; None if it may be missing and is. Raise _Unfit, OSError."""
    folder, _, last = path.rpartition("/")
    if not is_plain_name(path):
        raise _unusable(f"the path of {name!r}", "leads out of the results")
    try:
        with directory_below(top, folder) as parent, open_file(last, parent) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > most:
                raise _Unfit(
                    FailureCode.RESULT_UNDELIVERABLE,
                    f"the result is larger than {show_size(MOST_BYTES)}, the most that is sent",
                    "The site keeps it.",
                )
            return ResultFile(name, results / path, size, _digest(stream, name, size, pulse))
    except OSError as error:
        if error.errno in _MISSING and not required:
            return None
        if error.errno in _MISSING:
            raise _unusable(f"the file for {name!r}", "is missing in the results") from None
        if error.errno in _UNUSABLE:
            raise _unusable(f"the file for {name!r}", "is not a regular file that can be read") from None
        raise


def _digest(stream: BinaryIO, name: str, size: int, pulse: Callable[[], None]) -> str:
    digest, left = hashlib.sha256(), size
    while left:
        pulse()
        block = stream.read(min(_BLOCK, left))
        if not block:
            raise _unusable(f"the file for {name!r}", "became shorter while it was read")
        digest.update(block)
        left -= len(block)
    return digest.hexdigest()


def _for_directory(error: OSError, results: Path) -> Exception:
    """Return what an error of the results' directory means: an answer, or the error itself, which may end."""
    if error.errno in _MISSING and is_gone(results):
        return _Unfit(
            FailureCode.RESULT_UNDELIVERABLE,
            "The results were removed from the site before they could be sent",
            "Send the request again, under another id.",
        )
    if error.errno in _UNUSABLE:
        return _unusable("the results", "contain what cannot be read")
    return error


def _unusable(subject: str, what: str) -> _Unfit:
    return _Unfit(
        FailureCode.TRAINING_FAILED,
        f"The training finished, but {subject} {what}",
        "Check what the training writes to its output directory.",
    )


def _too_many() -> _Unfit:
    return _Unfit(
        FailureCode.RESULT_UNDELIVERABLE,
        f"The result has more than {counted(MOST_FILES, 'file')}, the most that are sent",
        "The site keeps it; let the training write an archive.",
    )

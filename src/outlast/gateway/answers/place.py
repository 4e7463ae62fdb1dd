"""Results on a shared path: copied durably into a directory of the request's own."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from outlast.gateway.answers.collect import checked_blocks, open_result
from outlast.gateway.answers.errors import UploadError
from outlast.gateway.requests import ResultFile
from outlast.node.pulse import no_pulse
from outlast.untrusted_files import create_file, is_plain_name, open_directory

#: Somebody put something else where a directory or a file belongs: that does not end by itself.
_PLANTED = frozenset(
    {errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ENAMETOOLONG, errno.ENOTEMPTY}
)
_TEMPORARY = ".%d.tmp"


def place_directory(number: int) -> str:
    """Return the name of the directory for the results of a request, by its number in the record."""
    return "request-%08d" % number


def place(
    results: Path,
    file: ResultFile,
    directory: Path,
    number: int,
    pulse: Callable[[], None] = no_pulse,
) -> ResultFile:
    """Copy a file below `directory`/request-NUMBER; return it with its place. Repeatable. Raise UploadError.

    `directory` is the site's and may be a link; below it no link is followed. A file of an earlier call is
    replaced at once, never seen half-written.
    """
    relative = f"{place_directory(number)}/{file.name}"
    if not is_plain_name(relative):
        raise UploadError(False, f"{file.name!r} is not a name for a file")
    folder, _, name = relative.rpartition("/")
    try:
        with _made_directory(directory, folder) as parent, open_result(results, file) as stream:
            _copy(parent, name, checked_blocks(stream, file, pulse))
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        transient = error.errno not in _PLANTED
        raise UploadError(transient, f"{file.name!r} cannot be put into {directory}: {reason}") from None
    return replace(file, place=str(directory / relative))


@contextlib.contextmanager
def _made_directory(top: Path, relative: str) -> Iterator[int]:
    """Yield a descriptor of a directory below `top`; those that are missing are made."""
    descriptor = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in relative.split("/"):
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=descriptor)
                os.fsync(descriptor)
            inner = open_directory(name, descriptor)
            os.close(descriptor)
            descriptor = inner
            if os.fstat(inner).st_uid != os.geteuid():
                raise UploadError(False, f"{top}/{relative} belongs to another user")
        yield descriptor
    finally:
        os.close(descriptor)


def _copy(parent: int, name: str, blocks: Iterator[bytes]) -> None:
    temporary = _TEMPORARY % os.getpid()
    try:
        with create_file(temporary, parent) as copy:
            for block in blocks:
                copy.write(block)
            copy.flush()
            os.fsync(copy.fileno())
        os.replace(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        os.fsync(parent)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to report
            os.unlink(temporary, dir_fd=parent)
        raise

"""The source for files that the node can read: `file:` URLs and plain paths."""

from __future__ import annotations

import errno
import os
import stat
import threading
from urllib.parse import unquote, urlsplit

from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.node.staging.file_version import FileVersion
from outlast.untrusted_files import open_below

_KIND_BY_ERRNO = {
    errno.ENOENT: ErrorKind.MISSING,
    errno.ENOTDIR: ErrorKind.MISSING,
    errno.EACCES: ErrorKind.REFUSED,
    errno.EPERM: ErrorKind.REFUSED,
}


def path_of(url: str) -> str:
    """Return the path of a `file:` URL, or a plain path unchanged. Raises ValueError for other machines."""
    if not url.startswith("file:"):
        return url
    parts = urlsplit(url)
    if parts.netloc not in {"", "localhost"}:
        raise ValueError(
            "%s names a file on the machine %s; write file:///PATH for a file that the node can read"
            % (url, parts.netloc)
        )
    return unquote(parts.path)


class FileSource:
    """A regular file. Pipes and devices are refused, since they have no size and cannot be read again.

    Reads have no timeout: a file system that hangs blocks them.
    """

    def __init__(self, path: str, top: str = "") -> None:
        """Below the directory `top`, if given, no part of the path may be a link: others write there."""
        self.name = path
        self._top = top

    def open(self, start: int, stop: int | None = None) -> FileBody:
        descriptor = self._open()
        try:
            version = _version(os.fstat(descriptor))
            size = version.size or 0
            if start > size:
                raise SourceError(
                    ErrorKind.CHANGED, "has %d bytes, but %d were read before" % (size, start), self.name
                )
            return FileBody(self.name, descriptor, start, size if stop is None else min(stop, size), version)
        except BaseException:
            os.close(descriptor)
            raise

    def version(self) -> FileVersion:
        descriptor = self._open()
        try:
            return _version(os.fstat(descriptor))
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        try:
            if self._top:
                with open_below(self._top, os.path.relpath(self.name, self._top)) as file:
                    return os.dup(file.fileno())
            # Without O_NONBLOCK, opening a pipe without a writer would block. Regular files ignore the flag.
            descriptor = os.open(self.name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise _source_error(error, ErrorKind.NO_ANSWER, self.name) from error
        except ValueError as error:
            raise SourceError(ErrorKind.MISSING, "is not a valid file name: %s" % error, self.name) from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise SourceError(ErrorKind.NONSENSE, "is not a regular file", self.name)
        return descriptor


class FileBody:
    """The bytes of one range of a file. `close` may be called from another thread during a read."""

    def __init__(self, name: str, descriptor: int, start: int, stop: int, version: FileVersion) -> None:
        self.start = start
        self.version = version
        self._name = name
        self._descriptor = descriptor
        self._position = start
        self._stop = stop
        self._closing = False
        #: Held during reads: once the descriptor is closed, its number may belong to another file.
        self._reading = threading.Lock()

    def read_into(self, buffer: memoryview) -> int:
        size = min(len(buffer), self._stop - self._position)
        if size <= 0:
            return 0
        try:
            with self._reading:
                if self._closing:
                    raise SourceError(ErrorKind.RESET, "was closed", self._name)
                count = os.preadv(self._descriptor, [buffer[:size]], self._position)
        except OSError as error:
            raise _source_error(error, ErrorKind.RESET, self._name) from error
        finally:
            if self._closing:
                self.close()  # `close` was called during the read and could not close the descriptor
        if count == 0:
            raise SourceError(
                ErrorKind.TRUNCATED, "ends after %d of %d bytes" % (self._position, self._stop), self._name
            )
        self._position += count
        return count

    def close(self) -> None:
        self._closing = True
        if self._reading.acquire(blocking=False):
            try:
                descriptor, self._descriptor = self._descriptor, -1
                if descriptor >= 0:
                    os.close(descriptor)
            finally:
                self._reading.release()


def _version(status: os.stat_result) -> FileVersion:
    return FileVersion(size=status.st_size, modified=str(status.st_mtime_ns))


def _source_error(error: OSError, default: ErrorKind, name: str) -> SourceError:
    kind = _KIND_BY_ERRNO.get(error.errno or 0, default)
    return SourceError(kind, "cannot be read: %s" % (error.strerror or error), name)

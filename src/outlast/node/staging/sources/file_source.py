"""A file that the node can see, as a source like any other: `file:` URLs and plain paths."""

from __future__ import annotations

import errno
import os
import stat
import threading
from urllib.parse import unquote, urlsplit

from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.node.staging.sources.base import FileVersion

_KINDS = {
    errno.ENOENT: ErrorKind.MISSING,
    errno.ENOTDIR: ErrorKind.MISSING,
    errno.EACCES: ErrorKind.REFUSED,
    errno.EPERM: ErrorKind.REFUSED,
}


def path_of(url: str) -> str:
    """Raises ValueError for a file of another machine's."""
    if not url.startswith("file:"):
        return url
    parts = urlsplit(url)
    if parts.netloc not in {"", "localhost"}:
        raise ValueError(
            "%s names a file of the machine %s; write file:///PATH for one that the node sees"
            % (url, parts.netloc)
        )
    return unquote(parts.path)


class FileSource:
    """Regular files only: a pipe or a device has no size and no second reading.

    Reads are as patient as the file system is: no limit of ours reaches one that hangs.
    """

    def __init__(self, path: str) -> None:
        self.name = path

    def open(self, start: int, stop: int | None = None) -> FileBody:
        descriptor = self._open()
        try:
            version = _version(os.fstat(descriptor))
            size = version.size or 0
            if start > size:
                raise SourceError(
                    ErrorKind.CHANGED, "has %d bytes, %d were read before" % (size, start), self.name
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
            # Opening a pipe that nobody writes to would wait without O_NONBLOCK; regular files do not care.
            descriptor = os.open(self.name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise _trouble(error, ErrorKind.NO_ANSWER, self.name) from error
        except ValueError as error:
            raise SourceError(ErrorKind.MISSING, "no file has such a name: %s" % error, self.name) from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise SourceError(ErrorKind.NONSENSE, "is not a regular file", self.name)
        return descriptor


class FileBody:
    def __init__(self, name: str, descriptor: int, start: int, stop: int, version: FileVersion) -> None:
        self.start = start
        self.version = version
        self._name = name
        self._descriptor = descriptor
        self._position = start
        self._stop = stop
        self._closing = False
        #: Held while the descriptor is in use: its number may be another file's as soon as it is closed.
        self._using = threading.Lock()

    def read_into(self, buffer: memoryview) -> int:
        wanted = min(len(buffer), self._stop - self._position)
        if wanted <= 0:
            return 0
        try:
            with self._using:
                if self._closing:
                    raise SourceError(ErrorKind.RESET, "was closed", self._name)
                count = os.preadv(self._descriptor, [buffer[:wanted]], self._position)
        except OSError as error:
            raise _trouble(error, ErrorKind.RESET, self._name) from error
        finally:
            if self._closing:
                self.close()  # it was asked for while the descriptor was in use
        if count == 0:
            raise SourceError(
                ErrorKind.TRUNCATED, "ends after %d of %d bytes" % (self._position, self._stop), self._name
            )
        self._position += count
        return count

    def close(self) -> None:
        self._closing = True
        if self._using.acquire(blocking=False):
            try:
                descriptor, self._descriptor = self._descriptor, -1
                if descriptor >= 0:
                    os.close(descriptor)
            finally:
                self._using.release()


def _version(status: os.stat_result) -> FileVersion:
    return FileVersion(size=status.st_size, modified=str(status.st_mtime_ns))


def _trouble(error: OSError, otherwise: ErrorKind, name: str) -> SourceError:
    kind = _KINDS.get(error.errno or 0, otherwise)
    return SourceError(kind, "cannot be read: %s" % (error.strerror or error), name)

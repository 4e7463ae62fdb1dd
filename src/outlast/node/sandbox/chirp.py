"""A client for the Chirp protocol, with which an HTCondor starter serves its job: files on the access point,
and attributes of the job's ad.

Names are relative to the job's directory on the access point. A starter handles one request at a time: a
client that stops in the middle of a request blocks the whole job, so nothing is sent before the whole request
is available. Files are sent with open, write and close: `putfile` desynchronises starter and shadow when it
fails or has no bytes, and then the job loses its slot.
"""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Callable, Iterator, Mapping

from outlast.node.pulse import no_pulse
from outlast.untrusted_files import open_file

#: The environment variable with the path of a file: host, port and cookie of the starter.
CONFIG = "_CONDOR_CHIRP_CONFIG"
#: Timeout in seconds for one request; a block of a file is one request.
TIMEOUT = 120.0
_BLOCK_BYTES = 1 << 20
_MAX_LINE_BYTES = 4096
_ALREADY_EXISTS = -4
_DOES_NOT_EXIST = -3
_MESSAGES = {
    -1: "the cookie was refused",
    -2: "permission denied",
    -3: "no such file",
    -4: "it exists already",
    -5: "the file is too big",
    -6: "no space left on the access point",
    -8: "the request is not supported",
    -14: "it is not a directory",
    -15: "the directory is not empty",
    -17: "the access point does not respond",
}


class ChirpError(OSError):
    """A request was refused (`code` is negative), or the starter did not respond (0)."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class Chirp:
    """A connection to the starter. After a ChirpError with code 0 it cannot be used any more."""

    def __init__(self, host: str, port: int, cookie: str, timeout: float = TIMEOUT) -> None:
        try:
            self._socket = socket.create_connection((host, port), timeout)
        except OSError as error:
            raise ChirpError(f"the starter does not respond: {error}") from error
        self._responses = self._socket.makefile("rb")
        try:
            self._request(b"cookie " + cookie.encode(), "sending the cookie to the starter")
        except BaseException:
            self.close()
            raise

    @classmethod
    def connect(cls, environ: Mapping[str, str], timeout: float = TIMEOUT) -> Chirp | None:
        """Connect to the starter. Return None if it offers this job no Chirp service. Raises ChirpError."""
        path = environ.get(CONFIG)
        if not path:
            return None
        try:
            with open(path, encoding="ascii") as file:
                host, port, cookie = file.read(_MAX_LINE_BYTES).split()[:3]
            number = int(port)
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            # Not chained: the error could show the cookie.
            raise ChirpError(f"{path} does not contain the address of the starter") from None
        return cls(host, number, cookie, timeout)

    def __enter__(self) -> Chirp:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._responses.close()
        self._socket.close()

    def abandon(self) -> None:
        """Abort the connection from another thread; a waiting request raises ChirpError."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it is closed already

    def make_directory(self, name: str) -> None:
        """Create a directory, unless it exists."""
        self._request(b"mkdir %s %d" % (_encode_name(name), 0o755), f"creating {name}", _ALREADY_EXISTS)

    def rename(self, name: str, new: str) -> None:
        self._request(b"rename %s %s" % (_encode_name(name), _encode_name(new)), f"renaming {name}")

    def link(self, name: str, new: str) -> None:
        """Make `new` a hard link to the file `name`."""
        self._request(b"link %s %s" % (_encode_name(name), _encode_name(new)), f"linking {name}")

    def remove(self, name: str) -> None:
        """Remove a file or a directory tree, if it exists."""
        self._request(b"rmall %s" % _encode_name(name), f"removing {name}", _DOES_NOT_EXIST)

    def list_names(self, directory: str) -> list[str]:
        """Return the names in a directory; none if it does not exist."""
        action = f"listing {directory}"
        size = self._request(b"getdir %s" % _encode_name(directory), action, _DOES_NOT_EXIST)
        try:
            listing = self._responses.read(max(0, size))
        except (OSError, ValueError) as error:
            raise ChirpError(f"{action}: {error}") from error
        return [os.fsdecode(name) for name in listing.split(b"\n") if name]

    def send(self, path: str, name: str, pulse: Callable[[], None] = no_pulse) -> int:
        """Send a local file and return its size. `pulse` may raise between two blocks."""
        with open_file(path) as file, self._open(name) as descriptor:
            sent = 0
            while True:
                pulse()
                block = file.read(_BLOCK_BYTES)
                if not block:
                    return sent
                self._write(descriptor, block, name)
                sent += len(block)

    def send_bytes(self, content: bytes, name: str) -> None:
        """Create or replace a file with this content."""
        with self._open(name) as descriptor:
            for begin in range(0, len(content), _BLOCK_BYTES):
                self._write(descriptor, content[begin : begin + _BLOCK_BYTES], name)

    def set_job_attribute(self, attribute: str, value: int) -> None:
        """Set a number in the job's ad, which HTCondor's tools show. The name must begin with Chirp."""
        self._request(b"set_job_attr_delayed %s %d" % (attribute.encode(), value), f"setting {attribute}")

    @contextmanager
    def _open(self, name: str) -> Iterator[int]:
        """Open a new or truncated file; make it durable before it is closed."""
        action = f"writing {name}"
        descriptor = self._request(b"open %s wct %d" % (_encode_name(name), 0o644), action)
        self._read_line(action)  # the status of the file
        try:
            yield descriptor
            self._request(b"fsync %d" % descriptor, action)
        except BaseException:
            with suppress(ChirpError):  # the first error is the one to report
                self._request(b"close %d" % descriptor, action)
            raise
        self._request(b"close %d" % descriptor, action)

    def _write(self, descriptor: int, block: bytes, name: str) -> None:
        written = self._request(
            b"write %d %d\n" % (descriptor, len(block)) + block, f"writing {name}", has_newline=True
        )
        if written != len(block):
            raise ChirpError(f"writing {name}: only {written} of {len(block)} bytes were accepted")

    def _request(self, request: bytes, action: str, ignored: int = 0, *, has_newline: bool = False) -> int:
        """Send a request and return the response. Raises ChirpError if it is negative and not `ignored`."""
        try:
            self._socket.sendall(request if has_newline else request + b"\n")
        except OSError as error:
            raise ChirpError(f"{action}: {error}") from error
        try:
            response = int(self._read_line(action))
        except ValueError:
            raise ChirpError(f"{action}: the response is not valid") from None
        if response < 0 and response != ignored:
            raise ChirpError(f"{action}: {_MESSAGES.get(response, f'error {response}')}", response)
        return response

    def _read_line(self, action: str) -> bytes:
        try:
            line = self._responses.readline(_MAX_LINE_BYTES)
        except (OSError, ValueError) as error:  # ValueError: closed by another thread
            raise ChirpError(f"{action}: {error}") from error
        if not line.endswith(b"\n"):
            raise ChirpError(f"{action}: the starter closed the connection")
        return line


def _encode_name(name: str) -> bytes:
    """Encode a name as one word of a request. Raises ChirpError if no request can contain it."""
    raw = os.fsencode(name)
    if b"\n" in raw or b"\r" in raw or len(raw) > _MAX_LINE_BYTES // 4:
        raise ChirpError(f"the name {name!r} cannot be sent")
    return b"".join(
        b"\\" + raw[i : i + 1] if raw[i : i + 1] in b" \t\v\f\\" else raw[i : i + 1] for i in range(len(raw))
    )

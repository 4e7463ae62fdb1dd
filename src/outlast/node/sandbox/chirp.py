"""The Chirp protocol, as an HTCondor starter speaks it to its job: files on the access point, and facts in
the job's ad.

Names are relative to the job's directory on the access point. A starter does one thing at a time: a client
that stops in the middle of a request holds up the whole job, so that nothing is sent before all of it is at
hand. Files go by open, write, close: `putfile` brings starter and shadow out of step when it fails or has no
bytes, which costs the job its slot.
"""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Callable, Iterator, Mapping

from outlast.node.files import open_file
from outlast.node.pulse import no_pulse

CONFIG = "_CONDOR_CHIRP_CONFIG"
#: Seconds that one request may take; a block of a file is a request.
TIMEOUT = 120.0
_BLOCK = 1 << 20
_LONGEST_LINE = 4096
_ALREADY_EXISTS = -4
_DOES_NOT_EXIST = -3
_WHY = {
    -1: "the cookie was refused",
    -2: "it is not allowed there",
    -3: "there is no such file",
    -4: "it exists already",
    -5: "the file is too big",
    -6: "no space is left there",
    -8: "the request is not known there",
    -14: "it is no directory",
    -15: "the directory is not empty",
    -17: "the access point does not answer",
}


class ChirpError(OSError):
    """A request was refused, or nobody answers. Its text is part of a sentence."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class Chirp:
    """One connection. After an error that is not an answer it is of no more use."""

    def __init__(self, host: str, port: int, cookie: str, timeout: float = TIMEOUT) -> None:
        try:
            self._socket = socket.create_connection((host, port), timeout)
        except OSError as error:
            raise ChirpError(f"the starter does not answer: {error}") from error
        self._answers = self._socket.makefile("rb")
        try:
            self._ask(b"cookie " + cookie.encode(), "introducing this job to the starter")
        except BaseException:
            self.close()
            raise

    @classmethod
    def connect(cls, environ: Mapping[str, str], timeout: float = TIMEOUT) -> Chirp | None:
        """None where the job was given no such service. Raises ChirpError where it does not work."""
        path = environ.get(CONFIG)
        if not path:
            return None
        try:
            with open(path, encoding="ascii") as file:
                host, port, cookie = file.read(_LONGEST_LINE).split()[:3]
            number = int(port)
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            # Not chained: the error could show the cookie.
            raise ChirpError(f"{path} does not say where the starter is") from None
        return cls(host, number, cookie, timeout)

    def __enter__(self) -> Chirp:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._answers.close()
        self._socket.close()

    def abandon(self) -> None:
        """From another thread: whoever waits for an answer gets an error now."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it is closed already

    # What can be asked for.

    def make_directory(self, name: str) -> None:
        """It may be there already."""
        self._ask(b"mkdir %s %d" % (_word(name), 0o755), f"making {name}", _ALREADY_EXISTS)

    def rename(self, name: str, new: str) -> None:
        self._ask(b"rename %s %s" % (_word(name), _word(new)), f"renaming {name}")

    def link(self, name: str, new: str) -> None:
        """A second name for a file."""
        self._ask(b"link %s %s" % (_word(name), _word(new)), f"linking {name}")

    def remove(self, name: str) -> None:
        """A file, or a directory with all that is in it; it may be gone already."""
        self._ask(b"rmall %s" % _word(name), f"removing {name}", _DOES_NOT_EXIST)

    def names(self, directory: str) -> list[str]:
        """What is in a directory; nothing if it is not there."""
        doing = f"looking into {directory}"
        size = self._ask(b"getdir %s" % _word(directory), doing, _DOES_NOT_EXIST)
        try:
            listing = self._answers.read(max(0, size))
        except (OSError, ValueError) as error:
            raise ChirpError(f"{doing}: {error}") from error
        return [os.fsdecode(name) for name in listing.split(b"\n") if name]

    def send(self, path: str, name: str, pulse: Callable[[], None] = no_pulse) -> int:
        """Copy a local file; its size. `pulse` may raise between two blocks."""
        with open_file(path) as file, self._opened(name) as descriptor:
            sent = 0
            while True:
                pulse()
                block = file.read(_BLOCK)
                if not block:
                    return sent
                self._write(descriptor, block, name)
                sent += len(block)

    def send_bytes(self, content: bytes, name: str) -> None:
        with self._opened(name) as descriptor:
            for begin in range(0, len(content), _BLOCK):
                self._write(descriptor, content[begin : begin + _BLOCK], name)

    def tell(self, attribute: str, value: int) -> None:
        """Put a number into the job's ad, where the scheduler's tools show it. Names begin with Chirp."""
        self._ask(b"set_job_attr_delayed %s %d" % (attribute.encode(), value), f"setting {attribute}")

    # How it is asked.

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        """A new or emptied file, on disk when it is closed."""
        doing = f"writing {name}"
        descriptor = self._ask(b"open %s wct %d" % (_word(name), 0o644), doing)
        self._line(doing)  # what `stat` says of it
        try:
            yield descriptor
            self._ask(b"fsync %d" % descriptor, doing)
        except BaseException:
            with suppress(ChirpError):  # the first error is the one to tell
                self._ask(b"close %d" % descriptor, doing)
            raise
        self._ask(b"close %d" % descriptor, doing)

    def _write(self, descriptor: int, block: bytes, name: str) -> None:
        written = self._ask(
            b"write %d %d\n" % (descriptor, len(block)) + block, f"writing {name}", ended=True
        )
        if written != len(block):
            raise ChirpError(f"writing {name}: only {written} of {len(block)} bytes were taken")

    def _ask(self, request: bytes, doing: str, harmless: int = 0, *, ended: bool = False) -> int:
        """The answer; below zero only if it is the `harmless` one. `ended`: the request has its newline."""
        try:
            self._socket.sendall(request if ended else request + b"\n")
        except OSError as error:
            raise ChirpError(f"{doing}: {error}") from error
        try:
            answer = int(self._line(doing))
        except ValueError:
            raise ChirpError(f"{doing}: the answer is not of this protocol") from None
        if answer < 0 and answer != harmless:
            raise ChirpError(f"{doing}: {_WHY.get(answer, f'error {answer}')}", answer)
        return answer

    def _line(self, doing: str) -> bytes:
        try:
            line = self._answers.readline(_LONGEST_LINE)
        except (OSError, ValueError) as error:  # ValueError: closed by another thread
            raise ChirpError(f"{doing}: {error}") from error
        if not line.endswith(b"\n"):
            raise ChirpError(f"{doing}: the starter hung up")
        return line


def _word(name: str) -> bytes:
    """A name as one word of a request. Raises ChirpError for one that no request can hold."""
    raw = os.fsencode(name)
    if b"\n" in raw or b"\r" in raw or len(raw) > _LONGEST_LINE // 4:
        raise ChirpError(f"the name {name!r} cannot be sent")
    return b"".join(
        b"\\" + raw[i : i + 1] if raw[i : i + 1] in b" \t\v\f\\" else raw[i : i + 1] for i in range(len(raw))
    )

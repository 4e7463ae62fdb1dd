"""A Chirp service for tests, with the framing of an HTCondor starter, on loopback, for one directory."""

from __future__ import annotations

import errno
import os
import re
import shutil
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

COOKIE = "0123456789abcdef"
_CODES = {errno.EACCES: -2, errno.ENOENT: -3, errno.EEXIST: -4, errno.EISDIR: -13, errno.ENOTEMPTY: -15}


@dataclass
class Pool:
    """The state of the service, which a test can inspect and change."""

    root: Path
    environ: dict[str, str] = field(default_factory=dict)
    #: Requests in order, without the bytes of files.
    requests: list[str] = field(default_factory=list)
    #: Attributes of the job's ad.
    attributes: dict[str, str] = field(default_factory=dict)
    #: The response to every request that begins with one of these words.
    refuse: dict[str, int] = field(default_factory=dict)
    #: The connection is closed before the request with this number.
    hang_up_at: int | None = None
    #: Requests that begin with this get a response only after `proceed` was set.
    wait_at: str = "-"
    waiting: threading.Event = field(default_factory=threading.Event)
    proceed: threading.Event = field(default_factory=threading.Event)


@contextmanager
def chirp_server(root: Path) -> Iterator[Pool]:
    """Serve the directory `root`; `environ` of the result is for the client."""
    root.mkdir(parents=True, exist_ok=True)
    pool = Pool(root)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            _Connection(pool, self).serve()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        config = root.with_name("chirp.config")
        config.write_text("127.0.0.1 %d %s\n" % (server.server_address[1], COOKIE))
        pool.environ["_CONDOR_CHIRP_CONFIG"] = str(config)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield pool
        finally:
            pool.proceed.set()
            server.shutdown()
            thread.join()


class _Connection:
    def __init__(self, pool: Pool, handler: socketserver.StreamRequestHandler) -> None:
        self._pool = pool
        self._read, self._write = handler.rfile, handler.wfile
        self._open: dict[int, int] = {}

    def serve(self) -> None:
        try:
            if self._read.readline() != b"cookie %s\n" % COOKIE.encode():
                self._respond(-1)
                return
            self._respond(0)
            while line := self._read.readline():
                words = [
                    re.sub(r"\\(.)", r"\1", word) for word in re.findall(r"(?:\\.|\S)+", os.fsdecode(line))
                ]
                if not self._handle(words):
                    return
        except OSError:
            return  # the client is gone
        finally:
            for descriptor in self._open.values():
                os.close(descriptor)

    def _respond(self, number: int, more: bytes = b"") -> None:
        self._write.write(b"%d\n" % number + more)
        self._write.flush()

    def _handle(self, words: list[str]) -> bool:
        pool = self._pool
        data = self._read.read(int(words[2])) if words[0] == "write" else b""
        pool.requests.append(" ".join(words))
        if pool.hang_up_at is not None and len(pool.requests) > pool.hang_up_at:
            return False
        if words[0].startswith(pool.wait_at):
            pool.waiting.set()
            pool.proceed.wait(30)
        refused = next((code for word, code in pool.refuse.items() if words[0].startswith(word)), None)
        if refused is not None:
            self._respond(refused)
            return True
        try:
            self._respond(*self._execute(words, data))
        except OSError as error:
            self._respond(_CODES.get(error.errno or 0, -127))
        return True

    def _execute(self, words: list[str], data: bytes) -> tuple[int] | tuple[int, bytes]:
        place = self._pool.root
        match words:
            case ["open", name, "wct", mode]:
                descriptor = os.open(place / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, int(mode))
                self._open[descriptor] = descriptor
                return descriptor, b"1 2 33188 1 0 0 0 0 4096 0 1 1 1\n"
            case ["write", number, _]:
                return (os.write(self._open[int(number)], data),)
            case ["fsync", _]:
                return (0,)
            case ["close", number]:
                os.close(self._open.pop(int(number)))
                return (0,)
            case ["mkdir", name, mode]:
                (place / name).mkdir(int(mode))
                return (0,)
            case ["rename", name, new]:
                (place / name).rename(place / new)
                return (0,)
            case ["link", name, new]:
                os.link(place / name, place / new)
                return (0,)
            case ["rmall", name]:
                path = place / name
                shutil.rmtree(path) if path.is_dir() else path.unlink()
                return (0,)
            case ["getdir", name]:
                listing = (
                    b"".join(os.fsencode(path.name) + b"\n" for path in (place / name).iterdir()) + b"\n"
                )
                return len(listing), listing
            case ["set_job_attr_delayed", name, value]:
                self._pool.attributes[name] = value
                return (0,)
        return (-8,)

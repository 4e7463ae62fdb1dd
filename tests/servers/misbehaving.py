"""A real HTTP/1.1 server on loopback that misbehaves as planned and records its requests.

    with Misbehaving({"/a.bin": seeded(100_000)}) as server:
        server.plan(Behaviour(close_after=70_000), Behaviour(status=503))  # one for each request
        fetch(server.url("/a.bin"))
        assert [request.start for request in server.requests] == [0, 70_000, 70_000]

After the plan it behaves well, or as `server.always(Behaviour(rate=100_000))` specifies.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from urllib.parse import urlsplit

from servers.behaviour import Behaviour
from servers.certificates import Certificate
from servers.wire import PATIENCE, Done, Request, Wire

_PIECE = 64 * 1024


@dataclass(frozen=True)
class _File:
    content: bytes
    etag: str
    #: Headers with its digests, by name; `Digest` and `Repr-Digest` are sent only on request.
    digest_headers: Mapping[str, str] = field(default_factory=dict)


class Misbehaving:
    """A server for `files`, from `with` to its end.

    `etag=False` omits ETag and Last-Modified, like XRootD. `send_buffer` is the number of bytes that the
    kernel may hold for a client that does not read.
    """

    def __init__(
        self,
        files: Mapping[str, bytes],
        certificate: Certificate | None = None,
        host: str = "127.0.0.1",
        etag: bool = True,
        send_buffer: int = 0,
    ) -> None:
        self.requests: list[Request] = []
        self._files: dict[str, _File] = {}
        self._etag = etag
        self._context = certificate.server_context() if certificate is not None else None
        self._plan: deque[Behaviour] = deque()
        self._always = Behaviour()
        self._changed = threading.Condition()
        self._ending = threading.Event()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(
            (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=100
        )
        if send_buffer:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        self._host = host
        self.port: int = self._listener.getsockname()[1]
        for path, content in files.items():
            self.put(path, content)

    # For tests

    def url(self, path: str, host: str = "") -> str:
        host = host or self._host
        return "%s://%s:%d%s" % (
            "https" if self._context else "http",
            "[%s]" % host if ":" in host else host,
            self.port,
            path,
        )

    def plan(self, *behaviours: Behaviour) -> None:
        """Append to the plan: one behaviour for each request, whatever its method."""
        with self._changed:
            self._plan.extend(behaviours)

    def always(self, behaviour: Behaviour) -> None:
        """Behave like this for all requests after the plan."""
        with self._changed:
            self._always = behaviour

    def put(
        self,
        path: str,
        content: bytes,
        keep_etag: bool = False,
        digest_headers: Mapping[str, str] | None = None,
    ) -> None:
        """Add or replace a file. `digest_headers`: see `rfc3230` and `rfc9530` in behaviour.py."""
        with self._changed:
            old = self._files.get(path)
            etag = '"%s"' % hashlib.sha256(content).hexdigest()[:16]
            if keep_etag and old is not None:
                etag = old.etag
            self._files[path] = _File(content, etag, dict(digest_headers or {}))

    def await_requests(self, count: int) -> None:
        """Wait until this many requests have been received."""
        self._await(lambda: len(self.requests) >= count)

    def await_sent(self, total: int) -> None:
        """Wait until `total` bytes of bodies have been sent, over all requests."""
        self._await(lambda: sum(request.sent for request in self.requests) >= total)

    def _await(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE), (
                "timeout: the expected requests did not arrive"
            )

    # Start and end

    def __enter__(self) -> Misbehaving:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        with contextlib.suppress(OSError):  # it may not be listening yet
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._changed:
            connections = list(self._open)
        for connection in connections:
            with contextlib.suppress(OSError):  # the client has closed it already
                connection.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + PATIENCE
        for thread in list(self._threads):
            thread.join(max(0.0, deadline - time.monotonic()))
            assert not thread.is_alive(), "a connection of the misbehaving server did not end"

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name="misbehaving", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._ending.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed: the test is over
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            self._start(self._serve, connection)

    def _serve(self, plain: socket.socket) -> None:
        plain.settimeout(PATIENCE)
        with self._changed:
            self._open.add(plain)
        try:
            # A client may disconnect at any time, and the end of the test closes the connection.
            with contextlib.suppress(OSError, Done):
                if self._ending.is_set():
                    return
                connection = plain
                if self._context is not None:
                    # The plain socket is kept: RST and the end of the test need it.
                    connection = self._context.wrap_socket(plain.dup(), server_side=True)
                with connection:
                    wire = Wire(connection, plain, self._ending)
                    while self._serve_request(wire):
                        pass
        finally:
            with self._changed:
                self._open.discard(plain)
            plain.close()

    # One request

    def _serve_request(self, wire: Wire) -> bool:
        """Read and serve one request. Return True if the connection can be used for another one."""
        request = wire.read_request()
        return request is not None and self._respond(wire, request) and request.keeps_connection

    def _respond(self, wire: Wire, request: Request) -> bool:
        with self._changed:
            request.behaviour = self._next_behaviour(request)
            self.requests.append(request)
            self._changed.notify_all()
        broken = self._misbehave(wire, request)
        return self._send_found(wire, request) if broken is None else broken

    def _next_behaviour(self, request: Request) -> Behaviour:
        return self._plan.popleft() if self._plan else self._always

    def _misbehave(self, wire: Wire, request: Request) -> bool | None:
        """Respond with something else than a file if that is planned, as `_respond` does; else None."""
        do = request.behaviour
        if do.silent:
            wire.wait_for_disconnect()
        if do.rubbish:
            wire.send(do.rubbish)
            return False
        if do.endless_headers:
            wire.send(b"HTTP/1.1 200 OK\r\n")
            while True:
                wire.send(b"X-More: %s\r\n" % (b"x" * 1000))
        if do.redirect:
            return self._send_page(wire, request, do.status or 302, {"Location": do.redirect})
        return None if do.status is None else self._send_page(wire, request, do.status)

    def _send_found(self, wire: Wire, request: Request) -> bool:
        do, found = request.behaviour, self._files.get(urlsplit(request.path).path)
        if found is None:
            return self._send_page(wire, request, 404)
        if request.start >= len(found.content) > 0 and not do.ignore_range:
            return self._send_page(wire, request, 416, {"Content-Range": "bytes */%d" % len(found.content)})
        return self._send_file(wire, request, found)

    def _send_page(
        self, wire: Wire, request: Request, status: int, headers: Mapping[str, str] | None = None
    ) -> bool:
        text = b"%d page of the misbehaving server\n" % status
        wire.send_head(status, request.behaviour, {"Content-Length": str(len(text)), **(headers or {})})
        if request.method != "HEAD":
            wire.send(text)
        return True

    def _send_file(self, wire: Wire, request: Request, found: _File) -> bool:
        do = request.behaviour
        size = len(found.content)
        start, stop = request.start, size if request.stop is None else min(request.stop, size)
        ranged = "range" in request.headers and not do.ignore_range
        if not ranged:
            start, stop = 0, size
        start = min(start + do.other_range, size)
        body = _flip_bits(found.content, start, stop, do.flip)
        headers = {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
        if self._etag:
            headers.update({"ETag": found.etag, "Last-Modified": "Mon, 06 Jul 2026 10:00:00 GMT"})
        if ranged:
            headers["Content-Range"] = "bytes %d-%d/%d" % (start, stop - 1, size)
        for name, value in found.digest_headers.items():
            if name in ("Digest", "Repr-Digest") and "want-" + name.lower() not in request.headers:
                continue
            headers[name] = value
        if do.gzip:
            headers["Content-Encoding"] = "gzip"
            body = memoryview(gzip.compress(body))
        if do.chunked:
            headers["Transfer-Encoding"] = "chunked"
        elif not do.until_close:
            headers["Content-Length"] = str(len(body) + do.announce)
        wire.send_head(206 if ranged else 200, do, headers)
        if request.method == "HEAD":
            return True
        for piece in _split(body, do):
            if do.chunked:
                wire.send(b"%x\r\n" % len(piece))
            self._send_piece(wire, request, piece)
            if do.chunked:
                wire.send(b"\r\n")
        if do.stall_after is not None:
            wire.wait_for_disconnect()
        if do.reset_after is not None:
            wire.reset()
        if do.close_after is not None or do.no_last_chunk:
            return False
        if do.chunked:
            trailers = b"".join(b"%s: %s\r\n" % (n.encode(), v.encode()) for n, v in do.trailers)
            wire.send(b"0\r\n" + trailers + b"\r\n")
        return not do.until_close and do.announce == 0

    def _send_piece(self, wire: Wire, request: Request, piece: memoryview) -> None:
        while piece:
            count = wire.send_some(piece)
            with self._changed:
                request.sent += count
                self._changed.notify_all()
            piece = piece[count:]
            if request.behaviour.rate:
                wire.pause(count / request.behaviour.rate)


def _flip_bits(content: bytes, start: int, stop: int, offsets: tuple[int, ...]) -> memoryview:
    inside = [offset for offset in offsets if start <= offset < stop]
    if not inside:
        return memoryview(content)[start:stop]
    wrong = bytearray(content[start:stop])
    for offset in inside:
        wrong[offset - start] ^= 0x10
    return memoryview(wrong)


def _split(body: memoryview, do: Behaviour) -> Iterator[memoryview]:
    """Yield the part of the body that is sent, in pieces small enough for an even rate and several chunks."""
    limits = [limit for limit in (do.stall_after, do.reset_after, do.close_after) if limit is not None]
    end = min([len(body), *limits])
    size = max(1, min(_PIECE, do.rate // 20)) if do.rate else _PIECE
    for begin in range(0, end, size):
        yield body[begin : min(begin + size, end)]

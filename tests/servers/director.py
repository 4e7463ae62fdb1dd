"""A small director of a Pelican federation, over TLS: discovery, and redirects to caches and origins.

It speaks the protocol as the real one does (`Server: pelican/…`, `Link`, `X-Pelican-*`), and can be asked to
fail the way the real one does.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import urlsplit

from servers.certificates import Authority

ORIGINS = "/api/v1.0/director/origin"


class Mood(Enum):
    WELL = "it works"
    RESTARTING = "the ingress before it answers: 404, and no sign of Pelican"
    BUSY = "429"
    BROKEN = "500"
    NONSENSE = "redirects to nowhere"


@dataclass
class Namespace:
    prefix: str
    #: Base URLs, the preferred one first.
    caches: list[str] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    requires_token: bool = False


class Director:
    def __init__(self, authority: Authority) -> None:
        self.namespaces: list[Namespace] = []
        #: Objects that no origin has: the director asks them, and then says 404 itself.
        self.missing: set[str] = set()
        #: What it is like from the next request on, one for each, and then for good.
        self.moods: deque[Mood] = deque()
        self.mood = Mood.WELL
        #: What discovery says; None for the address it really has.
        self.endpoint: str | None = None
        #: Path and Authorization header of everything it was asked.
        self.requests: list[tuple[str, str]] = []
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        context = authority.issue("director").server_context()
        # The handshake is the handler's thread's affair: a slow client must not stop the others.
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="director")

    @property
    def host(self) -> str:
        return "localhost:%d" % self._server.server_address[1]

    def asked(self, path: str) -> int:
        return sum(path == asked for asked, _ in self.requests)

    def answer(self, target: str) -> tuple[int, dict[str, str], bytes]:
        path = urlsplit(target).path
        mood = self.moods.popleft() if self.moods else self.mood
        if mood is Mood.RESTARTING:
            return 404, {"Content-Type": "text/plain"}, b"404 page not found\n"
        pelican = {"Server": "pelican/7.20.0"}
        if mood is Mood.BUSY:
            return 429, {**pelican, "Retry-After": "1"}, b"slow down\n"
        if mood is Mood.BROKEN:
            return 500, {}, b"oops\n"
        if path == "/.well-known/pelican-configuration":
            found = {"director_endpoint": self.endpoint or "https://%s/" % self.host}
            return 200, {**pelican, "Content-Type": "application/json"}, json.dumps(found).encode()
        origins_only = path.startswith(ORIGINS + "/")
        name = path[len(ORIGINS) :] if origins_only else path
        origins_only = origins_only or "directread" in urlsplit(target).query
        space = next((one for one in self.namespaces if name.startswith(one.prefix + "/")), None)
        servers = [] if space is None else space.origins if origins_only else space.caches
        if space is None or name in self.missing or not servers:
            return 404, pelican, b'{"status":"error","msg":"no sources found for the requested path"}'
        urls = [server + name for server in servers]
        if mood is Mood.NONSENSE:
            urls = ["http://localhost:1" + name, "ftp://localhost/x"]
        links = ('<%s>; rel="duplicate"; pri=%d; depth=1' % (url, i + 1) for i, url in enumerate(urls))
        return (
            307,
            {
                **pelican,
                "Location": urls[0],
                "Link": ", ".join(links),
                "X-Pelican-Namespace": "namespace=%s, require-token=%s, collections-url=%s"
                % (space.prefix, str(space.requires_token).lower(), (space.origins or servers)[0]),
                **(
                    {"X-Pelican-Authorization": "issuer=https://%s/issuer" % self.host}
                    if space.requires_token
                    else {}
                ),
            },
            b"",
        )

    def __enter__(self) -> Director:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that does not trust the certificate, or goes away: that is its test's affair."""


def _handler(director: Director) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 20

        def do_GET(self) -> None:
            director.requests.append((urlsplit(self.path).path, self.headers.get("Authorization", "")))
            status, headers, body = director.answer(self.path)
            self.send_response_only(status)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """`requests` is the log."""

    return Handler

"""A small director of a Pelican federation, with TLS: discovery, and redirects to caches and origins.

It sends the headers of the real one (`Server: pelican/…`, `Link`, `X-Pelican-*`) and can fail like it.
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
    """The way in which the director responds."""

    WELL = "it works"
    RESTARTING = "the ingress responds with 404, without the headers of Pelican"
    BUSY = "429"
    BROKEN = "500"
    NONSENSE = "redirects to invalid URLs"


@dataclass
class Namespace:
    """The servers for all objects below a prefix."""

    prefix: str
    #: Base URLs, the preferred one first.
    caches: list[str] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    requires_token: bool = False


class Director:
    """A director on loopback, from `with` to its end."""

    def __init__(self, authority: Authority) -> None:
        self.namespaces: list[Namespace] = []
        #: Objects that no origin has: the director responds with 404.
        self.missing: set[str] = set()
        #: The moods for the next requests, one for each; `mood` applies after them.
        self.moods: deque[Mood] = deque()
        self.mood = Mood.WELL
        #: The endpoint that discovery reports; None: the real address.
        self.endpoint: str | None = None
        #: Path and Authorization header of every request.
        self.requests: list[tuple[str, str]] = []
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        context = authority.issue("director").server_context()
        # The handshake is done in the handler's thread: a slow client must not block the others.
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="director")

    @property
    def host(self) -> str:
        return "localhost:%d" % self._server.server_address[1]

    def request_count(self, path: str) -> int:
        """Return how often a path was requested."""
        return sum(path == requested for requested, _ in self.requests)

    def respond(self, target: str) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body for a request."""
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
            configuration = {"director_endpoint": self.endpoint or "https://%s/" % self.host}
            return 200, {**pelican, "Content-Type": "application/json"}, json.dumps(configuration).encode()
        origins_only = path.startswith(ORIGINS + "/")
        name = path[len(ORIGINS) :] if origins_only else path
        origins_only = origins_only or "directread" in urlsplit(target).query
        namespace = next((each for each in self.namespaces if name.startswith(each.prefix + "/")), None)
        servers = [] if namespace is None else namespace.origins if origins_only else namespace.caches
        if namespace is None or name in self.missing or not servers:
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
                % (
                    namespace.prefix,
                    str(namespace.requires_token).lower(),
                    (namespace.origins or servers)[0],
                ),
                **(
                    {"X-Pelican-Authorization": "issuer=https://%s/issuer" % self.host}
                    if namespace.requires_token
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
        """Ignore clients that do not trust the certificate or disconnect: their tests check that."""


def _handler(director: Director) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 20

        def do_GET(self) -> None:
            director.requests.append((urlsplit(self.path).path, self.headers.get("Authorization", "")))
            status, headers, body = director.respond(self.path)
            self.send_response_only(status)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: `requests` is the log."""

    return Handler

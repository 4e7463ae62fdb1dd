"""A small stand-in for a web application, for the demo of the gateway: log-in, downloads and uploads.

It listens on loopback, keeps everything in memory and knows one user. Bodies are bounded.
"""

from __future__ import annotations

import hmac
import json
import secrets
import ssl
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

#: The path of the log-in, and its user.
LOGIN = "/api/auth/token/"
USERNAME = "gateway-demo"
#: The most bytes of a body, and seconds without a byte.
_MOST_BODY = 50 * 10**6
_PATIENCE = 30.0


class WebApplication:
    """The application, from `with` to its end. `files` can be fetched with the token, by path."""

    def __init__(self, files: Mapping[str, bytes], certificate: tuple[Path, Path] | None = None) -> None:
        """Serve these files, over TLS if there is a certificate: the paths of its chain and of its key."""
        self.files = dict(files)
        #: What was put, by path.
        self.uploaded: dict[str, bytes] = {}
        #: A new one for each demo.
        self.password = secrets.token_urlsafe(16)
        self.token = secrets.token_hex(20)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            # The handshake is the handler's, in its thread and with its timeout.
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
            self._scheme = "https"
        self._thread = threading.Thread(target=self._server.serve_forever, name="application", daemon=True)

    @property
    def url(self) -> str:
        """The URL below which everything is."""
        return "%s://%s" % (self._scheme, self.authority)

    @property
    def authority(self) -> str:
        """Host and port."""
        return "127.0.0.1:%d" % self._server.server_port

    def __enter__(self) -> WebApplication:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join(_PATIENCE)
        self._server.server_close()

    def answer_login(self, body: bytes) -> tuple[int, dict[str, str]]:
        """Return status and content of the answer to a log-in."""
        try:
            fields = json.loads(body)
            given = (str(fields["username"]), str(fields["password"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            return 400, {"detail": "username and password are required"}
        if given[0] == USERNAME and hmac.compare_digest(given[1].encode(), self.password.encode()):
            return 200, {"token": self.token}
        return 401, {"detail": "wrong username or password"}


def _handler(application: WebApplication) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _PATIENCE

        def do_POST(self) -> None:
            body = self._body()
            if body is None:
                return
            status, content = application.answer_login(body) if self.path == LOGIN else (404, {})
            self._send(status, json.dumps(content).encode(), "application/json")

        def do_GET(self) -> None:
            content = application.files.get(self.path)
            if not self._has_token():
                self._send(401)
            elif content is None:
                self._send(404)
            else:
                self._send(200, content, "application/octet-stream")

        def do_PUT(self) -> None:
            body = self._body()
            if body is None:
                return
            if not self._has_token():
                self._send(401)
                return
            application.uploaded[self.path] = body
            self._send(201)

        def _has_token(self) -> bool:
            given = self.headers.get("Authorization", "")
            return hmac.compare_digest(given.encode(), b"Token " + application.token.encode())

        def _body(self) -> bytes | None:
            """Return the request's body; None if there was none to be had, which is answered."""
            length = self.headers.get("Content-Length", "")
            if not (length.isascii() and length.isdecimal() and int(length[:12]) <= _MOST_BODY):
                self._send(413)
                return None
            body = self.rfile.read(int(length))
            return body if len(body) == int(length) else None

        def _send(self, status: int, content: bytes = b"", kind: str = "text/plain") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing: the demo shows what matters."""

    return Handler

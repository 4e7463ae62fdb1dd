"""A real nginx on loopback, over plain http and over TLS.

/PATH           any file below `files`, with ranges
/capped/PATH    the same, each connection limited to `cap` bytes per second
/private/PATH   the same, for requests with an accepted bearer token; 401 without one, 403 with another
"""

from __future__ import annotations

from servers.certificates import Authority
from servers.daemon import Server, free_port, is_listening, need

CONFIGURATION = """
daemon off;
worker_processes 1;
pid %(folder)s/pid;
error_log stderr warn;
events { worker_connections 256; }
http {
  log_format requests '$request_method $uri $status $body_bytes_sent "$http_range"';
  access_log %(folder)s/access.log requests;
  client_body_temp_path %(folder)s/tmp;
  proxy_temp_path %(folder)s/tmp;
  fastcgi_temp_path %(folder)s/tmp;
  uwsgi_temp_path %(folder)s/tmp;
  scgi_temp_path %(folder)s/tmp;
  sendfile on;
  server {
    listen 127.0.0.1:%(port)d;
    listen 127.0.0.1:%(tls_port)d ssl;
    ssl_certificate %(chain)s;
    ssl_certificate_key %(key)s;
    root %(folder)s/files;
    location /capped/ { alias %(folder)s/files/; limit_rate %(cap)d; }
    location /private/ {
      set $token "";
      if ($http_authorization ~ "^Bearer ([A-Za-z0-9._-]+)$") { set $token $1; }
      if ($token = "") { return 401; }
      if (!-f %(folder)s/tokens/$token) { return 403; }
      alias %(folder)s/files/;
    }
  }
}
"""


class Nginx(Server):
    """An nginx that serves the directory `files`."""

    def __init__(self, authority: Authority, cap: int = 4 << 20) -> None:
        need("nginx-light")
        super().__init__("nginx")
        folder = self._daemon.folder
        self.files = folder / "files"
        self._tokens = folder / "tokens"
        for place in (self.files, self._tokens):
            place.mkdir()
        certificate = self._daemon.certify(authority)
        self._port, self._tls_port = free_port(), free_port()
        self._configuration = folder / "nginx.conf"
        self._configuration.write_text(
            CONFIGURATION
            % {
                "folder": folder,
                "port": self._port,
                "tls_port": self._tls_port,
                "chain": certificate.chain,
                "key": certificate.key,
                "cap": cap,
            }
        )

    def url(self, path: str, tls: bool = True) -> str:
        scheme, port = ("https", self._tls_port) if tls else ("http", self._port)
        return "%s://localhost:%d%s" % (scheme, port, path)

    def accept(self, token: str) -> None:
        """Accept this token from now on."""
        (self._tokens / token).touch()

    def refuse(self, token: str) -> None:
        """Stop accepting this token."""
        (self._tokens / token).unlink()

    @property
    def requests(self) -> list[str]:
        """One line per request: method, path, status, bytes of the body, and the requested range."""
        return (self._daemon.folder / "access.log").read_text().splitlines()

    def start(self) -> None:
        command = ["nginx", "-c", str(self._configuration), "-e", "stderr", "-p", str(self._daemon.folder)]
        self._daemon.start(command, lambda: is_listening(self._port) and is_listening(self._tls_port))

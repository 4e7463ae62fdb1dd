"""A certificate authority for tests, made with the openssl command and trusted only where configured."""

from __future__ import annotations

import ipaddress
import ssl
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Certificate:
    """The files of a server's certificate."""

    chain: Path
    key: Path

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.chain, self.key)
        return context


class Authority:
    """A certificate authority. `bundle` is its own certificate, for SSL_CERT_FILE or a setting."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.bundle = directory / "authority.pem"
        self._key = directory / "authority.key"
        directory.mkdir(parents=True, exist_ok=True)
        if not self.bundle.exists():
            self._openssl(
                *("req", "-x509", *_NEW_KEY, "-subj", "/CN=Authority for tests", "-days", "30"),
                *("-keyout", self._key, "-out", self.bundle),
                *("-addext", "basicConstraints=critical,CA:TRUE"),
                *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
            )

    def issue(self, name: str = "server", hosts: Sequence[str] = _LOOPBACK, days: int = 30) -> Certificate:
        """Issue a certificate for these hosts. With negative `days` it has already expired."""
        chain, key, request = (self._directory / (name + suffix) for suffix in (".pem", ".key", ".csr"))
        extensions = self._directory / (name + ".ext")
        extensions.write_text(
            "subjectAltName=%s\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n"
            % ",".join(("IP:" if _is_address(host) else "DNS:") + host for host in hosts)
        )
        self._openssl(
            *("req", "-new", *_NEW_KEY, "-subj", "/CN=" + hosts[0], "-keyout", key, "-out", request)
        )
        self._openssl(
            *("x509", "-req", "-in", request, "-CA", self.bundle, "-CAkey", self._key, "-CAcreateserial"),
            *("-days", str(days), "-extfile", extensions, "-out", chain),
        )
        return Certificate(chain, key)

    @staticmethod
    def _openssl(*arguments: str | Path) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True

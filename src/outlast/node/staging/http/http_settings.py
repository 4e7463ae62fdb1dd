"""Timeouts and size limits of the HTTP client."""

from __future__ import annotations

from dataclasses import dataclass

from outlast.node.staging.http.host_rules import HostRules

#: Largest size of the status line and headers, or of trailers, in bytes.
MAX_HEADER_BYTES = 64 * 1024
#: Longest line that announces a chunk, in bytes.
MAX_CHUNK_LINE = 1024
#: Redirects that are followed for one request.
MAX_REDIRECTS = 10
#: Addresses of one host that are tried.
MAX_ADDRESSES = 8


@dataclass(frozen=True)
class HttpSettings:
    #: Seconds for name resolution, connection, proxy and TLS together.
    connect_timeout: float = 15.0
    #: Seconds from the request until the response's headers are complete.
    first_byte_timeout: float = 15.0
    #: Seconds without a byte within a body. Below 15, so that the next source delivers within 15 seconds.
    stall_timeout: float = 14.0
    #: File of the certificates to trust instead of the system's; empty: the system's.
    ca_file: str = ""
    #: Accept a body of unannounced length that ends when the connection closes. It may be truncated, so this
    #: is only for files whose digest is checked.
    allow_unknown_length: bool = False
    #: The server on another machine that led here, if any. It must not make a node read its own services, as
    #: the credentials that clouds have at 169.254.169.254: no loopback or link-local address is used.
    redirected_by: str = ""
    #: For URLs that a stranger chose: the hosts that they, and redirects, may lead to; None: any.
    rules: HostRules | None = None

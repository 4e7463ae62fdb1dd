"""How long to wait for what, and how much to take."""

from __future__ import annotations

from dataclasses import dataclass

#: Bytes of status line and headers, or of trailers, after which an answer is nonsense.
HEAD = 64 * 1024
#: Bytes of a line that announces a chunk.
LINE = 1024
#: Redirects that are followed.
HOPS = 10
#: Addresses of one host that are tried.
ADDRESSES = 8


@dataclass(frozen=True)
class HttpSettings:
    #: Seconds for name, connection, proxy and TLS together.
    connect_limit: float = 15.0
    #: Seconds from the request until its answer's headers are there.
    first_byte_limit: float = 15.0
    #: Seconds without a byte in the middle of a body. The next source's first byte is to come within 15.
    stall_limit: float = 14.0
    #: A file with the certificates to trust instead of the system's.
    ca_file: str = ""
    #: Take a body whose length nobody announced and whose end is where the connection ends. It may have been
    #: cut: only for those who check a digest.
    unannounced_end: bool = False

"""The behaviour of a misbehaving server for one request. Fields combine; the default behaves well."""

from __future__ import annotations

import base64
import hashlib
import random
from dataclasses import dataclass

#: The Server header of a Pelican director, cache or origin.
PELICAN = "pelican/7.15.0"


@dataclass(frozen=True)
class Behaviour:
    """The response to one request."""

    # Instead of a response
    silent: bool = False  # read the request, send nothing
    rubbish: bytes = b""  # send these bytes and close, instead of HTTP
    endless_headers: bool = False  # send header lines until the client disconnects

    # Another response
    status: int | None = None  # an error with a short text; `headers` and `server` apply
    redirect: str = ""  # the Location; status 302 unless `status` is given
    server: str = "misbehaving"  # the Server header; empty: none
    headers: tuple[tuple[str, str], ...] = ()  # additional headers; they replace the usual ones

    # A body with wrong framing
    ignore_range: bool = False  # 200 and the whole file, whatever was requested
    other_range: int = 0  # 206, for a range that begins this many bytes later
    announce: int = 0  # added to Content-Length, which is then wrong
    chunked: bool = False  # chunks and trailers instead of Content-Length
    trailers: tuple[tuple[str, str], ...] = ()
    no_last_chunk: bool = False  # chunked, and closed instead of the last chunk
    until_close: bool = False  # neither length nor chunks: the body ends with the connection
    gzip: bool = False  # `Content-Encoding: gzip`, which was not requested

    # Wrong bytes, or an interrupted transfer
    flip: tuple[int, ...] = ()  # flip a bit of the bytes at these offsets of the file
    stall_after: int | None = None  # bytes of the body, then nothing until the client disconnects
    reset_after: int | None = None  # bytes of the body, then RST
    close_after: int | None = None  # bytes of the body, then close (with TLS: without close_notify)
    rate: int = 0  # bytes per second of this connection


def seeded(size: int, seed: int = 1) -> bytes:
    """Return random bytes, always the same ones for a seed."""
    return random.Random(seed).randbytes(size)


def crc32c(content: bytes) -> int:
    """Compute CRC-32C one bit at a time: for kilobytes only."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def digest_bytes(content: bytes, algorithm: str) -> bytes:
    """Compute a digest. `algorithm` is its name in a `Digest` header."""
    if algorithm == "crc32c":
        return crc32c(content).to_bytes(4, "big")
    return hashlib.new(algorithm.replace("-", ""), content).digest()


def rfc3230(content: bytes, algorithm: str, hexadecimal: bool = False) -> str:
    """Return the value of a `Digest` header. Servers disagree on hexadecimal or base64."""
    raw = digest_bytes(content, algorithm)
    return "%s=%s" % (algorithm, raw.hex() if hexadecimal else base64.b64encode(raw).decode())


def rfc9530(content: bytes, algorithm: str) -> str:
    """Return the value of a `Repr-Digest` header."""
    return "%s=:%s:" % (algorithm, base64.b64encode(digest_bytes(content, algorithm)).decode())

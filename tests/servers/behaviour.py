"""What a server that misbehaves can do with one request. The fields combine; none of them: well behaved."""

from __future__ import annotations

import base64
import hashlib
import random
from dataclasses import dataclass

#: What a Pelican director, cache or origin calls itself.
PELICAN = "pelican/7.15.0"


@dataclass(frozen=True)
class Behaviour:
    # Instead of an answer
    silent: bool = False  # the request is read, nothing is answered
    rubbish: bytes = b""  # these bytes and the end, instead of HTTP
    endless_headers: bool = False  # header lines until the client goes away

    # Another answer
    status: int | None = None  # an error with a short text; headers and `server` go along
    redirect: str = ""  # the Location; status 302 where none is given
    server: str = "misbehaving"  # what the Server header says; empty: no such header
    headers: tuple[tuple[str, str], ...] = ()  # sent along; one that is also sent anyway is replaced

    # A body with a mistake in its frame
    ignore_range: bool = False  # 200 and everything, whatever was asked for
    other_range: int = 0  # 206, for a range that begins so many bytes later
    announce: int = 0  # Content-Length is so much more (or less) than what comes
    chunked: bool = False  # chunks and trailers instead of Content-Length
    trailers: tuple[tuple[str, str], ...] = ()
    no_last_chunk: bool = False  # chunked, and closed where the last chunk should be
    until_close: bool = False  # neither length nor chunks: the end is where the connection ends
    gzip: bool = False  # `Content-Encoding: gzip`, which nobody asked for

    # A mistake in the bytes, or in their flow
    flip: tuple[int, ...] = ()  # a bit is flipped in the bytes at these places of the file
    stall_after: int | None = None  # so many bytes of the body, then nothing until the client goes away
    reset_after: int | None = None  # so many bytes, then RST
    close_after: int | None = None  # so many bytes, then the end (with TLS: without saying goodbye)
    rate: int = 0  # bytes per second of this connection


def seeded(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def crc32c(content: bytes) -> int:
    """One byte at a time: for kilobytes."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def digest_bytes(content: bytes, algorithm: str) -> bytes:
    """By its name in a `Digest` header."""
    if algorithm == "crc32c":
        return crc32c(content).to_bytes(4, "big")
    return hashlib.new(algorithm.replace("-", ""), content).digest()


def rfc3230(content: bytes, algorithm: str, hexadecimal: bool = False) -> str:
    """The value of a `Digest` header; servers disagree on whether it is hexadecimal or base64."""
    raw = digest_bytes(content, algorithm)
    return "%s=%s" % (algorithm, raw.hex() if hexadecimal else base64.b64encode(raw).decode())


def rfc9530(content: bytes, algorithm: str) -> str:
    """The value of a `Repr-Digest` header."""
    return "%s=:%s:" % (algorithm, base64.b64encode(digest_bytes(content, algorithm)).decode())

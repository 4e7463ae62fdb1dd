"""Results to bodies: files by value, in base64, or by reference, with the place where they were put.

Our own format has `files`, a list with name, size and sha256 of each, and `content_base64` or `place`.
Rodan's has the name of each file with its content, and nothing else: it knows no places.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from outlast.gateway.message_formats.clean_values import to_json
from outlast.gateway.message_formats.dialects import CLOUDEVENTS, RODAN
from outlast.gateway.message_formats.encoding import NO_FACTS, answer_members, envelope
from outlast.gateway.message_formats.failure_texts import failure
from outlast.gateway.requests import FailureCode, RequestFailure, ResultFile
from outlast.units import show_size

#: The content of a file: all of it, or an open file; None if the file has a place.
Content = bytes | BinaryIO | None

#: Bytes that are encoded at a time: a multiple of 3, so that the pieces join without padding.
_BLOCK = 3 * 64 * 1024


class ContentChanged(Exception):
    """A file has not the size or the digest any more that its answer states."""


def write_result(
    dialect: str,
    out: BinaryIO,
    id_: bytes,
    files: Sequence[tuple[ResultFile, Content]],
    facts: Mapping[str, Any] = NO_FACTS,
) -> None:
    """Write a result piece by piece: memory does not grow with the files that are read from open files.

    Raise ContentChanged, and leave `out` unfinished, if a content is not the one that was measured.
    """
    for piece in _pieces(dialect, id_, [file for file, _ in files], facts):
        if isinstance(piece, bytes):
            out.write(piece)
        else:
            _write_content(out, *files[piece])


def encode_result(
    dialect: str,
    id_: bytes,
    files: Sequence[tuple[ResultFile, Content]],
    facts: Mapping[str, Any] = NO_FACTS,
) -> bytes:
    """Return a result. Memory peaks at about twice the encoded size, besides contents given as bytes."""
    out = io.BytesIO()
    write_result(dialect, out, id_, files, facts)
    return out.getvalue()


def encoded_size(
    dialect: str, id_: bytes, files: Sequence[ResultFile], facts: Mapping[str, Any] = NO_FACTS
) -> int:
    """Return the bytes that the result will have, without reading a file. What has no place is by value."""
    return sum(
        len(piece) if isinstance(piece, bytes) else 4 * ((files[piece].size + 2) // 3)
        for piece in _pieces(dialect, id_, files, facts)
    )


def can_send_by_reference(dialect: str) -> bool:
    """Return True if results of this format may name places instead of holding contents."""
    return dialect != RODAN


def too_large(size: int, most: int, attempts: int = 0) -> RequestFailure:
    """Return the failure of a result that has no place and is larger than a message may be."""
    message = (
        f"The training has finished, but its result of {show_size(size)} is larger than a message may be "
        f"({show_size(most)}). The result is kept at the site."
    )
    return failure(FailureCode.RESULT_UNDELIVERABLE, message, attempts=attempts)


def _pieces(
    dialect: str, id_: bytes, files: Sequence[ResultFile], facts: Mapping[str, Any]
) -> Iterator[bytes | int]:
    """Yield a result in pieces; a number stands for the content of that file, in base64."""
    if len({file.name for file in files}) < len(files):
        raise ValueError("two files of a result have the same name")
    if dialect == RODAN:
        yield from _rodan_pieces(files)
        return
    in_envelope = dialect == CLOUDEVENTS
    yield envelope("result", id_, "result") if in_envelope else b""
    yield _opened(answer_members("result", id_, facts)) + b',"files":['
    for index, file in enumerate(files):
        yield b"," if index else b""
        members = {"name": file.name, "size": file.size, "sha256": file.sha256}
        if file.place:
            yield to_json({**members, "place": file.place})
        else:
            yield _opened(members) + b',"content_base64":"'
            yield index
            yield b'"}'
    yield b"]}}" if in_envelope else b"]}"


def _rodan_pieces(files: Sequence[ResultFile]) -> Iterator[bytes | int]:
    for index, file in enumerate(files):
        if file.place:
            raise ValueError("Rodan's format has no results by reference")
        yield (b"," if index else b"{") + to_json(file.name) + b':"'
        yield index
        yield b'"'
    yield b"}" if files else b"{}"


def _opened(members: Mapping[str, Any]) -> bytes:
    """Return an object without its closing brace."""
    return to_json(members)[:-1]


def _write_content(out: BinaryIO, file: ResultFile, content: Content) -> None:
    if content is None:
        raise ValueError(f"{file.name}: it has neither a content nor a place")
    digest, size = hashlib.sha256(), 0
    for block in _blocks(io.BytesIO(content) if isinstance(content, bytes) else content):
        digest.update(block)
        size += len(block)
        if size > file.size:
            break
        out.write(base64.b64encode(block))
    if size != file.size:
        raise ContentChanged(f"{file.name} has not the {file.size:,} bytes any more that it had")
    if file.sha256 and digest.hexdigest() != file.sha256:
        raise ContentChanged(f"{file.name} has another content than when it was checked")


def _blocks(source: BinaryIO) -> Iterator[bytes]:
    """Yield the content in blocks of _BLOCK bytes, of which only the last may be shorter."""
    pending = b""
    while read := source.read(_BLOCK - len(pending)):
        pending += read
        if len(pending) == _BLOCK:
            yield pending
            pending = b""
    if pending:
        yield pending

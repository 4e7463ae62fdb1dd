"""What a client gets: answers in our own format, and the files of a result, which are checked."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outlast.errors import BadInput, NotWritable
from outlast.filesystem import describe_error, write_durably
from outlast.text import printable
from outlast.untrusted_files import is_plain_name, parse_json, read_file

#: The most bytes of a file that is read from a shared directory.
LARGEST_FILE = 2**40
_LONGEST_NAME = 1000


class BadAnswer(Exception):
    """An answer, or a file of it, is not what it says."""


@dataclass(frozen=True)
class AnsweredFile:
    """A file of a result: its content, or the place where it was put."""

    name: str
    size: int
    sha256: str
    content: bytes | None = None
    place: str = ""


@dataclass(frozen=True)
class Answer:
    """An answer: a result, failure, status or progress. `facts` are all of its keys but `files`."""

    kind: str
    facts: Mapping[str, Any]
    files: Sequence[AnsweredFile] = field(default_factory=tuple)

    def text(self, key: str) -> str:
        """Return a fact as printable text; empty if there is none."""
        value = self.facts.get(key)
        return "" if value is None else printable(str(value))


def read_answer(body: bytes) -> Answer:
    """Return the answer in a body. Raise BadAnswer if it has another format, or a file fails its checks."""
    try:
        value = parse_json(body)
        if not isinstance(value, dict) or value.get("outlast") != 1 or not isinstance(value["kind"], str):
            raise ValueError
        files = tuple(map(_read_file, value.get("files", ())))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadAnswer("the answer is not in version 1 of Outlast's format") from error
    names = [file.name for file in files]
    if len(set(names)) < len(names):
        raise BadAnswer("the answer has two files of the same name")
    return Answer(value["kind"], {key: one for key, one in value.items() if key != "files"}, files)


def _read_file(raw: Mapping[str, Any]) -> AnsweredFile:
    name, size, sha256 = str(raw["name"]), int(raw["size"]), str(raw["sha256"])
    encoded = raw.get("content_base64")
    if encoded is None:
        return AnsweredFile(name, size, sha256, None, str(raw["place"]))
    try:
        content = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise BadAnswer("%s: its content is not base64" % printable(name)) from None
    _check_content(name, content, size, sha256)
    return AnsweredFile(name, size, sha256, content)


def _check_content(name: str, content: bytes, size: int, sha256: str) -> None:
    if len(content) != size:
        text = "%s: it has %d bytes, but its size was given as %d"
        raise BadAnswer(text % (printable(name), len(content), size))
    if hashlib.sha256(content).hexdigest() != sha256.lower():
        raise BadAnswer("%s: its sha256 is not the one that was given" % printable(name))


def prepare_directory(out: Path) -> None:
    """Create the directory for the files of a result. Raise BadInput unless it is new or empty."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise BadInput("%s is not empty; name a new directory with --out" % out)
    except OSError as error:
        raise NotWritable("--out: %s" % describe_error(error)) from error


def write_files(answer: Answer, out: Path) -> tuple[list[str], list[AnsweredFile]]:
    """Write the files of a result below `out`; return the names of these, and the files that are elsewhere.

    A file in a directory of this machine is copied and checked. Raise BadAnswer and NotWritable.
    """
    for file in answer.files:
        if not is_plain_name(file.name) or len(file.name) > _LONGEST_NAME or not file.name.isprintable():
            raise BadAnswer("%s: not a safe name of a file" % printable(file.name[:100]))
    written, elsewhere = [], []
    for file in answer.files:
        content = file.content if file.content is not None else _read_place(file)
        if content is None:
            elsewhere.append(file)
            continue
        target = out / file.name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_durably(target, content)
        except OSError as error:
            raise NotWritable("the result could not be written: %s" % describe_error(error)) from error
        written.append(file.name)
    return written, elsewhere


def _read_place(file: AnsweredFile) -> bytes | None:
    """Return the content of a file in a directory that this machine sees; None if there is none."""
    if not file.place.startswith("/"):
        return None
    try:
        content = read_file(file.place, min(file.size, LARGEST_FILE))
    except OSError:
        return None
    _check_content(file.name, content, file.size, file.sha256)
    return content

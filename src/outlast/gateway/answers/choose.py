"""How each file of a result travels: in the answer, by PUT to a URL of the request's, or in a directory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path

from outlast.gateway.requests import FailureCode, RequestFailure, ResultFile
from outlast.units import show_size

#: The share of the broker's limit that an answer may fill: headers and growth are not known exactly.
BROKER_SHARE = 0.75
#: What an answer has besides its files, in bytes: its envelope, and for each file its keys and its digest.
_ENVELOPE = 4096
_PER_FILE = 400


class Way(str, Enum):
    """How a file of a result travels."""

    VALUE = "value"
    UPLOAD = "upload"
    DIRECTORY = "directory"


def most_by_value(largest_answer: int, broker_limit: int | None) -> int:
    """Return the most bytes of an encoded answer. A broker whose limit is not known does not lower it."""
    if broker_limit is None:
        return largest_answer
    return min(largest_answer, int(broker_limit * BROKER_SHARE))


def encoded_size(files: Sequence[ResultFile]) -> int:
    """Return the most bytes that an answer with the content of these files has, base64-coded, in JSON."""
    return _ENVELOPE + sum(
        _PER_FILE + len(json.dumps(file.name)) + 4 * ((file.size + 2) // 3) for file in files
    )


def choose(
    files: Sequence[ResultFile],
    dialect: str,
    most: int,
    uploads: Mapping[str, str],
    directory: Path | None,
) -> dict[str, Way] | RequestFailure:
    """Return the way of each file, by its name, or the failure if there is none.

    `most`: see `most_by_value`. Files for which the request gives a URL in `uploads` are put there. The
    others are in the answer if that is small enough, else all of them are put into `directory`.
    """
    named = {file.name for file in files if file.name in uploads} if dialect != "rodan" else set()
    others = [file for file in files if file.name not in named]
    size = encoded_size(others)
    if size <= most:
        way = Way.VALUE
    elif directory is not None and dialect != "rodan":
        way = Way.DIRECTORY
    else:
        return _too_large(dialect, size, most)
    return {file.name: Way.UPLOAD if file.name in named else way for file in files}


def _too_large(dialect: str, size: int, most: int) -> RequestFailure:
    advice = "Ask for less: a smaller model, or fewer layers. The site keeps the result."
    if dialect != "rodan":
        advice = "Send URLs that accept PUT in `uploads`. The site keeps the result."
    return RequestFailure(
        FailureCode.RESULT_UNDELIVERABLE,
        f"The answer would have {show_size(size)}; at most {show_size(most)} can be sent",
        advice,
    )

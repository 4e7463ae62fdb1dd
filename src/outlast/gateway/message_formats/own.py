"""Our own format of requests, version 1. `request-1.json` says the same as JSON Schema."""

from __future__ import annotations

import base64
import binascii
import datetime
import re
from collections.abc import Callable
from typing import Any

from outlast.gateway.message_formats.failure_texts import failure
from outlast.gateway.message_formats.mistake_list import MistakeList, Path
from outlast.gateway.message_formats.object_reader import ObjectReader, check_text, check_whole, kind_of
from outlast.gateway.message_formats.strict_json import UNUSABLE
from outlast.gateway.requests import (
    Body,
    CancelRequest,
    FailureCode,
    InputReference,
    RequestRefused,
    StatusRequest,
    TrainingRequest,
)
from outlast.units import parse_duration, parse_size

VERSION = 1
KINDS = ("train", "cancel", "status")
#: The most bytes of an id: AMQP's limit for `correlation_id` and `message_id`.
LONGEST_ID = 255
LONGEST_NAME = 100
LONGEST_URL = 8000
MOST_NAMES = 1000
MOST_CPUS = 1_000_000
LARGEST_FILE = 10**18

_TEMPLATE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
_MOMENT = re.compile(
    r"(\d{4}-\d{2}-\d{2})[Tt ](\d{2}:\d{2}:\d{2})(?:\.(\d{1,9}))?(?:[Zz]|([+-]\d{2}:\d{2}))", re.ASCII
)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


def read_own(value: Any, path: Path, mistakes: MistakeList) -> Body | None:
    """Return the request in a JSON value; None if `mistakes` got some. Raise RequestRefused (version)."""
    if value is UNUSABLE:
        return None
    reader = ObjectReader(value, path, mistakes)
    if not reader.exists:
        return None
    _check_version(reader)
    kind = reader.text("kind", required=True)
    if kind is None or kind not in KINDS:
        if kind is not None:
            reader.add("kind", f"it must be one of {', '.join(KINDS)}")
        _find_foreign_keys(reader)
        return None
    if kind == "train":
        return _training(reader)
    id_ = _id(reader)
    reader.refuse_others()
    if id_ is None:
        return None
    return CancelRequest(id_) if kind == "cancel" else StatusRequest(id_)


def _check_version(reader: ObjectReader) -> None:
    if "outlast" not in reader.values:
        reader.add("outlast", f'it is missing; write "outlast": {VERSION}')
    version = reader.value("outlast")
    if version is UNUSABLE:
        return
    if isinstance(version, bool) or not isinstance(version, int):
        reader.add("outlast", f"the version is a whole number, not {kind_of(version)}")
    elif version != VERSION:
        message = f"The request is written in version {version}; this gateway reads version {VERSION}."
        raise RequestRefused(failure(FailureCode.UNSUPPORTED_VERSION, message))


def _find_foreign_keys(reader: ObjectReader) -> None:
    """Note the keys that are in no kind of request, where the kind itself is not known."""
    keys = ("template", "parameters", "inputs", "resources", "deadline", "uploads", "id", "id_base64")
    reader.refuse_others(keys)


def _training(reader: ObjectReader) -> TrainingRequest | None:
    template = reader.text("template", required=True, longest=10**6)
    if template is not None and not _TEMPLATE.fullmatch(template):
        text = "no template has such a name: letters, digits, `.`, `_` and `-`, at most 100"
        reader.mistakes.add(reader.at("template"), text, FailureCode.UNKNOWN_TEMPLATE)
    request = TrainingRequest(
        template=template or "",
        parameters=_named(reader, "parameters", _parameter),
        inputs=_named(reader, "inputs", _input),
        resources=_resources(reader),
        deadline=_deadline(reader),
        uploads=_named(reader, "uploads", _url),
    )
    reader.refuse_others()
    return None if reader.mistakes else request


def _named(reader: ObjectReader, key: str, read: Callable[[Any, Path, MistakeList], Any]) -> dict[str, Any]:
    """Return the values of an object whose keys are names that only the template knows."""
    inner = reader.object(key)
    if len(inner.values) > MOST_NAMES:
        reader.add(key, f"it has {len(inner.values):,} keys; at most {MOST_NAMES:,} are accepted")
        return {}
    found = {}
    for name, value in inner.values.items():
        if not 1 <= len(name) <= LONGEST_NAME:
            inner.add(name, f"a name has 1 to {LONGEST_NAME} characters")
        found[name] = read(value, inner.at(name), reader.mistakes)
    return found


def _parameter(value: Any, path: Path, mistakes: MistakeList) -> Any:
    if value is not UNUSABLE and not isinstance(value, (str, int, float)):
        mistakes.add(path, f"a text, a number, true or false is expected, not {kind_of(value)}")
    return value


def _url(value: Any, path: Path, mistakes: MistakeList) -> str:
    return check_text(value, path, mistakes, LONGEST_URL) or ""


def _input(value: Any, path: Path, mistakes: MistakeList) -> InputReference:
    if value is UNUSABLE:
        return InputReference("")
    if isinstance(value, str):
        return InputReference(_url(value, path, mistakes))
    if not isinstance(value, dict):
        mistakes.add(path, f"an address or an object with `url` is expected, not {kind_of(value)}")
        return InputReference("")
    reader = ObjectReader(value, path, mistakes)
    url = reader.text("url", required=True, longest=LONGEST_URL)
    sha256 = reader.text("sha256") or ""
    if sha256 and not _SHA256.fullmatch(sha256):
        reader.add("sha256", "64 hexadecimal digits are expected")
    size = check_whole(reader.value("size"), reader.at("size"), mistakes, 0, LARGEST_FILE)
    reader.refuse_others()
    return InputReference(url or "", sha256.lower(), size)


def _resources(reader: ObjectReader) -> dict[str, float]:
    inner = reader.object("resources")
    found = {
        "cpus": inner.whole("cpus", 1, MOST_CPUS),
        "gpus": inner.whole("gpus", 0, MOST_CPUS),
        "memory": _quantity(inner, "memory", parse_size),
        "disk": _quantity(inner, "disk", parse_size),
        "time": _quantity(inner, "time", parse_duration),
    }
    inner.refuse_others()
    return {name: value for name, value in found.items() if value is not None}


def _quantity(reader: ObjectReader, key: str, parse: Callable[[str], float]) -> float | None:
    """Return bytes or seconds from a text such as `16GB` or `2h`."""
    text = reader.text(key, longest=40)
    if text is None:
        return None
    if not text.isascii():
        reader.add(key, "only ASCII characters are accepted")
        return None
    try:
        return parse(text)
    except ValueError as error:
        reader.add(key, str(error))
        return None


def _deadline(reader: ObjectReader) -> float | None:
    text = reader.text("deadline", longest=50)
    if text is None:
        return None
    seconds = _seconds_since_1970(text)
    if seconds is None:
        reader.add("deadline", "a moment is written like 2026-11-19T12:00:00Z or 2026-11-19T12:00:00+01:00")
    return seconds


def _seconds_since_1970(text: str) -> float | None:
    """Return the time of an RFC 3339 timestamp, or None."""
    match = _MOMENT.fullmatch(text)
    if match is None:
        return None
    try:
        moment = datetime.datetime.fromisoformat(f"{match[1]}T{match[2]}{match[4] or '+00:00'}")
    except ValueError:
        return None
    # By subtraction: `timestamp` fails for moments that are out of range in local time.
    return (moment - _EPOCH).total_seconds() + float(f"0.{match[3] or 0}")


def _id(reader: ObjectReader) -> bytes | None:
    """Return the id of another request: `id`, a text, or `id_base64`, if it is no text."""
    if ("id" in reader.values) == ("id_base64" in reader.values):
        reader.value("id")
        reader.value("id_base64")
        reader.add("id", "one of `id` and `id_base64` is expected")
        return None
    if "id" in reader.values:
        text = reader.text("id", longest=LONGEST_ID)
        id_ = None if text is None else text.encode()
    else:
        written = reader.text("id_base64", longest=4 * LONGEST_ID)
        try:
            id_ = None if written is None else base64.b64decode(written.encode(), validate=True)
        except (binascii.Error, ValueError):
            reader.add("id_base64", "it is not base64")
            return None
    if id_ is not None and not 1 <= len(id_) <= LONGEST_ID:
        reader.add("id", f"an id has 1 to {LONGEST_ID} bytes")
        return None
    return id_

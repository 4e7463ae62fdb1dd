"""Compares the values in a record with the types that its dataclass declares.

A request is a file: whatever it contains, it must not reach the journal as a value that the controller cannot
use, because every later pass would meet it again.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any


def check_types(record: Any) -> None:
    """Raise TypeError if a field of the dataclass `record`, or of one in it, has a value of another type."""
    kind = type(record)
    if kind not in _HINTS:
        _HINTS[kind] = typing.get_type_hints(kind)
    for name, hint in _HINTS[kind].items():
        if not _fits(getattr(record, name), hint):
            raise TypeError("%s.%s has a wrong type" % (kind.__name__, name))


_HINTS: dict[type, dict[str, Any]] = {}


def _fits(value: Any, kind: Any) -> bool:
    if kind is str:  # first: of 100,000 runs, nearly all that is compared is text
        return isinstance(value, str) and is_encodable(value)
    if kind is Any:
        return True
    if is_dataclass(kind):
        if type(value) is kind:
            check_types(value)
        return type(value) is kind
    if isinstance(kind, type):
        return _fits_plain(value, kind)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return any(_fits(value, each) for each in inner)
    if origin is tuple:  # of any length: no record has another one
        return isinstance(value, tuple) and all(_fits(each, inner[0]) for each in value)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(
            _fits(key, inner[0]) and _fits(each, inner[1]) for key, each in value.items()
        )
    raise AssertionError("no record has fields of the type %s" % kind)


def _fits_plain(value: Any, kind: type) -> bool:
    if kind in (int, float) and isinstance(value, bool):
        return False
    if kind is float:
        return isinstance(value, (int, float)) and not math.isnan(value)
    return isinstance(value, kind)


def is_encodable(text: str) -> bool:
    """Return False for text with lone surrogates, which no file and no database can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

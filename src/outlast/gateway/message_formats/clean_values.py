"""Values from trainings, logs and messages, made fit for JSON that every reader accepts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

_DEEPEST = 20
_MOST_BITS = 63


def to_json(value: object) -> bytes:
    """Return JSON in ASCII, without spaces. Whatever JSON has no word for becomes null or text."""
    return json.dumps(clean(value), ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")


def clean(value: Any, depth: int = 0) -> Any:
    """Return the value with null for NaN, infinities, huge integers and what is nested too deeply.

    Halves of surrogate pairs become `?`, other objects their text.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8") if not _is_text(value) else str(value)
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _MOST_BITS else None
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth >= _DEEPEST:
        return None
    if isinstance(value, Mapping):
        return {clean(str(key)): clean(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(item, depth + 1) for item in value]
    return clean(str(value))


def _is_text(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True

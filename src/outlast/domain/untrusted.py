"""Bounds for values from files that a compute node wrote: they may hold anything that JSON can hold."""

from __future__ import annotations

import math
import re

#: No clock and no duration in seconds exceeds this: three thousand years.
_LONGEST_TIME = 1e11
#: The characters of the name of a host or a site; it is passed on in requests to schedulers.
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:-]{0,252}")


def text(value: object, longest: int) -> str:
    """Return a string, cut and without lone surrogates, which cannot be printed; empty if it is no string."""
    return value[:longest].encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def host(value: object) -> str:
    """Return the name of a host; empty if the value cannot be one."""
    return value if isinstance(value, str) and _HOST.fullmatch(value) else ""


def seconds(value: object) -> float | None:
    """Return a time or a duration; None if the value is neither, or no clock shows it."""
    if not isinstance(value, (int, float)) or not -_LONGEST_TIME < value < _LONGEST_TIME:
        return None
    return float(value)


def integer(value: object, least: int = 0) -> int | None:
    """Return an integer of at least `least` that fits into 64 bits; None for any other value."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**63:
        return None
    return value


def shown(value: object) -> str:
    """Return a value for one line on a terminal; `?` if it is neither text nor a number within bounds."""
    if isinstance(value, float) and math.isfinite(value):
        return "%.6g" % value
    whole = integer(value, -(2**63))
    return str(whole) if whole is not None else text(value, 100) or "?"

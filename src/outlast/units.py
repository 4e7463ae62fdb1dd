"""Parsing and showing durations and sizes. Standard library only."""

from __future__ import annotations

import math
import re

from outlast.node.quantities import show_size

__all__ = [
    "DURATION_EXAMPLES",
    "LARGEST",
    "LONGEST",
    "SIZE_EXAMPLES",
    "in_one_unit",
    "is_minutes_and_seconds",
    "parse_duration",
    "parse_size",
    "show_duration",
    "show_limit",
    "show_size",
    "write_duration",
]

DURATION_EXAMPLES = "write it like 90s, 30min, 24h, 2d, 24:00:00 or 2-12:00:00"
SIZE_EXAMPLES = "write it like 512MB, 2GB or 1.5GiB"

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_UNIT = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), "h"),
    **dict.fromkeys(("d", "day", "days"), "d"),
    **dict.fromkeys(("w", "week", "weeks"), "w"),
}
#: The limit below which a unit is used, its name, the smaller unit in seconds, how many it has, its name.
_SHOWN = ((60, "min", 1, 60, "s"), (24, "h", 60, 60, "min"), (100, "d", 3600, 24, "h"))
#: Ten years in seconds: longer than any cluster's limit, and too short to overflow anything.
LONGEST = 3650 * 86400.0
LARGEST = 10**18

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.ASCII)
_CLOCK = re.compile(r"(?:(?P<days>\d{1,6})-)?(?P<fields>\d{1,6}(?::\d{1,2}){0,2})", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgtp]?)(i?)b?|bytes?)", re.ASCII)


def parse_duration(text: str) -> float:
    """Return seconds. Raises ValueError with a message that shows how to write a duration."""
    lowered = text.strip().lower()
    seconds = _clock(lowered) if _CLOCK.fullmatch(lowered) and re.search("[-:]", lowered) else _parts(lowered)
    if seconds is None:
        if _NUMBER.fullmatch(lowered):
            if float(lowered) == 0:
                raise ValueError("must be more than zero")
            if not lowered.startswith("-"):
                number = _shorten(text)
                raise ValueError(f"{number} has no unit; write {number}h, {number}min or {number}s")
        if lowered.startswith("-"):
            raise ValueError(f'"{_shorten(text)}": a duration cannot be negative; {DURATION_EXAMPLES}')
        raise ValueError(f'"{_shorten(text)}" is not a duration; {DURATION_EXAMPLES}')
    if seconds <= 0:
        raise ValueError("must be more than zero")
    if seconds > LONGEST:
        raise ValueError(f'"{_shorten(text)}" is longer than ten years')
    return seconds


def is_minutes_and_seconds(text: str) -> bool:
    """Return True for `30:00`, which is parsed as in Slurm; many people mean hours and minutes."""
    return re.fullmatch(r"\s*\d{1,6}:\d{1,2}\s*", text, re.ASCII) is not None


def _clock(text: str) -> float | None:
    """Parse Slurm's forms MM:SS, HH:MM:SS, D-HH, D-HH:MM and D-HH:MM:SS; None if a field is too large."""
    match = _CLOCK.fullmatch(text)
    assert match is not None
    days = match["days"]
    fields = [int(field) for field in match["fields"].split(":")]
    if any(field > 59 for field in fields[1:]) or (days is not None and fields[0] > 23):
        return None
    if days is not None:
        hours, minutes, seconds = [*fields, 0, 0][:3]
    else:
        hours, minutes, seconds = [0, *fields][-3:]
    return float(int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds)


def _parts(text: str) -> float | None:
    """Parse `1h30m` and `90 min`: each unit at most once, longer ones first; None for other texts."""
    total, position, last = 0.0, 0, LONGEST
    while position < len(text):
        part = _PART.match(text, position)
        unit = _SECONDS.get(_UNIT.get(part[2], "")) if part else None
        if part is None or unit is None or unit >= last:
            return None
        total, position, last = total + float(part[1]) * unit, part.end(), unit
    return total if text else None


def parse_size(text: str) -> int:
    """Return bytes: GB is 10^9, GiB 2^30. Raises ValueError with a message that shows how to write a size."""
    lowered = text.strip().lower()
    if _NUMBER.fullmatch(lowered) and not lowered.startswith("-"):
        if float(lowered) == 0:
            raise ValueError("must be more than zero")
        raise ValueError(f"{_shorten(text)} has no unit; write {_shorten(text)}MB or {_shorten(text)}GB")
    match = _SIZE.fullmatch(lowered)
    if match is None or (match[3] and not match[2]):
        raise ValueError(f'"{_shorten(text)}" is not a size; {SIZE_EXAMPLES}')
    bytes_: float = float(match[1]) * (1024 if match[3] else 1000) ** " kmgtp".index(match[2] or " ")
    if bytes_ > LARGEST:
        raise ValueError(f'"{_shorten(text)}" is larger than any disk')
    if round(bytes_) <= 0:
        raise ValueError("must be more than zero")
    return round(bytes_)


def show_duration(seconds: float) -> str:
    """Return `4.2 s`, `5 min 07 s`, `1 h 03 min` or `2 d 04 h`: the two largest units."""
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 0:
        return f"-{show_duration(-seconds)}"
    if 0 < seconds < 0.05:
        return "<0.1 s"
    if seconds < 59.95:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    for most, name, part, per, part_name in _SHOWN:
        whole, rest = divmod(round(seconds / part), per)
        if whole < most:
            return f"{whole} {name}" + (f" {rest:02d} {part_name}" if rest else "")
    return f"{round(seconds / 86400):,} d"


def in_one_unit(seconds: float) -> tuple[float, str]:
    """Return `(24, "h")` or `(14, "d")`, as people write limits: days from two on, tenths if not whole."""
    units = (("d", 86400, 2 * 86400), ("h", 3600, 3600), ("min", 60, 60), ("s", 1, 0))
    fitting = [(unit, length) for unit, length, least in units if seconds >= least]
    whole = [(unit, length) for unit, length in fitting if seconds % length == 0 and seconds / length < 1000]
    unit, length = (whole or fitting)[0]
    return round(seconds / length, 1), unit


def show_limit(seconds: float) -> str:
    """Return a limit in one unit: `24 h`, `14 d`."""
    number, unit = in_one_unit(seconds)
    return f"{number:g} {unit}"


def write_duration(seconds: float) -> str:
    """Return `24h` or `90min`, as written in a file; never longer than `seconds`."""
    number, unit = in_one_unit(seconds)
    text = f"{number:g}{unit}"
    return text if parse_duration(text) <= seconds else f"{int(seconds)}s"


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 40 else text[:39] + "…"

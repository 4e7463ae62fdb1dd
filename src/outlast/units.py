"""Durations and sizes, as people write them and as people read them. Standard library only."""

from __future__ import annotations

import math
import re

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
#: Up to how many of a unit, the unit, the smaller one in seconds, how many of those it has, its name.
_SHOWN = ((60, "min", 1, 60, "s"), (24, "h", 60, 60, "min"), (100, "d", 3600, 24, "h"))
#: Ten years: beyond every cluster's limit, and far from where seconds overflow anything.
LONGEST = 3650 * 86400.0
LARGEST = 10**18

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.ASCII)
_CLOCK = re.compile(r"(?:(?P<days>\d{1,6})-)?(?P<fields>\d{1,6}(?::\d{1,2}){0,2})", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgtp]?)(i?)b?|bytes?)", re.ASCII)


def duration(text: str) -> float:
    """Seconds. Raises ValueError with a sentence that says how to write it."""
    written = text.strip().lower()
    seconds = _clock(written) if _CLOCK.fullmatch(written) and re.search("[-:]", written) else _parts(written)
    if seconds is None:
        if _NUMBER.fullmatch(written):
            if float(written) == 0:
                raise ValueError("must be more than zero")
            if not written.startswith("-"):
                number = _shown(text)
                raise ValueError(f"{number} has no unit; write {number}h, {number}min or {number}s")
        if written.startswith("-"):
            raise ValueError(f'"{_shown(text)}": a duration cannot be negative; {DURATION_EXAMPLES}')
        raise ValueError(f'"{_shown(text)}" is not a duration; {DURATION_EXAMPLES}')
    if seconds <= 0:
        raise ValueError("must be more than zero")
    if seconds > LONGEST:
        raise ValueError(f'"{_shown(text)}" is longer than ten years')
    return seconds


def is_minutes_and_seconds(text: str) -> bool:
    """`30:00` is read as Slurm reads it; many people mean hours and minutes by it."""
    return re.fullmatch(r"\s*\d{1,6}:\d{1,2}\s*", text, re.ASCII) is not None


def _clock(written: str) -> float | None:
    """Slurm's forms: MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS."""
    match = _CLOCK.fullmatch(written)
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


def _parts(written: str) -> float | None:
    """`1h30m`, `90 min`: each unit once, the longer one first."""
    total, position, last = 0.0, 0, LONGEST
    while position < len(written):
        part = _PART.match(written, position)
        unit = _SECONDS.get(_UNIT.get(part[2], "")) if part else None
        if part is None or unit is None or unit >= last:
            return None
        total, position, last = total + float(part[1]) * unit, part.end(), unit
    return total if written else None


def size(text: str) -> int:
    """Bytes; GB is 10^9 and GiB 2^30. Raises ValueError with a sentence that says how to write it."""
    written = text.strip().lower()
    if _NUMBER.fullmatch(written) and not written.startswith("-"):
        if float(written) == 0:
            raise ValueError("must be more than zero")
        raise ValueError(f"{_shown(text)} has no unit; write {_shown(text)}MB or {_shown(text)}GB")
    match = _SIZE.fullmatch(written)
    if match is None or (match[3] and not match[2]):
        raise ValueError(f'"{_shown(text)}" is not a size; {SIZE_EXAMPLES}')
    bytes_: float = float(match[1]) * (1024 if match[3] else 1000) ** " kmgtp".index(match[2] or " ")
    if bytes_ > LARGEST:
        raise ValueError(f'"{_shown(text)}" is larger than any disk')
    if round(bytes_) <= 0:
        raise ValueError("must be more than zero")
    return round(bytes_)


def show_duration(seconds: float) -> str:
    """`4.2 s`, `5 min 07 s`, `1 h 03 min`, `2 d 04 h`: the two largest units, the second left out if zero."""
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
    """`(24, "h")`, `(14, "d")`: as people speak of limits, in days from two on; to a tenth if not whole."""
    units = (("d", 86400, 2 * 86400), ("h", 3600, 3600), ("min", 60, 60), ("s", 1, 0))
    fitting = [(unit, size) for unit, size, least in units if seconds >= least]
    whole = [(unit, size) for unit, size in fitting if seconds % size == 0 and seconds / size < 1000]
    unit, size = (whole or fitting)[0]
    return round(seconds / size, 1), unit


def show_limit(seconds: float) -> str:
    """`24 h`, `14 d`."""
    number, unit = in_one_unit(seconds)
    return f"{number:g} {unit}"


def written(seconds: float) -> str:
    """`24h`, `90min`: as it would stand in a file, and never longer than `seconds`."""
    number, unit = in_one_unit(seconds)
    text = f"{number:g}{unit}"
    return text if duration(text) <= seconds else f"{int(seconds)}s"


def show_size(number: float) -> str:
    """`512 B`, `1.5 MB`, `2 GB`: decimal units, at most one decimal."""
    if number < 0:
        return f"-{show_size(-number)}"
    value = float(number)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.95:
            return f"{value:.1f}".removesuffix(".0") + f" {unit}"
        value /= 1000
    return f"{value:.1f}".removesuffix(".0") + " PB"


def _shown(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 40 else text[:39] + "…"

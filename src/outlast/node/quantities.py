"""Sizes and durations as short texts for messages of the node program; `outlast.units` re-exports some."""

from __future__ import annotations


def show_size(number: float) -> str:
    """Return `512 B`, `1.5 MB` or `2 GB`: decimal units, at most one decimal."""
    if number < 0:
        return "-" + show_size(-number)
    value = float(number)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.95:
            return "%s %s" % (_one_decimal(value), unit)
        value /= 1000
    return "%s PB" % _one_decimal(value)


def show_rounded_duration(seconds: float) -> str:
    """Return `0.4 s`, `4.3 min`, `13 h` or `2.5 d`: one unit, at most one decimal; days from two on."""
    for unit, length, least in (("d", 86400.0, 2.0), ("h", 3600.0, 1.0), ("min", 60.0, 1.0)):
        if seconds >= least * length:
            return "%g %s" % (round(seconds / length, 1), unit)
    return "%s s" % ("%.1g" % seconds if seconds < 1 else "%g" % round(seconds, 1))


def _one_decimal(value: float) -> str:
    text = "%.1f" % value
    return text[:-2] if text.endswith(".0") else text

"""The most that one entry adds to the journal, whatever a node or a scheduler has reported.

The readers of logs have limits of their own; this one holds for all of them, and for those to come.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outlast.domain.model import EntryKind, JournalEntry

#: The size of an entry's data above which it is shortened, about its bytes as JSON.
MOST_BYTES = 32_768
#: Tried one after the other: the longest text, in characters, and the most elements of a list or an object.
_LIMITS = ((2000, 50), (500, 40), (200, 20), (100, 5))
#: What a user submitted is recorded as it is.
_OWN = (EntryKind.ADDED, EntryKind.RETRIED, EntryKind.CANCEL_ASKED)


def limit(entry: JournalEntry) -> JournalEntry:
    """Return the entry, with its texts and lists shortened if it is too large."""
    if entry.kind in _OWN or _size(entry.data) <= MOST_BYTES:
        return entry
    data: Any = entry.data
    for longest, most in _LIMITS:
        data = _shorten(data, longest, most)
        if _size(data) <= MOST_BYTES:
            break
    return replace(entry, data=data)


def _size(value: Any) -> int:
    if isinstance(value, str):
        # Other characters are escaped: `\\uXXXX`.
        return len(value) + 2 if value.isascii() else 6 * len(value) + 2
    if isinstance(value, dict):
        return 2 + sum(_size(key) + _size(inner) + 2 for key, inner in value.items())
    if isinstance(value, (list, tuple)):
        return 2 + sum(_size(inner) + 1 for inner in value)
    return 20


def _shorten(value: Any, longest: int, most: int) -> Any:
    """Return the value with the beginnings of its texts, and the ends of its lists: the newest is there."""
    if isinstance(value, str):
        return value if len(value) <= longest else value[: longest - 1] + "…"
    if isinstance(value, dict):
        kept = list(value.items())[:most]
        return {key[:longest]: _shorten(inner, longest, most) for key, inner in kept}
    if isinstance(value, (list, tuple)):
        return [_shorten(inner, longest, most) for inner in value[-most:]]
    return value

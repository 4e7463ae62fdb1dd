"""The properties of an AMQP 0-9-1 message, from its bytes; whatever a sender put there, this returns.

A table and an array state their length in bytes, so one that cannot be read is skipped. Tables are walked
with a list of ends instead of recursion: headers nested 15,000 deep are no error of the interpreter.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from outlast.gateway.requests import Properties

#: The deepest nesting of tables and arrays that is not called damaged.
DEEPEST = 32
#: The last second of the year 9999: later times cannot be represented by most programs.
_LAST_TIME = 253_402_300_799
#: The sizes of values by their kinds. Strings, arrays and tables have a size of their own.
_SIZES = {
    **dict.fromkeys(b"tbB", 1),
    **dict.fromkeys(b"Uus", 2),
    **dict.fromkeys(b"Iif", 4),
    **dict.fromkeys(b"LldT", 8),
    ord("D"): 5,
    ord("V"): 0,
}
_LONG = struct.Struct(">I")
_TIME = struct.Struct(">Q")
#: Properties in the order of their bits, from the highest; the letter is the kind.
_FIELDS = (
    *(("content_type", "s"), ("content_encoding", "s"), ("headers", "F"), ("delivery_mode", "b")),
    *(("priority", "b"), ("correlation_id", "s"), ("reply_to", "s"), ("expiration", "s")),
    *(("message_id", "s"), ("timestamp", "T"), ("type", "s"), ("user_id", "s"), ("app_id", "s")),
    ("cluster_id", "s"),
)
_KEPT = {field for field, _ in _FIELDS} - {"headers", "delivery_mode", "cluster_id"}


@dataclass(frozen=True)
class HeaderTable:
    """What is used of a header table: why the message was dead-lettered last."""

    death: str = ""
    original_expiration: bytes | None = None
    #: It could not be read to its end, is nested too deeply, or has a time that no calendar has.
    damaged: bool = False


def decode_properties(data: bytes) -> Properties:
    """Return the properties in `data`: the flags and what follows them in a content header frame."""
    values: dict[str, bytes | int] = {}
    table = HeaderTable()
    try:
        flags, offset = _flags(data)
        for place, (name, kind) in enumerate(_FIELDS):
            if not flags & (0x8000 >> place):
                continue
            if kind == "F":
                table, offset = decode_table(data, offset)
                continue
            value, offset = _value(data, offset, kind)
            if name in _KEPT:
                values[name] = value
        whole = offset == len(data)
    except (IndexError, struct.error):
        whole = False
    return Properties(
        **values,  # type: ignore[arg-type]
        death=table.death,
        original_expiration=table.original_expiration,
        damaged=table.damaged or not whole,
    )


def decode_table(data: bytes, offset: int = 0) -> tuple[HeaderTable, int]:
    """Return what is used of the table at `offset`, and the offset behind it, which its length decides.

    Raises struct.error if not even its length is there, and IndexError if `data` ends before the table does.
    """
    end = offset + 4 + _LONG.unpack_from(data, offset)[0]
    if end > len(data):
        raise IndexError("the table ends after the data")
    walk = _Walk(data)
    try:
        walk.table(offset + 4, end)
        damaged = False
    except (IndexError, ValueError, struct.error):
        damaged = True
    return HeaderTable(walk.death, walk.original_expiration, damaged), end


class _Walk:
    """Walks a table and all in it, and keeps what is used of its first `x-death`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.death = ""
        self.original_expiration: bytes | None = None

    def table(self, start: int, end: int) -> None:
        """Walk the entries between two offsets. Raises ValueError, IndexError or struct.error."""
        data = self._data
        #: The containers around the offset: where each ends, and whether its values have keys.
        open_ends, keyed = [end], [True]
        path: list[bytes] = []
        deaths = 0
        offset = start
        while open_ends:
            if offset == open_ends[-1]:
                open_ends.pop()
                keyed.pop()
                del path[max(0, len(open_ends) - 1) :]
                continue
            key = b""
            if keyed[-1]:
                key_end = offset + 1 + data[offset]
                key, offset = data[offset + 1 : key_end], key_end
            kind, offset = data[offset], offset + 1
            size = _SIZES.get(kind)
            if size is None:
                if kind not in b"SxAF":
                    raise ValueError("an unknown kind of value")
                size = _LONG.unpack_from(data, offset)[0]
                offset += 4
            if offset + size > open_ends[-1]:
                raise ValueError("a value ends after its container")
            if kind in b"AF":
                if len(open_ends) > DEEPEST:
                    raise ValueError("nested too deeply")
                path.append(key)
                deaths += path == [b"x-death", b""]
                open_ends.append(offset + size)
                keyed.append(kind == ord("F"))
                continue
            if kind == ord("T") and _TIME.unpack_from(data, offset)[0] > _LAST_TIME:
                raise ValueError("a time out of range")
            if kind == ord("S") and deaths == 1 and path == [b"x-death", b""]:
                self._keep(key, data[offset : offset + size])
            offset += size

    def _keep(self, key: bytes, value: bytes) -> None:
        # The broker puts the newest death first.
        if key == b"reason":
            self.death = value[:64].decode("ascii", "replace")
        elif key == b"original-expiration":
            self.original_expiration = value


def _flags(data: bytes) -> tuple[int, int]:
    """Return the first 16 flags and the offset behind all of them. No later flag has a meaning."""
    offset = 0
    first = _short(data, 0)
    while _short(data, offset) & 1:
        offset += 2
    return first, offset + 2


def _short(data: bytes, offset: int) -> int:
    return data[offset] << 8 | data[offset + 1]


def _value(data: bytes, offset: int, kind: str) -> tuple[bytes | int, int]:
    if kind == "b":
        return data[offset], offset + 1
    if kind == "T":
        return _TIME.unpack_from(data, offset)[0], offset + 8
    end = offset + 1 + data[offset]
    if end > len(data):
        raise IndexError("a text ends after the data")
    return data[offset + 1 : end], end

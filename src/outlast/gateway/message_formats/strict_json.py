"""Bytes to a JSON value, and nothing that a reader could misunderstand.

Stricter than `json`: only UTF-8 (a BOM is skipped), at most 256 KiB and 32 levels, no key twice, no integer
longer than 19 digits, no NaN, no infinity, no control character and no lone surrogate in a text. Size
and depth are checked before anything is parsed, so memory stays bounded whatever the body is.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from typing import Any, Final

from outlast.gateway.message_formats.mistake_list import MistakeList, Path

#: The most bytes of a body that is parsed.
LARGEST_BODY = 256 * 1024
#: The most lists and objects inside each other.
DEEPEST = 32
#: The most digits of an integer: those of 2**63.
MOST_DIGITS = 19

_BRACKET = re.compile(rb"[\[\]{}]")
#: Line breaks, escape sequences of terminals, halves of surrogate pairs: in no text of a request.
_UNWANTED = frozenset(("Cc", "Cs", "Zl", "Zp"))


class Unusable:
    """Stands for a value in which a mistake was found: its readers need not report another."""


UNUSABLE: Final = Unusable()


def parse(body: bytes, mistakes: MistakeList) -> Any:
    """Return what the body holds; mistakes are added, and UNUSABLE stands for values that have one."""
    problem = _whole_body(body)
    if problem:
        mistakes.add((), problem)
        return UNUSABLE
    try:
        value = json.loads(
            body.decode("utf-8-sig"),
            parse_int=_integer,
            parse_float=_float,
            parse_constant=_Rejected,
            object_pairs_hook=_Pairs,
        )
    except UnicodeDecodeError as error:
        mistakes.add((), f"it is not UTF-8 (byte {error.start}); write JSON in UTF-8")
        return UNUSABLE
    except json.JSONDecodeError as error:
        mistakes.add(
            (), f"it is not JSON: {error.msg.rstrip(': ')} at line {error.lineno}, column {error.colno}"
        )
        return UNUSABLE
    return _check(value, (), mistakes)


class _Rejected:
    """A number that is refused, as it was written; its path is known only later."""

    def __init__(self, written: str, problem: str = "is no JSON number") -> None:
        shown = written if len(written) <= 20 else f"a number of {len(written):,} characters"
        self.text = f"{shown} {problem}"


class _Pairs(list[tuple[str, Any]]):
    """The keys and values of an object, in which a key may stand twice."""


def _whole_body(body: bytes) -> str:
    """Return what is wrong with the body before it is parsed, or an empty text."""
    if not body:
        return "it is empty; a JSON object is expected"
    if len(body) > LARGEST_BODY:
        return f"it has {len(body):,} bytes; at most {LARGEST_BODY:,} are accepted"
    if _is_too_deep(body):
        return f"it is nested too deeply; at most {DEEPEST} levels are accepted"
    return ""


def _is_too_deep(body: bytes) -> bool:
    """Return True if brackets outside of texts are nested deeper than DEEPEST.

    In valid JSON, backslashes stand only in texts. Without escaped backslashes and quotes, the quotes that
    are left begin and end texts. In other bodies this holds up to the first mistake, where parsing ends.
    """
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    depth = 0
    for outside in bare.split(b'"')[::2]:
        for bracket in _BRACKET.finditer(outside):
            depth += 1 if bracket[0] in b"[{" else -1
            if depth > DEEPEST:
                return True
    return False


def _integer(written: str) -> int | _Rejected:
    if len(written.lstrip("-")) > MOST_DIGITS:
        return _Rejected(written, f"has more than {MOST_DIGITS} digits")
    return int(written)


def _float(written: str) -> float | _Rejected:
    number = float(written)
    return number if math.isfinite(number) else _Rejected(written, "is too large")


def _check(value: Any, path: Path, mistakes: MistakeList) -> Any:
    """Return the value with dicts for pairs and UNUSABLE for what is refused. Its depth is bounded."""
    if isinstance(value, _Rejected):
        mistakes.add(path, value.text)
        return UNUSABLE
    if isinstance(value, str):
        if not is_clean(value):
            mistakes.add(path, "it has a control character, a line break or half of a surrogate pair")
            return UNUSABLE
        return value
    if isinstance(value, _Pairs):
        return _check_pairs(value, path, mistakes)
    if isinstance(value, list):
        return [_check(item, (*path, index), mistakes) for index, item in enumerate(value)]
    return value


def _check_pairs(pairs: _Pairs, path: Path, mistakes: MistakeList) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        here = (*path, key)
        if not is_clean(key):
            mistakes.add(here, "the key has a control character, a line break or half of a surrogate pair")
        elif key in found:
            mistakes.add(here, "the key is given twice")
            found[key] = UNUSABLE
        else:
            found[key] = _check(value, here, mistakes)
    return found


def is_clean(text: str) -> bool:
    """Return True if the text has no control character, line break or lone surrogate."""
    return text.isprintable() or all(unicodedata.category(character) not in _UNWANTED for character in text)

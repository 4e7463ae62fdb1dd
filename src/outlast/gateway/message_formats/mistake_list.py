"""The mistakes in a message: collected with their paths, so that the sender gets all of them at once."""

from __future__ import annotations

import json
import re

from outlast.gateway.message_formats.failure_texts import failure
from outlast.gateway.requests import FailureCode, RequestRefused
from outlast.text import counted, printable

#: The most mistakes that are listed.
MOST = 50
_LONGEST_KEY = 60
_LONGEST_TEXT = 300
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)

#: The keys and positions that lead to a value.
Path = tuple[str | int, ...]


class MistakeList:
    """Every mistake found in one message so far."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.left_out = 0
        self._codes: set[FailureCode] = set()

    def __bool__(self) -> bool:
        return bool(self._codes)

    def add(self, path: Path, text: str, code: FailureCode = FailureCode.INVALID_REQUEST) -> None:
        """Note a mistake in the value at `path`."""
        self._codes.add(code)
        if len(self.texts) < MOST:
            self.texts.append(shorten(f"{show_path(path)}: {printable(text)}", _LONGEST_TEXT))
        else:
            self.left_out += 1

    def raise_if_any(self) -> None:
        """Raise RequestRefused with all mistakes; its code is theirs if they agree, or `invalid_request`."""
        if not self:
            return
        code = self._codes.pop() if len(self._codes) == 1 else FailureCode.INVALID_REQUEST
        number = len(self.texts) + self.left_out
        more = (f"and {counted(self.left_out, 'more mistake')}",) if self.left_out else ()
        message = f"The request has {counted(number, 'mistake')}."
        raise RequestRefused(failure(code, message, mistakes=(*self.texts, *more)))


def show_path(path: Path) -> str:
    """Return `parameters.epochs` or `inputs["Layer 0"]`, in printable ASCII."""
    shown = ""
    for step in path:
        if isinstance(step, int):
            shown += f"[{step}]"
        elif _PLAIN_KEY.fullmatch(step) and len(step) <= _LONGEST_KEY:
            shown += f".{step}" if shown else step
        else:
            shown += f"[{json.dumps(shorten(step, _LONGEST_KEY))}]"
    return shown or "body"


def shorten(text: str, longest: int) -> str:
    """Return at most `longest` characters of a text, the last of them `…` if some are missing."""
    return text if len(text) <= longest else text[: longest - 1] + "…"

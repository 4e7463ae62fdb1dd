"""Standard output and standard error: all text passes here and loses what a terminal would execute.

Names, reasons and errors come from nodes, schedulers and other users. Newlines, tabs and the colours of the
commands stay. What moves the cursor on purpose is written to the stream below (`unfiltered`).
"""

from __future__ import annotations

import re
from typing import Any, TextIO

#: A colour as `click.style` writes it, or a character to replace: control characters, marks that reverse the
#: direction of text, and separators that some terminals take for newlines.
_CONTROL = re.compile(
    "(\x1b\\[(?:[012]|3[0-7])m)|[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)


def without_control(text: str) -> str:
    """Replace control characters, except newlines, tabs and colours."""
    return _CONTROL.sub(lambda found: found.group(1) or "\N{REPLACEMENT CHARACTER}", text)


class SafeOutput:
    """A text stream without control characters."""

    def __init__(self, stream: TextIO) -> None:
        self.unfiltered = stream

    def write(self, text: str) -> int:
        self.unfiltered.write(without_control(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unfiltered, name)


def unfiltered(stream: TextIO) -> TextIO:
    """Return the stream below, for text with control characters of our own."""
    return stream.unfiltered if isinstance(stream, SafeOutput) else stream

"""Standard output and standard error: all text passes here and loses what a terminal would execute.

Names, reasons and errors come from nodes, schedulers and other users. Newlines, tabs and the colours of the
commands stay. What moves the cursor on purpose is written to the stream below (`unfiltered`). Characters that
the stream's encoding does not have are replaced.
"""

from __future__ import annotations

import codecs
import os
import re
from typing import Any, TextIO, cast

#: A colour as `click.style` writes it, or a character to replace: control characters, marks that reverse the
#: direction of text, and separators that some terminals take for newlines.
_CONTROL = re.compile(
    "(\x1b\\[(?:[012]|3[0-7])m)|[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)

#: The same for what a training printed: colours of all kinds, the end of a line that is erased, and the
#: characters by which a progress bar is drawn anew stay.
_LOG_CONTROL = re.compile(
    "(\x1b\\[(?:[0-9;:]{0,30}m|[0-2]?K))"
    "|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)
#: The beginning of one of these sequences, at the end of a text.
_CUT_SEQUENCE = re.compile("\x1b(?:\\[[0-9;:]{0,30})?\\Z")

#: What to print where the encoding lacks a sign of the commands' own.
_PLAIN_SIGNS = str.maketrans(
    {"…": "...", "→": "->", "●": "*", "·": "-", "×": "x", "—": "-", "─": "-", "│": "|", "└": "`", "├": "|",
     "█": "#", "▏": "|", "µ": "u", "μ": "u", "√": "sqrt", "\N{REPLACEMENT CHARACTER}": "?"}
)  # fmt: skip


def encodable(text: str, encoding: str) -> str:
    """Replace the characters that the encoding does not have: signs by similar ones, letters by escapes."""
    try:
        text.encode(encoding)
        return text
    except UnicodeEncodeError:
        plain = text.translate(_PLAIN_SIGNS)
        return plain.encode(encoding, "backslashreplace").decode(encoding)


def without_control(text: str) -> str:
    """Replace control characters, except newlines, tabs and colours."""
    return _CONTROL.sub(lambda found: found.group(1) or "\N{REPLACEMENT CHARACTER}", text)


class LogFilter:
    """Makes the bytes of a log text for a terminal, in parts: without what could control it."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""

    def feed(self, content: bytes) -> str:
        """Return the text of the next bytes; a character or sequence that is cut follows with the rest."""
        text = self._rest + self._decode(content)
        cut = _CUT_SEQUENCE.search(text)
        text, self._rest = (text[: cut.start()], cut.group()) if cut else (text, "")
        return _LOG_CONTROL.sub(lambda found: found.group(1) or "\N{REPLACEMENT CHARACTER}", text)


def has_colours() -> bool:
    """Return True unless the user or the terminal wants no colours."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class EncodableOutput:
    """A text stream in which every text can be written, whatever its encoding."""

    encoding = "utf-8"

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._encoding = getattr(stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        self._stream.write(encodable(text, self._encoding))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class SafeOutput:
    """A text stream without control characters, in which every text can be written."""

    #: Click would replace a stream that it takes for ASCII by its own, without this filter.
    encoding = "utf-8"

    def __init__(self, stream: TextIO) -> None:
        self.unfiltered = cast(TextIO, EncodableOutput(stream))

    def write(self, text: str) -> int:
        self.unfiltered.write(without_control(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unfiltered, name)


def unfiltered(stream: TextIO) -> TextIO:
    """Return the stream below, for text with control characters of our own."""
    return stream.unfiltered if isinstance(stream, SafeOutput) else stream

"""Mistakes in a file: their place, their text, and a hint what to write instead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from outlast.errors import BadInput


@dataclass(frozen=True)
class Mistake:
    """One thing to correct. Lines and columns count from 1; only syntax errors have a column."""

    file: str
    line: int | None
    column: int | None
    text: str
    hint: str = ""

    def __post_init__(self) -> None:
        # Messages quote the file, which may contain line breaks and control characters.
        object.__setattr__(self, "text", _one_line(self.text))
        object.__setattr__(self, "hint", _one_line(self.hint))

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        return f"{place}: {self.text}" + (f"; {self.hint}" if self.hint else "")


class BadSpec(BadInput):
    """All mistakes in an experiment's files, one per line of the message."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return `did you mean "time"?`, or an empty text if no choice is similar."""
    near = nearest(word, choices)
    return f'did you mean "{near}"?' if near else ""


def nearest(word: str, choices: Iterable[str]) -> str:
    """Return the choice that was probably meant, or an empty text if none is similar."""
    by_lower = {choice.lower(): choice for choice in choices}
    near = get_close_matches(word.lower()[:100], by_lower, n=1, cutoff=0.6)
    return by_lower[near[0]] if near else ""


def one_of(choices: Iterable[str]) -> str:
    """Return `a, b or c`."""
    *most, last = list(choices)
    return f"{', '.join(most)} or {last}" if most else last


def shorten(value: object, longest: int = 60) -> str:
    """Return a value as text for a message, cut to `longest` characters."""
    text = str(value)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _one_line(text: str) -> str:
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )

"""What is wrong with a file, where, and what to write instead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from outlast.errors import BadInput


@dataclass(frozen=True)
class Mistake:
    """One thing to correct. Lines and columns count from 1; syntax errors alone have a column."""

    file: str
    line: int | None
    column: int | None
    text: str
    hint: str = ""

    def __post_init__(self) -> None:
        # Sentences quote what was written, which may hold line breaks or what no terminal can show.
        object.__setattr__(self, "text", _one_line(self.text))
        object.__setattr__(self, "hint", _one_line(self.hint))

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        return f"{place}: {self.text}" + (f"; {self.hint}" if self.hint else "")


class BadSpec(BadInput):
    """All mistakes of an experiment's files at once, one per line, in the order of the lines."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """`did you mean "time"?`, or nothing if no choice is near."""
    near = nearest(word, choices)
    return f'did you mean "{near}"?' if near else ""


def nearest(word: str, choices: Iterable[str]) -> str:
    """The choice that was probably meant; empty if none is near."""
    by_lower = {choice.lower(): choice for choice in choices}
    near = get_close_matches(word.lower()[:100], by_lower, n=1, cutoff=0.6)
    return by_lower[near[0]] if near else ""


def one_of(choices: Iterable[str]) -> str:
    """`a, b or c`."""
    *most, last = list(choices)
    return f"{', '.join(most)} or {last}" if most else last


def shorten(value: object, longest: int = 60) -> str:
    """A value as it is shown inside a sentence: not too long."""
    text = str(value)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _one_line(text: str) -> str:
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )

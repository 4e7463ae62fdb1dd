"""Text for people: plurals, and strings that are safe to print on a terminal."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a number and its noun, in the plural unless it is one: `1 run`, `2 runs`."""
    return "%s %s%s" % (format(number, ","), noun, "" if number == 1 else "s")


def printable(text: str) -> str:
    """Replace control characters other than tabs, which a terminal would execute."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character == "\t" else "\N{REPLACEMENT CHARACTER}"
        for character in text
    )

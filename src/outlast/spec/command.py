"""The command line of a run: split as a shell would, then filled in. Standard library only."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

#: `{name}`, or `{{name}}` for the literal `{name}`. `${name}` and every other brace stay as they are.
_PLACEHOLDER = re.compile(r"\{\{([A-Za-z_][A-Za-z0-9_]*)\}\}|(?<!\$)\{([A-Za-z_][A-Za-z0-9_]*)\}")
_OPERATOR = re.compile(r"\|\|?|&&?|;|>>?|<|`|\$\(|\n")


def split(command: str) -> list[str]:
    """Words as a shell would split them, with a backslash at a line's end joining it to the next.

    Raises ValueError if a quote is not closed.
    """
    return shlex.split(command.replace("\\\n", " "))


def arguments(command: str, params: Mapping[str, str]) -> tuple[str, ...]:
    """The argument list of one run. A value is put in after splitting, so it never becomes two arguments."""
    return tuple(fill(word, params) for word in split(command))


def fill(word: str, params: Mapping[str, str]) -> str:
    def put(match: re.Match[str]) -> str:
        literal, name = match.groups()
        return f"{{{literal}}}" if literal else params[name]

    return _PLACEHOLDER.sub(put, word)


def placeholders(command: str) -> list[str]:
    """The names that must be filled in, each once, in their order."""
    return list(dict.fromkeys(name for _, name in _PLACEHOLDER.findall(command) if name))


def shell_operator(command: str) -> str | None:
    """The first thing outside quotes that only a shell would understand."""
    bare = "".join(_bare(command.replace("\\\n", " ").strip()))
    found = _OPERATOR.search(bare)
    return found[0] if found else None


def shell_variable(command: str) -> str | None:
    """The first `$NAME` or `${NAME}` that a shell would replace and nothing here does."""
    if split(command)[:1] in (["bash"], ["sh"]):
        return None
    found = re.search(r"\$\{?[A-Za-z_][A-Za-z0-9_]*\}?", "".join(_bare(command, keep_double=True)))
    return found[0] if found else None


def _bare(command: str, *, keep_double: bool = False) -> Iterator[str]:
    """The characters outside quotes; what is quoted is left out, or only what is in single quotes."""
    quote = ""
    escaped = False
    for character in command:
        if escaped:
            escaped = False
        elif character == "\\" and quote != "'":
            escaped = True
        elif quote:
            if character == quote:
                quote = ""
            elif quote == '"' and keep_double:
                yield character
        elif character in "'\"":
            quote = character
        else:
            yield character

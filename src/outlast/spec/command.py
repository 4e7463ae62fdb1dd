"""The command line of a run: splitting as a shell does, and placeholders. Standard library only."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

from outlast.node import environment

#: `{name}`, or `{{name}}` for the literal `{name}`. `${name}` and every other brace stay as they are.
_PLACEHOLDER = re.compile(r"\{\{([A-Za-z_][A-Za-z0-9_]*)\}\}|(?<!\$)\{([A-Za-z_][A-Za-z0-9_]*)\}")
_OPERATOR = re.compile(r"\|\|?|&&?|;|>>?|<|`|\$\(|\n")


def split(command: str) -> list[str]:
    """Split a command into words as a shell does; a backslash at the end of a line joins it to the next.

    Raises ValueError if a quote is not closed.
    """
    return shlex.split(command.replace("\\\n", " "))


def arguments(command: str, params: Mapping[str, str]) -> tuple[str, ...]:
    """Return the arguments of one run. Values are filled in after splitting: each stays one argument."""
    return tuple(fill(word, params) for word in split(command))


def fill(word: str, params: Mapping[str, str]) -> str:
    """Replace the placeholders in a word by their values."""

    def replace(match: re.Match[str]) -> str:
        literal, name = match.groups()
        return f"{{{literal}}}" if literal else params[name]

    return _PLACEHOLDER.sub(replace, word)


def placeholders(command: str) -> list[str]:
    """Return the names of the placeholders, each once, in their order."""
    return list(dict.fromkeys(name for _, name in _PLACEHOLDER.findall(command) if name))


def shell_operator(command: str) -> str | None:
    """Return the first shell operator outside quotes, or None."""
    bare = "".join(_outside_quotes(command.replace("\\\n", " ").strip()))
    found = _OPERATOR.search(bare)
    return found[0] if found else None


def shell_variable(command: str) -> str | None:
    """Return the first `$NAME` or `${NAME}` that only a shell would expand; None if the command runs one."""
    words = split(command)
    if words[:1] in (["bash"], ["sh"]):
        return None
    text = "".join(_outside_quotes(command, keep_double=True))
    found = (match[0] for match in re.finditer(r"\$\{?[A-Za-z_][A-Za-z0-9_]*\}?", text))
    return next((variable for variable in found if not environment.replaces(variable, words)), None)


def _outside_quotes(command: str, *, keep_double: bool = False) -> Iterator[str]:
    """Yield the characters outside quotes; with `keep_double`, also those in double quotes."""
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

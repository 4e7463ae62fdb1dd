"""Checks that a text from a request stays one harmless argument of the command, whatever is in it.

Values are filled in after the command was split into words, so they cannot add words. But a word may be a
program of its own, such as that of `bash -c`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from outlast.gateway.settings import Parameter
from outlast.spec import command as commands

#: What may surround a placeholder in a word: the name of an option, a part of a path or a URL.
_HARMLESS = re.compile(r"[A-Za-z0-9_./:=,@%+-]*")
#: Options of shells and interpreters whose value is a program.
_PROGRAMS = frozenset({"-c", "-e", "-lc", "-ec", "--eval", "--command", "-r"})


def argument_mistakes(command: str, parameters: Mapping[str, Parameter]) -> Iterator[tuple[str, str, str]]:
    """Yield the parameter, the mistake and a hint for each text that could become part of a program."""
    texts = {name for name, parameter in parameters.items() if parameter.type == "text"}
    words = commands.split(command)
    for index, word in enumerate(words):
        names = [name for name in commands.placeholders(word) if name in texts]
        if not names:
            continue
        rest = commands.fill(word, dict.fromkeys(commands.placeholders(word), ""))
        if index == 0:
            yield names[0], "the command would run a program that a request names", "write the program's name"
        elif not _HARMLESS.fullmatch(rest) or words[index - 1] in _PROGRAMS:
            hint = 'pass it as a word of its own, such as --name {name}, and read it as "$1" or sys.argv[1]'
            yield names[0], "a request's text would be a part of a program in the command", hint

"""Checks of a command line before it is run."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from outlast.spec import code_files
from outlast.spec import command as commands
from outlast.spec.mistakes import did_you_mean, shorten

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)


def command_mistakes(command: str, directory: Path) -> list[tuple[str, str]]:
    """Return messages and hints about a command (or a check) that cannot be run as it is written."""
    try:
        words = commands.split(command)
    except ValueError:
        return [("a quote is opened and not closed", "")]
    if not words or not words[0]:
        return [("is empty", "write the command that trains, such as python train.py")]
    found = list(_shell_syntax(command, words))
    return found or list(_script(words, directory))


def _shell_syntax(command: str, words: list[str]) -> Iterator[tuple[str, str]]:
    operator = commands.shell_operator(command)
    if operator == "\n":
        yield "has several lines, but is not run by a shell", "put them into a script, and list it under code"
    elif operator is not None:
        hint = "put it into a script, list it under code, or write bash -c '…'; quote it if it is a value"
        yield f'"{operator}" is shell syntax, but the command is not run by a shell', hint
    if _ASSIGNMENT.fullmatch(words[0]):
        yield f"{shorten(words[0])} is shell syntax", "set the variable under env: in params.yaml"


def _script(words: list[str], directory: Path) -> Iterator[tuple[str, str]]:
    script = code_files.missing_script(words, directory)
    if script is not None:
        near = did_you_mean(script, _names(directory))
        hint = near or "put it beside params.yaml and list it under code:"
        yield f"{shorten(script)} is not in {directory}", hint
    first = words[0]
    if code_files.relative_path_mistake(first) or not code_files.is_file(directory, first):
        return
    if "/" not in first:
        hint = f"write ./{first} or python {first}"
        yield f"{shorten(first)} is a file beside params.yaml, not a program on the PATH", hint
    elif not os.access(directory / first, os.X_OK):
        yield f"{shorten(first)} is not executable", f"chmod +x {first}"


def command_warnings(command: str, directory: Path) -> Iterator[tuple[str, str]]:
    """Yield messages and hints about a command that can be run but probably means something else."""
    try:
        words = commands.split(command)
        variable = commands.shell_variable(command)
    except ValueError:
        return
    if variable is not None:
        yield (
            f"{shorten(variable)} is passed literally, because the command is not run by a shell",
            "write bash -c '…'",
        )
    if words and "/" not in words[0] and "{" not in words[0] and not code_files.is_file(directory, words[0]):
        try:
            found = shutil.which(words[0])
        except ValueError:
            found = None
        if found is None:
            instead = _python_instead() if words[0] == "python" else ""
            yield f"{shorten(words[0])} is not found on this machine's PATH", instead


def _python_instead() -> str:
    """Return which Python `outlast.node.environment.resolve_python` uses if there is no `python`."""
    if shutil.which("python3"):
        return "python3 is used instead"
    return f"{sys.executable}, which runs Outlast, is used instead"


def _names(directory: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in directory.iterdir())
    except OSError:
        # Then there is no suggestion.
        return []

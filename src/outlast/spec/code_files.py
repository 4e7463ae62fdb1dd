"""The files of the experiment directory that the runs need and that travel with the job."""

from __future__ import annotations

import ast
import os
import posixpath
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from outlast.spec.mistakes import shorten

#: Outlast's own directories inside the experiment; never part of the code.
OWN_DIRECTORIES = frozenset({"logs", "results", "params", "workdir"})
JOURNAL = "journal.sqlite"
_INTERPRETER = re.compile(r"(python[0-9.]*|pypy[0-9.]*|bash|sh|dash|zsh|ksh|perl|ruby|julia|Rscript|node)")
_MOST_PARSED = 1 << 20


def relative_path_mistake(path: str) -> str:
    """Return why `path` is not a path below a directory; an empty text if it is one."""
    if posixpath.isabs(path) or path.startswith("~"):
        return "must be relative, below the experiment directory"
    if ".." in path.split("/"):
        return 'must not contain ".."'
    if posixpath.normpath(path) == ".":
        return "must name something inside the directory, not the directory itself"
    return ""


def code_mistake(entry: str, directory: Path) -> tuple[str, str]:
    """Return why `entry` cannot be part of the code, and a hint; two empty texts if it can."""
    shown = shorten(entry)
    wrong = relative_path_mistake(entry)
    if wrong:
        hint = "list the files and folders that the command needs" if posixpath.normpath(entry) == "." else ""
        return f'"{shown}" {wrong}', hint
    first = posixpath.normpath(entry).split("/")[0]
    if first in OWN_DIRECTORIES or first.startswith(JOURNAL):
        return f'"{shown}" is where Outlast keeps its own files', "remove it, or move code to another place"
    path = directory / entry
    try:
        if not path.exists():
            return f'"{shown}" does not exist', "it is a broken symbolic link" if path.is_symlink() else ""
        if not (path.is_file() or path.is_dir()):
            return f'"{shown}" is neither a file nor a folder', ""
    except (OSError, ValueError) as error:
        return f'"{shown}" cannot be accessed: {getattr(error, "strerror", None) or error}', ""
    if not os.access(path, os.R_OK):
        return f'"{shown}" cannot be read', f"chmod u+r {shown}"
    return "", ""


def normalise(paths: Iterable[str]) -> tuple[str, ...]:
    """Return each path once, without `./` and trailing slashes."""
    return tuple(dict.fromkeys(posixpath.normpath(path) for path in paths))


def covers(code: Sequence[str], path: str) -> bool:
    """Return True if the code has `path`, a folder that contains it, or (for a package) a file in it."""
    return any(
        path == entry or path.startswith(f"{entry}/") or entry.startswith(f"{path}/")
        for entry in normalise(code)
    )


def is_file(directory: Path, path: str) -> bool:
    """Return True if `path` is a file in `directory`; False for texts that cannot be a path."""
    try:
        return (directory / path).is_file()
    except (OSError, ValueError):
        # A word of a command can be too long for a file name, or contain a NUL.
        return False


def missing_script(words: Sequence[str], directory: Path) -> str | None:
    """Return the script that the command runs if it does not exist; else None."""
    script = None
    if words and "/" in words[0]:
        script = words[0]
    elif len(words) > 1 and _INTERPRETER.fullmatch(words[0]) and not words[1].startswith("-"):
        script = words[1]
    if script is None or relative_path_mistake(script) or "{" in script or "$" in script:
        return None
    return None if is_file(directory, script) else posixpath.normpath(script)


def named_files(words: Sequence[str], directory: Path) -> list[str]:
    """Return the files in `directory` that a command line names, also as `--option=file` and `-m module`."""
    found: list[str] = []
    for index, word in enumerate(words):
        if index and words[index - 1] == "-m":
            found += _module(word.split("."), directory)
            continue
        for candidate in (word, word.partition("=")[2]):
            if candidate and not relative_path_mistake(candidate) and is_file(directory, candidate):
                found.append(posixpath.normpath(candidate))
    return list(dict.fromkeys(found))


def imported_files(paths: Iterable[str], directory: Path) -> list[str]:
    """Return the files in `directory` that the Python files in `paths` import, also indirectly."""
    found: dict[str, None] = {}
    waiting = [path for path in paths if path.endswith(".py")]
    while waiting:
        script = waiting.pop()
        folder = posixpath.dirname(script)
        for name in _imports(directory / script):
            for neighbour in _module([name], directory / folder):
                path = posixpath.join(folder, neighbour)
                if path not in found:
                    found[path] = None
                    waiting += [path] if path.endswith(".py") else []
    return list(found)


def _module(parts: Sequence[str], directory: Path) -> list[str]:
    """Return the path of a Python module in `directory`: its file or top-level package; else nothing."""
    if not all(part.isidentifier() for part in parts):
        return []
    if len(parts) == 1 and is_file(directory, f"{parts[0]}.py"):
        return [f"{parts[0]}.py"]
    inside = "/".join(parts)
    if any(is_file(directory, f"{inside}{end}") for end in (".py", "/__main__.py", "/__init__.py")):
        return [parts[0]]
    return []


def _imports(path: Path) -> list[str]:
    """Return the top-level names that a Python file imports; none if it cannot be parsed."""
    try:
        if path.stat().st_size > _MOST_PARSED:
            return []
        tree = ast.parse(path.read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        # Python reports the error when the script runs.
        return []
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name.split(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.append(node.module.split(".")[0])
    return list(dict.fromkeys(names))

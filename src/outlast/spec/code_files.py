"""The files of the experiment directory that the runs need and that travel with the job."""

from __future__ import annotations

import ast
import os
import posixpath
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from outlast.spec.mistakes import shorten

#: Outlast's own directories inside the experiment; never part of the code.
OWN_DIRECTORIES = frozenset({"logs", "results", "params", "workdir"})
JOURNAL = "journal.sqlite"
_INTERPRETER = re.compile(r"(python[0-9.]*|pypy[0-9.]*|bash|sh|dash|zsh|ksh|perl|ruby|julia|Rscript|node)")
_MOST_PARSED = 1 << 20
#: Endings of files that a script calls.
_SCRIPTS = (".py", ".sh", ".bash")
_MOST_SEARCHED = 500


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


def needed_files(paths: Iterable[str], directory: Path) -> dict[str, str]:
    """Return the files in `directory` that the scripts in `paths` import or call, also indirectly.

    Each with the word for it, and the script: "is imported by train.py", "is called by run.sh".
    """
    found: dict[str, str] = {}
    waiting = list(paths)
    known = set(waiting)
    while waiting:
        script = waiting.pop()
        for path, how in _neighbours(script, directory):
            if path not in known:
                known.add(path)
                found[path] = f"is {how} by {shorten(script)}"
                waiting.append(path)
    return found


def _neighbours(script: str, directory: Path) -> Iterator[tuple[str, str]]:
    """Yield the files that one script needs, and how."""
    folder = posixpath.dirname(script)
    if script.endswith(".py"):
        tree = _parse(directory / script)
        for name in _imports(tree):
            for neighbour in _module([name], directory / folder):
                yield posixpath.join(folder, neighbour), "imported"
        words = _texts(tree)
    elif script.endswith((".sh", ".bash")):
        words = _shell_words(directory / script)
    else:
        return
    for word in words:
        # A job starts in the directory that has the code, whatever the folder of the script.
        own = word.split("/")[0] in OWN_DIRECTORIES
        if (
            word.endswith(_SCRIPTS)
            and not own
            and not relative_path_mistake(word)
            and is_file(directory, word)
        ):
            yield posixpath.normpath(word), "called"


def required_modules(scripts: Iterable[str], directory: Path) -> dict[str, str]:
    """Return the modules outside `directory` that Python files import when they start, and by which file."""
    found: dict[str, str] = {}
    for path in (*scripts, *needed_files(scripts, directory)):
        if not path.endswith(".py"):
            continue
        folder = directory / posixpath.dirname(path)
        for name in _imports(_parse(directory / path), only_required=True):
            if name not in sys.stdlib_module_names and name != "outlast" and not _module([name], folder):
                found.setdefault(name, path)
    return found


def mentions(words: Iterable[str], code: Iterable[str], directory: Path) -> bool | None:
    """Return True if a script of the code contains one of `words`; None if it has no script to search."""
    wanted = [word.encode() for word in words]
    searched: bool | None = None
    for path in islice(_files(code, directory), _MOST_SEARCHED):
        text = _read(path)
        if any(word in text for word in wanted):
            return True
        searched = False if text and path.name.endswith(_SCRIPTS) else searched
    return searched


def _files(code: Iterable[str], directory: Path) -> Iterator[Path]:
    for entry in code:
        path = directory / entry
        if path.is_dir():
            for folder, folders, names in os.walk(path):
                folders[:] = sorted(name for name in folders if not name.startswith((".", "__pycache__")))
                yield from (Path(folder) / name for name in sorted(names) if name.endswith(_SCRIPTS))
        else:
            yield path


def is_python(word: str) -> bool:
    """Return True if the first word of a command is a Python interpreter."""
    return re.fullmatch(r"python[0-9.]*", posixpath.basename(word)) is not None


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


def _parse(path: Path) -> ast.Module:
    """Parse a Python file; return an empty module if that is not possible: Python reports it in the job."""
    try:
        return ast.parse(_read(path))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return ast.Module([], [])


def _read(path: Path) -> bytes:
    """Return the content of a script; nothing if it cannot be read or is too large to be one."""
    try:
        return path.read_bytes() if path.stat().st_size <= _MOST_PARSED else b""
    except OSError:
        return b""


def _texts(tree: ast.Module) -> list[str]:
    """Return the words in the string constants of a Python file."""
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return [word for text in constants if isinstance(text, str) and len(text) < 1000 for word in text.split()]


def _shell_words(path: Path) -> list[str]:
    """Return the words of a shell script, without comments and quotes."""
    lines = _read(path).decode("utf-8", "replace").splitlines()
    return [
        word.strip("\"'").removeprefix("./")
        for line in lines
        if not line.lstrip().startswith("#")
        for word in re.split(r"[\s;&|()<>=`$]+", line)
    ]


def _imports(tree: ast.Module, *, only_required: bool = False) -> list[str]:
    """Return the top-level names that a Python file imports; `only_required`: without optional ones.

    An import inside a function, a condition or a `try` may never be done.
    """
    names: list[str] = []
    for node in tree.body if only_required else ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name.split(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.append(node.module.split(".")[0])
    return list(dict.fromkeys(names))

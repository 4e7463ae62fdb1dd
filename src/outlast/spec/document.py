"""A YAML file as a tree of nodes, each with its line and its text as written.

Scalars follow YAML 1.2: `1e-3` is a number, `24:00:00` and `yes` are text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TypeAlias

from outlast.spec.mistakes import Mistake, shorten

Path_: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True)
class Scalar:
    """A single value. `size` counts nodes, as in the other two."""

    line: int
    text: str
    quoted: bool
    size: int = 1

    @property
    def value(self) -> str | int | float | bool | None:
        return self.text if self.quoted else resolve(self.text)


@dataclass(frozen=True)
class Sequence:
    line: int
    items: tuple[Node, ...]
    size: int


@dataclass(frozen=True)
class Mapping:
    line: int
    entries: dict[str, Node]
    key_lines: dict[str, int]
    size: int


Node: TypeAlias = Scalar | Sequence | Mapping


@dataclass(frozen=True)
class Document:
    """A parsed file. A path into it is a tuple of keys and list indices from 0."""

    file: str
    root: Mapping
    #: Mistakes found while parsing: duplicate keys.
    mistakes: tuple[Mistake, ...] = ()

    def find(self, path: Path_) -> Node | None:
        """Return the node at `path`, or None if there is none."""
        node: Node | None = self.root
        for step in path:
            if isinstance(node, Mapping):
                node = node.entries.get(str(step))
            elif isinstance(node, Sequence) and isinstance(step, int) and step < len(node.items):
                node = node.items[step]
            else:
                return None
        return node

    def text(self, path: Path_) -> str | None:
        """Return the scalar at `path` as it was written; None if there is no scalar."""
        node = self.find(path)
        return node.text if isinstance(node, Scalar) else None

    def line(self, path: Path_, *, of_key: bool = False) -> int | None:
        """Return the line of the value (or key) at `path`, or of the nearest parent that exists."""
        while path:
            parent, node = self.find(path[:-1]), self.find(path)
            if node is not None:
                key_line = parent.key_lines.get(str(path[-1])) if isinstance(parent, Mapping) else None
                empty = isinstance(node, Scalar) and not node.text and not node.quoted
                return key_line if key_line and (of_key or empty) else node.line
            path, of_key = path[:-1], True
        return None

    def mistake(self, path: Path_, text: str, hint: str = "", *, of_key: bool = False) -> Mistake:
        """Return a mistake at `path`; its text begins with the path."""
        return Mistake(
            self.file,
            self.line(path, of_key=of_key),
            None,
            f"{show_path(path)}: {text}" if path else text,
            hint,
        )


def show_path(path: Path_) -> str:
    """Return a path for people: `outputs[1].key`. Indices are shown from 1."""
    shown = ""
    for step in path:
        shown += f"[{step + 1}]" if isinstance(step, int) else f".{shorten(step, 40)}"
    return shown.lstrip(".")


def plain(node: Node) -> Any:
    """Return the values only, as dict, list, str, int, float, bool and None."""
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Sequence):
        return [plain(item) for item in node.items]
    return {key: plain(entry) for key, entry in node.entries.items()}


_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"([-+]?)\.(inf|Inf|INF)")


def resolve(text: str) -> str | int | float | bool | None:
    """Return the value of an unquoted scalar in YAML 1.2's core schema, without octal and hexadecimal."""
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if _INT.fullmatch(text) and len(text) < 100:
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if infinite := _INFINITE.fullmatch(text):
        return float(f"{infinite[1]}inf")
    return float("nan") if text in (".nan", ".NaN", ".NAN") else text

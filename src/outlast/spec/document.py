"""A YAML file as a tree of nodes that know their lines and the text as it was written.

The tree is built from ruamel.yaml's parse events, so that every bound (size, depth, what aliases unfold to)
is kept while reading. Scalars follow YAML 1.2: `1e-3` is a number, `24:00:00` and `yes` are text.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from outlast.spec.mistakes import BadSpec, Mistake, shorten

MOST_BYTES = 1 << 20
MOST_NODES = 300_000
DEEPEST = 20

Path_: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True)
class Scalar:
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
    file: str
    root: Mapping
    #: Found while reading: keys given twice, values left empty.
    mistakes: tuple[Mistake, ...] = ()

    def find(self, path: Path_) -> Node | None:
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
        """A scalar as it was written."""
        node = self.find(path)
        return node.text if isinstance(node, Scalar) else None

    def line(self, path: Path_, *, of_key: bool = False) -> int | None:
        """The line of a value (or its key), or of the nearest thing around it that is there."""
        while path:
            parent, node = self.find(path[:-1]), self.find(path)
            if node is not None:
                key_line = parent.key_lines.get(str(path[-1])) if isinstance(parent, Mapping) else None
                empty = isinstance(node, Scalar) and not node.text and not node.quoted
                return key_line if key_line and (of_key or empty) else node.line
            path, of_key = path[:-1], True
        return None

    def mistake(self, path: Path_, text: str, hint: str = "", *, of_key: bool = False) -> Mistake:
        """A mistake at `path`, whose name leads the sentence."""
        return Mistake(
            self.file,
            self.line(path, of_key=of_key),
            None,
            f"{show_path(path)}: {text}" if path else text,
            hint,
        )


def show_path(path: Path_) -> str:
    """`outputs[1].key`; entries of a list count from 1, as people do."""
    shown = ""
    for step in path:
        shown += f"[{step + 1}]" if isinstance(step, int) else f".{shorten(step, 40)}"
    return shown.lstrip(".")


def plain(node: Node) -> Any:
    """The values alone, as dict, list, str, int, float and bool."""
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
    """What an unquoted scalar stands for in YAML 1.2's core schema (without its octal and hexadecimal)."""
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


def load(path: Path, shown: str) -> Document:
    """Read a YAML file whose top is a mapping. Raises BadSpec; `shown` is the file's name in messages."""
    return parse(_read_text(path, shown), shown)


def _read_text(path: Path, shown: str) -> str:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise BadSpec([Mistake(shown, None, None, f"{path} is not a file")])
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise BadSpec([Mistake(shown, None, None, f"{path} cannot be read: {reason}")]) from error
    if len(raw) > MOST_BYTES:
        raise BadSpec([Mistake(shown, None, None, "is larger than 1 MiB", "keep data in files of their own")])
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        text = f"byte {raw[error.start]:#04x} is not UTF-8"
        raise BadSpec([Mistake(shown, line, None, text, "save the file as UTF-8")]) from error


def parse(text: str, shown: str) -> Document:
    builder = _Builder(shown)
    try:
        node = builder.document(YAML(typ="safe", pure=True).parse(text))
    except BadSpec:
        raise
    except Exception as error:
        # ruamel.yaml lets ValueError, IndexError and others out for some broken input besides its own errors.
        raise BadSpec([_syntax_mistake(error, text, shown)]) from error
    if node is None or (isinstance(node, Scalar) and node.value is None):
        raise BadSpec([Mistake(shown, None, None, "is empty", "`outlast init` writes one that runs")])
    if not isinstance(node, Mapping):
        raise BadSpec([Mistake(shown, node.line, None, "must be lines of the form `key: value`")])
    return Document(shown, node, tuple(builder.mistakes))


@dataclass
class _Builder:
    file: str
    mistakes: list[Mistake] = field(default_factory=list)
    anchors: dict[str, Node] = field(default_factory=dict)
    nodes: int = 0

    def document(self, events: Iterator[Event]) -> Node | None:
        root: Node | None = None
        documents = 0
        for event in events:
            if isinstance(event, DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self._refused(event, "a second document starts here", "remove the line ---")
            elif isinstance(event, (ScalarEvent, SequenceStartEvent, MappingStartEvent, AliasEvent)):
                root = self._node(event, events, 1)
        return root

    def _node(self, event: Event, events: Iterator[Event], depth: int) -> Node:
        if depth > DEEPEST:
            raise self._refused(event, f"more than {DEEPEST} levels of nesting")
        if isinstance(event, AliasEvent):
            if event.anchor not in self.anchors:
                raise self._refused(
                    event, f"*{event.anchor} stands for nothing: there is no &{event.anchor} above it"
                )
            node = self.anchors[event.anchor]
            self._count(event, node.size)
            return node
        self._count(event, 1)
        # "!" alone is YAML's way of saying "text", and what quoting amounts to.
        tag, anchor = getattr(event, "tag", None), getattr(event, "anchor", None)
        if tag not in (None, "!"):
            raise self._refused(event, f"tags such as {shorten(tag)} are not known here", "remove it")
        node = self._composed(event, events, depth)
        if anchor is not None:
            self.anchors[anchor] = node
        return node

    def _composed(self, event: Event, events: Iterator[Event], depth: int) -> Node:
        line = event.start_mark.line + 1
        if isinstance(event, ScalarEvent):
            return Scalar(line, event.value, event.style is not None)
        if isinstance(event, SequenceStartEvent):
            items = []
            while not isinstance(following := next(events), SequenceEndEvent):
                items.append(self._node(following, events, depth + 1))
            return Sequence(line, tuple(items), 1 + sum(item.size for item in items))
        entries: dict[str, Node] = {}
        key_lines: dict[str, int] = {}
        while not isinstance(following := next(events), MappingEndEvent):
            key = self._node(following, events, depth + 1)
            value = self._node(next(events), events, depth + 1)
            if not isinstance(key, Scalar):
                hint = "put quotes around text that begins with { or ["
                raise self._refused(following, "a key must be a word", hint)
            key_line = following.start_mark.line + 1
            if key.text in entries:
                text = f"{shorten(key.text)}: given twice, first in line {key_lines[key.text]}"
                self.mistakes.append(Mistake(self.file, key_line, None, text, "remove one of them"))
            entries[key.text], key_lines[key.text] = value, key_line
        return Mapping(line, entries, key_lines, 1 + sum(entry.size for entry in entries.values()))

    def _count(self, event: Event, nodes: int) -> None:
        self.nodes += nodes
        if self.nodes > MOST_NODES:
            raise self._refused(
                event, f"more than {MOST_NODES:,} values, counting what aliases (*) stand for"
            )

    def _refused(self, event: Event, text: str, hint: str = "") -> BadSpec:
        mark = event.start_mark
        return BadSpec([*self.mistakes, Mistake(self.file, mark.line + 1, mark.column + 1, text, hint)])


#: What ruamel.yaml says, and what that means to someone who writes a params.yaml.
_PLAINER = (
    ("found character '\\t'", "a tab, which YAML does not take as indentation", "use spaces"),
    ("found character", "this character cannot begin a value", "put quotes around the text"),
    (
        "mapping values are not allowed",
        'a ": " where no key can be',
        'put quotes around text with a ": " in it',
    ),
    ("found unexpected end of stream", "the file ends inside quotes", "close them"),
    ("expected ',' or ']'", "a list [...] is not closed, or lacks a comma", ""),
    ("expected ',' or '}'", "a group {...} is not closed, or lacks a comma", ""),
    ("could not find expected ':'", "a line without its colon", "write key: value"),
    ("expected <block end>", "this line's indentation fits nothing above it", "align it with its neighbours"),
    ("found undefined", "an unknown tag", "put quotes around text that begins with !"),
)


def _syntax_mistake(error: Exception, text: str, shown: str) -> Mistake:
    if isinstance(error, MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        problem = str(error.problem or error.context or "not YAML")
        line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
        for start, plainer, hint in _PLAINER:
            # ruamel.yaml shows the character as Python would.
            if problem.startswith(start):
                return Mistake(shown, line, column, plainer, hint)
        return Mistake(shown, line, column, f"not YAML: {shorten(problem, 100)}")
    position = getattr(error, "position", None)
    if isinstance(error, YAMLError) and isinstance(position, int):
        line = text.count("\n", 0, position) + 1
        return Mistake(shown, line, None, "a character that YAML does not allow", "remove it")
    return Mistake(shown, None, None, "not YAML")

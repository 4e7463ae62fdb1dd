"""Parser for YAML files: a document, or a mistake with line and column.

The tree is built from ruamel.yaml's parse events, so that the limits on size, depth and expanded aliases are
checked while reading.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

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

from outlast.spec.document import Document, Mapping, Node, Scalar, Sequence
from outlast.spec.mistakes import BadSpec, Mistake, shorten

MOST_BYTES = 1 << 20
#: Enough for a sweep over the largest number of runs, and everything else.
MOST_NODES = 110_000
DEEPEST = 20


def load(path: Path, shown: str, instead: str = "") -> Document:
    """Read a YAML file whose top level is a mapping. Raises BadSpec.

    `shown` is the file's name in messages, `instead` the hint for an empty file.
    """
    return parse(_read_text(path, shown), shown, instead)


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
        raise BadSpec([Mistake(shown, None, None, "is larger than 1 MiB", "keep data in separate files")])
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        text = f"byte {raw[error.start]:#04x} is not UTF-8"
        raise BadSpec([Mistake(shown, line, None, text, "save the file as UTF-8")]) from error


def parse(text: str, shown: str, instead: str = "") -> Document:
    """Parse the text of a YAML file, as `load` does. Raises BadSpec."""
    builder = _DocumentBuilder(shown)
    try:
        node = builder.document(YAML(typ="safe", pure=True).parse(text))
    except BadSpec:
        raise
    except Exception as error:
        # For some broken input ruamel.yaml raises ValueError, IndexError and others besides its own errors.
        raise BadSpec([_syntax_mistake(error, text, shown)]) from error
    if node is None or (isinstance(node, Scalar) and node.value is None):
        raise BadSpec([Mistake(shown, None, None, "is empty", instead)])
    if not isinstance(node, Mapping):
        raise BadSpec([Mistake(shown, node.line, None, "must be lines of the form `key: value`")])
    return Document(shown, node, tuple(builder.mistakes))


@dataclass
class _DocumentBuilder:
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
                    event, f"*{event.anchor} is not defined: there is no &{event.anchor} above it"
                )
            node = self.anchors[event.anchor]
            self._count(event, node.size)
            return node
        self._count(event, 1)
        # "!" alone is YAML's tag for text, which is what quoting means.
        tag, anchor = getattr(event, "tag", None), getattr(event, "anchor", None)
        if tag not in (None, "!"):
            raise self._refused(event, f"tags such as {shorten(tag)} are not supported", "remove it")
        node = self._compose(event, events, depth)
        if anchor is not None:
            self.anchors[anchor] = node
        return node

    def _compose(self, event: Event, events: Iterator[Event], depth: int) -> Node:
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
                raise self._refused(following, "a key must be text, not a list or a group", hint)
            key_line = following.start_mark.line + 1
            if key.text in entries:
                text = f"{shorten(key.text)}: given twice, first in line {key_lines[key.text]}"
                self.mistakes.append(Mistake(self.file, key_line, None, text, "remove one of them"))
            entries[key.text], key_lines[key.text] = value, key_line
        return Mapping(line, entries, key_lines, 1 + sum(entry.size for entry in entries.values()))

    def _count(self, event: Event, nodes: int) -> None:
        self.nodes += nodes
        if self.nodes > MOST_NODES:
            raise self._refused(event, f"more than {MOST_NODES:,} values, with aliases (*) expanded")

    def _refused(self, event: Event, text: str, hint: str = "") -> BadSpec:
        mark = event.start_mark
        return BadSpec([*self.mistakes, Mistake(self.file, mark.line + 1, mark.column + 1, text, hint)])


#: The start of ruamel.yaml's message, a plainer message, and a hint.
_PLAINER = (
    ("found character '\\t'", "YAML does not allow a tab as indentation", "use spaces"),
    ("found character", "this character cannot begin a value", "put quotes around the text"),
    (
        "mapping values are not allowed",
        '": " is not allowed here',
        'put quotes around text that contains ": "',
    ),
    ("found unexpected end of stream", "the file ends inside quotes", "close them"),
    ("expected ',' or ']'", "a list [...] is not closed, or lacks a comma", ""),
    ("expected ',' or '}'", "a group {...} is not closed, or lacks a comma", ""),
    ("could not find expected ':'", "a line has no colon", "write key: value"),
    (
        "expected <block end>",
        "this line's indentation matches no line above it",
        "align it with its neighbours",
    ),
    ("expected the node content", "a value is missing here, or a bracket is not closed", ""),
    ("found undefined", "an unknown tag", "put quotes around text that begins with !"),
)


def _syntax_mistake(error: Exception, text: str, shown: str) -> Mistake:
    if isinstance(error, MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        problem = str(error.problem or error.context or "unknown error")
        line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
        for start, plainer, hint in _PLAINER:
            if problem.startswith(start):
                return Mistake(shown, line, column, plainer, hint)
        return Mistake(shown, line, column, f"not valid YAML: {shorten(problem, 100)}")
    position = getattr(error, "position", None)
    if isinstance(error, YAMLError) and isinstance(position, int):
        line = text.count("\n", 0, position) + 1
        return Mistake(shown, line, None, "a character that YAML does not allow", "remove it")
    return Mistake(shown, None, None, "not valid YAML")

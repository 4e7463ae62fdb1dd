"""The code speaks plain technical English: verbs first, one name for one thing, no private dialect."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "outlast"
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}

#: Words of a private dialect, as a part of an identifier.
DIALECT = re.compile(r"(^|_)(told|said|whoever)(_|$)")
#: A docstring of a function that begins with one of these does not say what the function does.
FRAGMENTS = {
    *("a", "all", "an", "as", "at", "by", "each", "every", "for", "from", "how", "if"),
    *("in", "it", "its", "no", "none", "not", "of", "one", "only", "so", "that", "the"),
    *(
        "these",
        "this",
        "those",
        "to",
        "what",
        "whatever",
        "when",
        "where",
        "whether",
        "which",
        "who",
        "whoever",
    ),
    *("whose", "why", "with", "without"),
}
#: Names that stand for one role in several rooms.
ROLES = {"adapter", "base", "errors", "listing", "states", "submit", "views", "Outlast"}
#: A command and the room or module that does its work are one thing.
COMMANDS = {path.stem for path in (PACKAGE / "cli" / "commands").rglob("*.py")}


def _identifiers(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name


def _public_functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    for holder in ast.walk(tree):
        if isinstance(holder, (ast.Module, ast.ClassDef)):
            for node in holder.body:
                if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                    yield node


def _is_property(function: ast.FunctionDef) -> bool:
    names = {getattr(one, "id", getattr(one, "attr", "")) for one in function.decorator_list}
    return bool(names & {"property", "cached_property"})


def test_no_identifier_is_of_the_private_dialect() -> None:
    found = [
        f"{path.name}: {name}"
        for path, tree in TREES.items()
        for name in _identifiers(tree)
        if DIALECT.search(name)
    ]
    assert not found


def test_the_docstrings_of_public_functions_begin_with_a_verb() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{function.lineno} {text.splitlines()[0]}"
        for path, tree in TREES.items()
        for function in _public_functions(tree)
        if (text := ast.get_docstring(function)) and not _is_property(function)
        if text.split()[0].strip("`*,.:;").lower() in FRAGMENTS
    ]
    assert not found


def test_a_module_name_stands_for_one_thing() -> None:
    places = defaultdict(set)
    for path in TREES:
        if path.stem not in ("__init__", "__main__"):
            # A room's main module may have its name.
            places[path.stem].add(path.parent / path.stem if path.parent.name != path.stem else path.parent)
        elif path.parent != PACKAGE:
            places[path.parent.name].add(path.parent)
    twice = {name for name, where in places.items() if len(where) > 1} - ROLES - COMMANDS
    assert not twice


def test_a_class_name_stands_for_one_thing() -> None:
    places = defaultdict(set)
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name.strip("_")].add(path)
    assert not {
        name: sorted(map(str, where))
        for name, where in places.items()
        if len(where) > 1 and name not in ROLES
    }

"""The runs of an experiment and their names."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from itertools import product

from outlast.domain.model import RunPlan
from outlast.spec.document import Document, Mapping, Scalar, Sequence
from outlast.spec.mistakes import Mistake, shorten
from outlast.spec.schema import MOST_RUNS

LONGEST_NAME = 100
SWEEP_EXAMPLE = "write it like {lr: [1e-3, 1e-2]}"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_DATED = re.compile(r"\d{4}-\d{2}-\d{2}_[A-Za-z0-9]+_(?=.)")
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def name_mistake(name: str) -> str:
    """Return why `name` cannot name an experiment, with a hint after "; "; an empty text if it can."""
    if len(name) > LONGEST_NAME:
        return f"is {len(name)} characters long; the limit is {LONGEST_NAME}"
    if not _NAME.fullmatch(name):
        rule = 'use letters, digits, ".", "_" and "-", the first a letter or digit'
        return f'"{shorten(name)}" is not a valid name; {rule}'
    return ""


def default_name(directory_name: str) -> str:
    """Return a valid name from the directory's, without a leading `2026-11-15_A_`."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", _DATED.sub("", directory_name)).lstrip(".-")
    return name[:LONGEST_NAME] or "experiment"


def numbered(name: str, count: int) -> list[str]:
    """Return `name-001`, …, `name-999`, `name-1000`. A larger `count` only adds names."""
    ends = [f"-{number:03d}" for number in range(1, count + 1)]
    return [name[: LONGEST_NAME - len(end)] + end for end in ends]


def plan_runs(name: str, count: int) -> list[RunPlan]:
    """Return `count` runs without parameters; one alone has the experiment's name."""
    return [RunPlan(name)] if count == 1 else [RunPlan(one) for one in numbered(name, count)]


def plan_sweep(name: str, document: Document) -> tuple[list[RunPlan], list[Mistake], list[Mistake]]:
    """Return the runs of the grid over `sweep`, the mistakes and the warnings; no runs with a mistake."""
    node = document.find(("sweep",))
    if not isinstance(node, Mapping):
        text = "is empty" if isinstance(node, Scalar) and node.value is None else "must be a group of lists"
        return [], [document.mistake(("sweep",), text, SWEEP_EXAMPLE)], []
    if not node.entries:
        return [], [document.mistake(("sweep",), "is empty", f"remove it, or {SWEEP_EXAMPLE}")], []
    mistakes: list[Mistake] = []
    warnings: list[Mistake] = []
    for key in node.entries:
        mistakes += _key_mistakes(key, document)
    if mistakes:
        return [], mistakes, []
    lists = [node.entries[key] for key in node.entries]
    columns = [
        [item.text for item in one.items if isinstance(item, Scalar)]
        for one in lists
        if isinstance(one, Sequence)
    ]
    count = math.prod(len(column) for column in columns)
    if count > MOST_RUNS:
        text = f"makes {shorten(f'{count:,}')} runs; the limit is {MOST_RUNS:,}"
        return [], [document.mistake(("sweep",), text, "shorten a list")], []
    keys = list(node.entries)
    grid = [dict(zip(keys, values, strict=True)) for values in product(*columns)]
    names = [_sweep_name(name, params) for params in grid]
    if any(len(one) > LONGEST_NAME for one in names):
        names = numbered(name, count)
        for key in keys:
            mistakes += _duplicates(key, document, cleaned=False)
    else:
        for key in keys:
            mistakes += _duplicates(key, document, cleaned=True)
        twice = [one for one, times in Counter(names).items() if times > 1]
        if twice and not mistakes:
            mistakes.append(
                document.mistake(("sweep",), f"two runs would be called {twice[0]}", "rename a value")
            )
    for key in keys:
        warnings += _same_number(key, document)
    plans = [RunPlan(one, params) for one, params in zip(names, grid, strict=True)]
    return ([] if mistakes else plans), mistakes, warnings


def _sweep_name(name: str, params: dict[str, str]) -> str:
    return "-".join([name, *(f"{key}={_clean(value)}" for key, value in params.items())])


def _clean(value: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=+-]", "_", value)


def _key_mistakes(key: str, document: Document) -> Iterable[Mistake]:
    path = ("sweep", key)
    node = document.find(path)
    if not _PARAMETER.fullmatch(key):
        yield document.mistake(
            path, "is not a valid parameter name", "use letters, digits and _", of_key=True
        )
    if isinstance(node, Scalar):
        text = "has no value" if node.value is None else "must be a list"
        yield document.mistake(path, text, f"write {shorten(key)}: [{shorten(node.text) or '1, 2'}]")
    elif isinstance(node, Mapping):
        yield document.mistake(path, "must be a list, not a group {...}", SWEEP_EXAMPLE)
    elif isinstance(node, Sequence):
        if not node.items:
            yield document.mistake(path, "is an empty list", "write at least one value, or remove the line")
        for index, item in enumerate(node.items):
            if not isinstance(item, Scalar):
                yield document.mistake((*path, index), "must be a number or a text, not a list or group")
            elif item.value is None and item.text == "":
                yield document.mistake((*path, index), "has no value", 'write "" for an empty text')
            elif not item.text.isprintable():
                yield document.mistake((*path, index), "contains a line break or control character")


def _duplicates(key: str, document: Document, *, cleaned: bool) -> Iterable[Mistake]:
    """Yield mistakes for values of one parameter that would give two runs the same name."""
    first: dict[str, int] = {}
    for index, item in _items(key, document):
        label = _clean(item.text) if cleaned else item.text
        if label not in first:
            first[label] = index
            continue
        other = document.text(("sweep", key, first[label])) or ""
        where = f"line {document.line(('sweep', key, first[label]))}"
        if other == item.text:
            text = f"{shorten(item.text)} is given twice, first in {where}: two runs would have the same name"
            yield document.mistake(("sweep", key, index), text, "remove one of them")
        else:
            text = (
                f'"{shorten(item.text)}" and "{shorten(other)}" in {where} would give two runs the same name'
            )
            hint = 'make them differ in letters, digits or "._+-"'
            yield document.mistake(("sweep", key, index), text, hint)


def _same_number(key: str, document: Document) -> Iterable[Mistake]:
    """Yield warnings for values like `[1e-3, 0.001]`, whose runs differ only in name."""
    first: dict[float, str] = {}
    for index, item in _items(key, document):
        if isinstance(item.value, (int, float)) and not isinstance(item.value, bool):
            other = first.setdefault(item.value, item.text)
            if other != item.text:
                yield document.mistake(("sweep", key, index), f"{item.text} is the same number as {other}")


def _items(key: str, document: Document) -> Iterable[tuple[int, Scalar]]:
    node = document.find(("sweep", key))
    items = node.items if isinstance(node, Sequence) else ()
    return [(index, item) for index, item in enumerate(items) if isinstance(item, Scalar)]

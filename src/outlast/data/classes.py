"""Which class an item is of, by where it lies.

It is the name of the innermost archive inside the archive, without `.tar`; where there is none, the first
folder that not all items have in common: `data/train/cat/1.jpg` beside `data/train/dog/1.jpg` are a cat and a
dog. If all are in one folder, it is that folder. What lies beside the folders is of the class "".
"""

from __future__ import annotations

import os
from array import array
from typing import NamedTuple, Sequence

from outlast.data.item_table import Table
from outlast.node.archives.formats import without_suffix

#: Of a folder whose items are left out.
NONE = -1


class Classes(NamedTuple):
    #: Sorted, unless they were given.
    names: tuple[str, ...]
    #: The number of each folder's class, or NONE.
    of_folder: Sequence[int]


def find(table: Table, below: str = "") -> Classes:
    """The classes of the items below a folder or inner archive; items elsewhere have none."""
    base = os.fsencode(below.strip("/") + "/") if below.strip("/") else b""
    inner: dict[int, bytes] = {}
    paths: dict[int, list[bytes]] = {}
    for folder, root in enumerate(table.roots):
        name = table.folder_name(folder)
        if not name.startswith(base):
            continue
        if root > len(base):
            inner[folder] = without_suffix(name[: root - 1]).rpartition(b"/")[2]
        else:
            paths[folder] = name[len(base) :].split(b"/")[:-1]
    common = _common(list(paths.values()))
    alone = all(len(path) == len(common) for path in paths.values())
    for folder, path in paths.items():
        if alone:
            inner[folder] = common[-1] if common else b""
        else:
            inner[folder] = path[len(common)] if len(path) > len(common) else b""
    decoded = {name: os.fsdecode(name) for name in set(inner.values())}
    names = sorted(decoded.values())
    numbers = {name: number for number, name in enumerate(names)}
    of_folder = array("i", [NONE]) * len(table.roots)
    for folder, class_name in inner.items():
        of_folder[folder] = numbers[decoded[class_name]]
    return Classes(tuple(names), of_folder)


def choose(classes: Classes, names: Sequence[str]) -> Classes:
    """These only, numbered in the order given. One that no item has keeps its number all the same."""
    if isinstance(names, str):
        raise TypeError("classes are given as a list of names, not as the one text %r" % names)
    numbers = {name: number for number, name in enumerate(names)}
    if len(numbers) != len(names):
        raise ValueError("a class is given twice")
    if not any(name in numbers for name in classes.names):
        raise ValueError(
            "no item is of a class that was asked for; there are %s" % (listed(classes.names) or "none")
        )
    kept = [numbers.get(name, NONE) for name in classes.names]
    of_folder = array("i", (NONE if number == NONE else kept[number] for number in classes.of_folder))
    return Classes(tuple(names), of_folder)


def listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:10])
    return shown if len(names) <= 10 else "%s and %d more" % (shown, len(names) - 10)


def _common(paths: list[list[bytes]]) -> list[bytes]:
    """The folders that all paths begin with."""
    if not paths:
        return []
    # The first and the last in order differ earliest.
    first, last = min(paths), max(paths)
    length = next(
        (place for place, part in enumerate(first) if last[place : place + 1] != [part]), len(first)
    )
    return first[:length]

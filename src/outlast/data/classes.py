"""The classes of items, determined by where the items are in the archive.

An item in an inner archive has the name of the innermost one, without `.tar`, as its class. Other items have
the first folder that not all of them have in common: `data/train/cat/1.jpg` and `data/train/dog/1.jpg` are of
the classes `cat` and `dog`. If all are in one folder, that folder is the class. Items beside these folders
have the class "".
"""

from __future__ import annotations

import os
from array import array
from typing import NamedTuple, Sequence

from outlast.data.item_table import Table
from outlast.node.archives.formats import strip_suffix

#: In `Classes.of_folder`: the items of the folder are left out.
NO_CLASS = -1


class Classes(NamedTuple):
    #: Sorted, unless they were given.
    names: tuple[str, ...]
    #: The number of each folder's class, or NO_CLASS.
    of_folder: Sequence[int]


def find_classes(table: Table, below: str = "") -> Classes:
    """Return the classes of the items below a folder or inner archive; other items get NO_CLASS."""
    base = os.fsencode(below.strip("/") + "/") if below.strip("/") else b""
    class_names: dict[int, bytes] = {}
    paths: dict[int, list[bytes]] = {}
    for folder, root in enumerate(table.roots):
        name = table.folder_name(folder)
        if not name.startswith(base):
            continue
        if root > len(base):
            class_names[folder] = strip_suffix(name[: root - 1]).rpartition(b"/")[2]
        else:
            paths[folder] = name[len(base) :].split(b"/")[:-1]
    common = _common_parents(list(paths.values()))
    is_single = all(len(path) == len(common) for path in paths.values())
    for folder, path in paths.items():
        if is_single:
            class_names[folder] = common[-1] if common else b""
        else:
            class_names[folder] = path[len(common)] if len(path) > len(common) else b""
    decoded = {name: os.fsdecode(name) for name in set(class_names.values())}
    names = sorted(decoded.values())
    numbers = {name: number for number, name in enumerate(names)}
    of_folder = array("i", [NO_CLASS]) * len(table.roots)
    for folder, class_name in class_names.items():
        of_folder[folder] = numbers[decoded[class_name]]
    return Classes(tuple(names), of_folder)


def select_classes(classes: Classes, names: Sequence[str]) -> Classes:
    """Return only these classes, numbered in this order. A class without items keeps its number.

    Raises TypeError for a string in place of a list, and ValueError if a name is repeated or none has items.
    """
    if isinstance(names, str):
        raise TypeError("classes must be a list of names, not the string %r" % names)
    numbers = {name: number for number, name in enumerate(names)}
    if len(numbers) != len(names):
        raise ValueError("a class is given twice")
    if not any(name in numbers for name in classes.names):
        raise ValueError(
            "no item has one of the requested classes; there are %s" % (format_names(classes.names) or "none")
        )
    new_numbers = [numbers.get(name, NO_CLASS) for name in classes.names]
    of_folder = array(
        "i", (NO_CLASS if number == NO_CLASS else new_numbers[number] for number in classes.of_folder)
    )
    return Classes(tuple(names), of_folder)


def format_names(names: Sequence[str]) -> str:
    """Return the first ten names, quoted, and the number of the others, for a message."""
    first = ", ".join(repr(name) for name in names[:10])
    return first if len(names) <= 10 else "%s and %d more" % (first, len(names) - 10)


def _common_parents(paths: list[list[bytes]]) -> list[bytes]:
    """Return the folders that all paths begin with."""
    if not paths:
        return []
    # The first and the last in sorted order differ earliest.
    first, last = min(paths), max(paths)
    length = next(
        (index for index, part in enumerate(first) if last[index : index + 1] != [part]), len(first)
    )
    return first[:length]

"""Digests and sizes put into a params.yaml, which stays as it was otherwise, comments and all.

Only the characters that change are touched. The result is read again and compared before anybody gets it.
"""

from __future__ import annotations

from collections.abc import Mapping

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from outlast.spec.document import plain, resolve
from outlast.spec.mistakes import BadSpec
from outlast.spec.yamlfile import parse


class CannotPin(ValueError):
    """The entry is written in a way that cannot be added to; a sentence for the user."""


def pin(text: str, index: int, pins: Mapping[str, str | int]) -> str:
    """The file's text with `pins` in entry `index` of `data:`, in place of what it had. Raises CannotPin."""
    node = _entry(text, index)
    edits = _added(text, node, pins)
    for key, value in _pairs(node):
        if key in pins:
            edits.append((value.start_mark.index, value.end_mark.index, str(pins[key])))
    pinned = text
    for start, end, new in sorted(edits, reverse=True):
        pinned = pinned[:start] + new + pinned[end:]
    if _meaning(pinned) != _wanted(text, index, pins):
        raise CannotPin("this entry of params.yaml is written in a way that cannot be added to")
    return pinned


def _entry(text: str, index: int) -> Node:
    try:
        root = YAML(typ="safe", pure=True).compose(text)
    except YAMLError as error:
        raise CannotPin("params.yaml is no longer what it was") from error
    entries = dict(_pairs(root)).get("data")
    if not isinstance(entries, SequenceNode) or index >= len(entries.value):
        raise CannotPin("params.yaml is no longer what it was")
    entry: Node = entries.value[index]
    return entry


def _pairs(node: Node) -> list[tuple[str, Node]]:
    return [(str(key.value), value) for key, value in node.value] if isinstance(node, MappingNode) else []


def _added(text: str, node: Node, pins: Mapping[str, str | int]) -> list[tuple[int, int, str]]:
    """For what the entry does not have: where to put it, and the text."""
    has = dict(_pairs(node))
    new = ["%s: %s" % (key, value) for key, value in pins.items() if key not in has]
    if not new:
        return []
    if isinstance(node, ScalarNode):
        return [_from_scalar(text, node, new)]
    assert isinstance(node, MappingNode)
    if node.flow_style:
        end = text.rindex("}", 0, node.end_mark.index)
        last = _end(list(has.values())[-1])
        # A comma may stand behind the last one already.
        gap = "" if text[last:end].strip().startswith(",") else ", "
        place = last if gap else last + text[last:end].index(",") + 1
        return [(place, place, (gap or " ") + ", ".join(new))]
    line_end = text.find("\n", _end(has["url"]))
    indent = "\n" + " " * node.start_mark.column
    place = line_end if line_end >= 0 else len(text)
    return [(place, place, "".join(indent + one for one in new))]


def _from_scalar(text: str, node: ScalarNode, new: list[str]) -> tuple[int, int, str]:
    """`- https://…` becomes a group of keys."""
    start, end = node.start_mark.index, node.end_mark.index
    before = text[text.rfind("\n", 0, start) + 1 : start]
    written = text[start:end]
    if before.strip() == "-":
        # What stands behind the URL, such as a comment, stays there.
        line_end = text.find("\n", end)
        line_end = line_end if line_end >= 0 else len(text)
        indent = "\n" + " " * node.start_mark.column
        return start, line_end, "url: " + text[start:line_end] + "".join(indent + one for one in new)
    return start, end, "{url: %s, %s}" % (written, ", ".join(new))


def _end(node: Node) -> int:
    """Behind its last character. A block list's own mark is only at whatever follows."""
    if isinstance(node, SequenceNode) and not node.flow_style and node.value:
        return _end(node.value[-1])
    return int(node.end_mark.index)


def _meaning(text: str) -> object:
    try:
        return plain(parse(text, "params.yaml").root)
    except BadSpec as error:
        raise CannotPin("this entry of params.yaml is written in a way that cannot be added to") from error


def _wanted(text: str, index: int, pins: Mapping[str, str | int]) -> object:
    wanted = _meaning(text)
    assert isinstance(wanted, dict)
    entry = wanted["data"][index]
    entry = {"url": entry} if isinstance(entry, str) else entry
    # As the file will be read: a digest of digits alone is a number to YAML.
    wanted["data"][index] = {**entry, **{key: _read(value) for key, value in pins.items()}}
    return wanted


def _read(value: str | int) -> object:
    return resolve(str(value))

"""Writing digests and sizes into a params.yaml without changing anything else, comments included.

The result is parsed again and compared with the expected content before it is returned.
"""

from __future__ import annotations

from collections.abc import Mapping

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from outlast.spec.document import plain, resolve
from outlast.spec.mistakes import BadSpec
from outlast.spec.yamlfile import parse

_FORM = "this entry of params.yaml is written in a form that cannot be edited; add the lines by hand"
_CHANGED = "params.yaml has changed in the meantime; run the command again"


class CannotPin(ValueError):
    """The entry has a form that cannot be edited; the text is a message for the user."""


def pin(text: str, index: int, pins: Mapping[str, str | int]) -> str:
    """Return the file's text with `pins` set in entry `index` of `data:`. Raises CannotPin."""
    node = _entry(text, index)
    edits = _added(text, node, pins)
    for key, value in _pairs(node):
        if key in pins:
            edits.append((value.start_mark.index, value.end_mark.index, str(pins[key])))
    pinned = text
    for start, end, new in sorted(edits, reverse=True):
        pinned = pinned[:start] + new + pinned[end:]
    if _content(pinned) != _expected_content(text, index, pins):
        raise CannotPin(_FORM)
    return pinned


def _entry(text: str, index: int) -> Node:
    try:
        root = YAML(typ="safe", pure=True).compose(text)
    except YAMLError as error:
        raise CannotPin(_CHANGED) from error
    entries = dict(_pairs(root)).get("data")
    if not isinstance(entries, SequenceNode) or index >= len(entries.value):
        raise CannotPin(_CHANGED)
    entry: Node = entries.value[index]
    return entry


def _pairs(node: Node) -> list[tuple[str, Node]]:
    return [(str(key.value), value) for key, value in node.value] if isinstance(node, MappingNode) else []


def _added(text: str, node: Node, pins: Mapping[str, str | int]) -> list[tuple[int, int, str]]:
    """Return the insertions (start, end, text) for keys that the entry does not have yet."""
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
        # There may be a trailing comma already.
        gap = "" if text[last:end].strip().startswith(",") else ", "
        place = last if gap else last + text[last:end].index(",") + 1
        return [(place, place, (gap or " ") + ", ".join(new))]
    line_end = text.find("\n", _end(has["url"]))
    indent = "\n" + " " * node.start_mark.column
    place = line_end if line_end >= 0 else len(text)
    return [(place, place, "".join(indent + one for one in new))]


def _from_scalar(text: str, node: ScalarNode, new: list[str]) -> tuple[int, int, str]:
    """Return the edit that turns `- https://…` into a group of keys."""
    start, end = node.start_mark.index, node.end_mark.index
    before = text[text.rfind("\n", 0, start) + 1 : start]
    written = text[start:end]
    if before.strip() == "-":
        # A comment behind the URL stays there.
        line_end = text.find("\n", end)
        line_end = line_end if line_end >= 0 else len(text)
        indent = "\n" + " " * node.start_mark.column
        return start, line_end, "url: " + text[start:line_end] + "".join(indent + one for one in new)
    return start, end, "{url: %s, %s}" % (written, ", ".join(new))


def _end(node: Node) -> int:
    """Return the index behind the node's last character; a block list's own mark is too far."""
    if isinstance(node, SequenceNode) and not node.flow_style and node.value:
        return _end(node.value[-1])
    return int(node.end_mark.index)


def _content(text: str) -> object:
    try:
        return plain(parse(text, "params.yaml").root)
    except BadSpec as error:
        raise CannotPin(_FORM) from error


def _expected_content(text: str, index: int, pins: Mapping[str, str | int]) -> object:
    expected = _content(text)
    assert isinstance(expected, dict)
    entry = expected["data"][index]
    entry = {"url": entry} if isinstance(entry, str) else entry
    # As YAML reads it: a digest that consists of decimal digits is a number.
    expected["data"][index] = {**entry, **{key: resolve(str(value)) for key, value in pins.items()}}
    return expected

"""A validator for the part of JSON Schema that our schemas use. An unknown keyword is an error."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_IGNORED = {"$schema", "$id", "$defs", "title", "description"}
_TYPES: Mapping[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "number": (int, float),
    "boolean": bool,
}


def schema_errors(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any] | None = None) -> list[str]:
    """Return what is wrong with a value; empty if it is valid."""
    whole = root or schema
    return [
        error
        for keyword, rule in schema.items()
        if keyword not in _IGNORED
        for error in _broken(keyword, rule, value, schema, whole)
    ]


def _broken(
    keyword: str, rule: Any, value: Any, schema: Mapping[str, Any], root: Mapping[str, Any]
) -> Iterator[str]:
    if keyword == "$ref":
        yield from schema_errors(value, root["$defs"][rule.removeprefix("#/$defs/")], root)
    elif keyword == "oneOf":
        matching = sum(not schema_errors(value, option, root) for option in rule)
        if matching != 1:
            yield f"{value!r:.200} matches {matching} of {len(rule)} options"
    elif keyword in ("properties", "additionalProperties", "propertyNames", "items"):
        for inner, inner_schema in _inner(keyword, rule, value, schema):
            if inner_schema is False:
                yield f"a key that is not known in {value!r:.200}"
            else:
                yield from schema_errors(inner, inner_schema, root)
    elif not _holds(keyword, rule, value):
        yield f"{value!r:.200} breaks {keyword} {rule!r}"


def _inner(keyword: str, rule: Any, value: Any, schema: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    if keyword == "items" and isinstance(value, list):
        yield from ((item, rule) for item in value)
    if not isinstance(value, dict) or keyword == "items":
        return
    for key, item in value.items():
        if keyword == "propertyNames":
            yield key, rule
        elif keyword == "properties" and key in rule:
            yield item, rule[key]
        elif keyword == "additionalProperties" and key not in schema.get("properties", {}):
            yield item, rule


def _holds(keyword: str, rule: Any, value: Any) -> bool:
    if keyword == "type":
        return any(_is_of(value, name) for name in ([rule] if isinstance(rule, str) else rule))
    if keyword == "const":
        return type(value) is type(rule) and bool(value == rule)
    if keyword == "enum":
        return value in rule
    if keyword == "required":
        return not isinstance(value, dict) or set(rule) <= set(value)
    if keyword == "maxProperties":
        return not isinstance(value, dict) or len(value) <= rule
    if keyword == "pattern":
        return not isinstance(value, str) or re.search(rule, value) is not None
    if keyword in ("minLength", "maxLength"):
        return not isinstance(value, str) or (
            len(value) >= rule if keyword == "minLength" else len(value) <= rule
        )
    if keyword in ("minimum", "maximum"):
        return not isinstance(value, (int, float)) or bool(
            value >= rule if keyword == "minimum" else value <= rule
        )
    raise AssertionError(f"{keyword} is not implemented here")


def _is_of(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer":
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return isinstance(value, _TYPES[name])

"""Validation of a document against a pydantic model, with all errors as plain messages with lines."""

from __future__ import annotations

import copy
from collections.abc import Mapping as AnyMapping
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from outlast.spec.document import Document, Path_, plain
from outlast.spec.mistakes import Mistake, did_you_mean, one_of, shorten
from outlast.spec.schema import DataEntry

Keys = TypeVar("Keys", bound=BaseModel)


def validate(model: type[Keys], document: Document, at: Path_ = ()) -> tuple[Keys, list[Mistake]]:
    """Return the model and the mistakes. Invalid values are left out of the model.

    So one mistake does not hide the next: later checks use the values that are valid.
    """
    node = document.find(at)
    assert node is not None
    data = plain(node)
    mistakes: list[Mistake] = []
    # Each round removes at least one value, so there cannot be more rounds than values.
    for _ in range(node.size):
        try:
            return model.model_validate(data), mistakes
        except ValidationError as invalid:
            errors = invalid.errors(include_url=False)
            mistakes += [_translate(error, model, document, at) for error in errors]
            if not isinstance(data, dict):
                break
            data = _without(data, [error["loc"] for error in errors])
    return model(), mistakes


def _without(data: dict[str, Any], locations: list[Path_]) -> dict[str, Any]:
    """Return the data without `locations`: keys are removed, entries of a list become `LEFT_OUT`."""
    data = copy.deepcopy(data)
    for first, *rest in locations:
        group = data.get(str(first))
        if rest and isinstance(group, dict):
            group.pop(rest[0], None)
        elif rest and isinstance(group, list):
            index = int(rest[0])
            entry = group[index]
            if len(rest) > 1 and isinstance(entry, dict):
                entry.pop(rest[1], None)
            else:
                group[index] = DataEntry.LEFT_OUT
        else:
            data.pop(str(first), None)
    return data


def _translate(error: ErrorDetails, model: type[BaseModel], document: Document, at: Path_) -> Mistake:
    location: Path_ = (*at, *error["loc"])
    if error["type"] == "extra_forbidden":
        return _unknown_key(error["loc"], model, document, location)
    text, _, hint = _message(error, model, document.text(location)).partition("; ")
    return document.mistake(location, text, hint)


def _unknown_key(loc: Path_, model: type[BaseModel], document: Document, location: Path_) -> Mistake:
    *parents, key = loc
    keys = keys_of(model, tuple(parents))
    word = str(key)
    hint = did_you_mean(word, keys)
    if not hint:
        for group in model.model_fields:
            if not hint and word in keys_of(model, (group,)):
                hint = f"it belongs under {group}:"
    elsewhere = "" if not parents or hint else did_you_mean(word, model.model_fields)
    hint = hint or elsewhere.replace("?", " at the top level?")
    known = ", ".join(keys)
    return document.mistake(
        location,
        "unknown key",
        f"{hint} (known: {known})" if hint else f"known: {known}",
        of_key=True,
    )


def keys_of(model: type[BaseModel], path: Path_) -> list[str]:
    """Return the keys that are allowed at `path`."""
    current: Any = model
    for step in path:
        if isinstance(current, type) and issubclass(current, BaseModel):
            found = current.model_fields.get(str(step))
            current = found.annotation if found else None
        else:
            # An entry of a list or of a mapping with free names.
            current = get_args(current)[-1] if get_args(current) else None
            if get_origin(current) is not None and not isinstance(current, type):
                current = get_args(current)[0]
    return list(current.model_fields) if isinstance(current, type) and issubclass(current, BaseModel) else []


def _message(error: ErrorDetails, model: type[BaseModel], written: str | None) -> str:
    kind, given = error["type"], error["input"]
    written = shorten(written) if written is not None else None
    context: AnyMapping[str, Any] = error.get("ctx", {})
    if given is None:
        return "has no value; write one, or remove the line"
    if kind == "value_error":
        return str(context["error"])
    if kind == "greater_than_equal":
        return f"{written or shorten(given)} is too small; it must be at least {context['ge']}"
    if kind == "less_than_equal":
        return f"{written or shorten(given)} is too large; it can be at most {context['le']:,}"
    what = _describe(given, written)
    if kind == "literal_error":
        choices = [word.strip("'") for word in str(context["expected"]).replace(" or ", ", ").split(", ")]
        near = did_you_mean(str(given), choices)
        return f"must be {one_of(choices)}, not {what}" + (f"; {near}" if near else "")
    if kind.startswith("int"):
        unquote = "; remove the quotes" if isinstance(given, str) and given.isdecimal() else ""
        return f"must be a whole number, not {what}{unquote}"
    if kind.startswith(("float", "finite")):
        unquote = "; remove the quotes" if isinstance(given, str) and _is_number(given) else ""
        return f"must be a number, not {what}{unquote}"
    if kind.startswith("string"):
        quote = f'; write "{written}" with quotes' if written else "; put quotes around it"
        return f"must be text, not {what}{quote}"
    if kind.startswith("list"):
        hint = f"; write [{written}]" if written else ""
        if isinstance(given, dict):
            hint = '; begin each entry with "- "'
        return f"must be a list, not {what}{hint}"
    if kind.startswith(("model", "dict")):
        keys = keys_of(model, error["loc"])
        return f"must be a group of keys, not {what}" + (f"; known: {', '.join(keys)}" if keys else "")
    return f"{what} cannot be used here"


def _describe(given: object, written: str | None) -> str:
    if isinstance(given, dict):
        return "a group {...}"
    if isinstance(given, list):
        return "a list"
    shown = shorten(written if written is not None else given)
    if isinstance(given, bool):
        return f"{shown} (true or false)"
    return f'the text "{shown}"' if isinstance(given, str) else shown


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

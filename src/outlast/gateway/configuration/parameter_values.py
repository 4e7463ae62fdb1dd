"""Values of parameters: which ones a template allows, and their text in a command."""

from __future__ import annotations

import math
import re

from outlast.gateway.settings import Parameter
from outlast.spec.mistakes import one_of

#: Larger integers have no place in a command or a database.
_LARGEST = 2**63 - 1
_SHOWN_CHOICES = 10


def value_mistake(parameter: Parameter, value: object) -> str:
    """Return why a JSON value is not one that the parameter allows; empty if it is. Never quotes it."""
    match parameter.type:
        case "integer":
            if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _LARGEST:
                return "must be a whole number"
            return _out_of_bounds(parameter, value)
        case "number":
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                return "must be a number"
            if abs(value) > _LARGEST if isinstance(value, int) else not math.isfinite(value):
                return "must be a finite number"
            return _out_of_bounds(parameter, value)
        case "yes-no":
            return "" if isinstance(value, bool) else "must be true or false"
        case "choice":
            if isinstance(value, str) and value in parameter.choices:
                return ""
            known = list(parameter.choices[:_SHOWN_CHOICES])
            more = " or another one" if len(parameter.choices) > _SHOWN_CHOICES else ""
            return f"must be {one_of(known)}{more}"
    return _text_mistake(parameter, value)


def _out_of_bounds(parameter: Parameter, value: float) -> str:
    if parameter.at_least is not None and value < parameter.at_least:
        return f"must be at least {parameter.at_least:.15g}"
    if parameter.at_most is not None and value > parameter.at_most:
        return f"must be at most {parameter.at_most:.15g}"
    return ""


def _text_mistake(parameter: Parameter, value: object) -> str:
    if not isinstance(value, str):
        return "must be text"
    if len(value) > parameter.longest:
        return f"has {len(value)} characters; at most {parameter.longest} are allowed"
    if not value.isprintable():
        return "contains a control character, a line break or half a character"
    if parameter.pattern:
        return "" if re.fullmatch(parameter.pattern, value) else f"must match {parameter.pattern}"
    # The command would take it for an option of its own.
    return "must not begin with -" if value.startswith("-") else ""


def as_text(parameter: Parameter, value: object) -> str:
    """Return an allowed value as commands get it."""
    if parameter.type == "yes-no":
        return "yes" if value else "no"
    return repr(value) if isinstance(value, float) else str(value)


def example_of(parameter: Parameter) -> str:
    """Return the text of the default, or of some value if there is none, to read params.yaml with."""
    if parameter.default is not None:
        return as_text(parameter, parameter.default)
    match parameter.type:
        case "choice":
            return parameter.choices[0] if parameter.choices else ""
        case "yes-no":
            return "no"
        case "text":
            return "text"
    bound = parameter.at_least if parameter.at_least is not None else parameter.at_most
    return f"{bound or 0:.15g}"

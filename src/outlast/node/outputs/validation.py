"""Validation of outputs against the rules in params.yaml."""

from __future__ import annotations

import errno
import json
import math
import os
from dataclasses import dataclass
from typing import Any, Callable, Sequence

from outlast.node.output_rule import OutputRule
from outlast.node.outputs.collection import is_inside_name
from outlast.node.outputs.output_tree import is_below
from outlast.untrusted_files import parse_json, read_file

_MAX_JSON_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Problem:
    """A rule that is not kept. `rule` identifies it across attempts; `sentence` is for the user."""

    rule: str
    sentence: str
    #: True for a number out of its bounds: the same training would reach it again.
    is_lasting: bool = False


class _RuleBroken(Exception):
    """A rule is not kept; the text follows the path in a sentence for the user."""


class _OutOfBounds(_RuleBroken):
    """A number is there and is out of its bounds."""


def validate(
    rules: Sequence[OutputRule], output: str, run_check: Callable[[Sequence[str]], str | None]
) -> list[Problem]:
    """Return the rules that are not kept. `run_check` runs a command and returns how it failed, or None."""
    problems = []
    for rule in rules:
        try:
            _check_rule(rule, output, run_check)
        except _RuleBroken as failure:
            is_lasting = isinstance(failure, _OutOfBounds)
            identity = f"{rule.path}|{rule.key}|{rule.check}"
            problems.append(Problem(identity, f"{rule.path} {failure}.", is_lasting))
    return problems


def _check_rule(rule: OutputRule, output: str, run_check: Callable[[Sequence[str]], str | None]) -> None:
    if not is_inside_name(rule.path):
        raise _RuleBroken("is not a name inside the output directory")
    path = os.path.join(output, rule.path)
    if not os.path.lexists(path):
        raise _RuleBroken(
            "is missing: neither in $OUTLAST_OUTPUT_DIR nor in the working directory (links do not count)"
        )
    if not is_below(os.path.realpath(path), os.path.realpath(output)):
        raise _RuleBroken("is a link out of the output directory")
    if os.path.isdir(path):
        if not os.listdir(path):
            raise _RuleBroken("is an empty directory")
    elif not os.path.isfile(path):
        raise _RuleBroken("is neither a file nor a directory")
    elif os.path.getsize(path) == 0:
        raise _RuleBroken("is empty")
    if rule.key is not None:
        _check_value(rule, _read_value(path, rule.key))
    elif rule.at_least is not None or rule.at_most is not None:
        raise _RuleBroken("has a bound but no key")
    if rule.check is not None:
        failed = run_check(rule.check)
        if failed is not None:
            raise _RuleBroken(f"was not accepted: the check `{' '.join(rule.check)}` {failed}")


def _read_value(path: str, key: str) -> Any:
    try:
        value = parse_json(read_file(path, _MAX_JSON_BYTES))
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise _RuleBroken("is too large to read a key from (over 64 MiB)") from error
        raise _RuleBroken(f"is not readable: {error.strerror}") from error
    except ValueError as error:
        raise _RuleBroken(f"is not readable as JSON: {error}") from error
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            raise _RuleBroken(f"has no key {key}")
        value = value[part]
    return value


def _check_value(rule: OutputRule, value: Any) -> None:
    bounded = rule.at_least is not None or rule.at_most is not None
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    if bounded and number is None:
        raise _RuleBroken(f"has {rule.key} = {json.dumps(value)[:60]}, which is not a number")
    if isinstance(number, float) and not math.isfinite(number):
        shown = "NaN" if math.isnan(number) else "Infinity"
        raise _RuleBroken(f"has {rule.key} = {shown}, which is not a result")
    if number is None:
        return
    if rule.at_least is not None and not number >= rule.at_least:
        raise _OutOfBounds(f"has {rule.key} = {number}, but at least {rule.at_least} is required")
    if rule.at_most is not None and not number <= rule.at_most:
        raise _OutOfBounds(f"has {rule.key} = {number}, but at most {rule.at_most} is required")

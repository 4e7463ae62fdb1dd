"""Validation of outputs against the rules in params.yaml."""

from __future__ import annotations

import json
import math
import os
import stat
from dataclasses import dataclass
from typing import Any, Callable, Sequence

from outlast.node.files import copy_file
from outlast.node.order import OutputRule
from outlast.node.outputs.collection import is_below, is_inside_name
from outlast.node.pulse import no_pulse

_MAX_JSON_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Problem:
    """A rule that is not kept. `rule` identifies it across attempts; `sentence` is for the user."""

    rule: str
    sentence: str


class _RuleBroken(Exception):
    """A rule is not kept; the text follows the path in a sentence for the user."""


def normalize_output(output: str, pulse: Callable[[], None] = no_pulse) -> list[str]:
    """Leave only files and directories in the output directory. Return a warning for each removed entry.

    A link to a file in the directory (best.pt → step-100.pt) becomes a file; other links and devices go.
    """
    warnings = []
    top = os.path.realpath(output)
    for directory, names, files in os.walk(output):
        for name in [*names, *files]:
            pulse()
            path = os.path.join(directory, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
                continue
            inside = os.path.relpath(path, output)
            target = os.path.realpath(path)
            if stat.S_ISLNK(mode) and is_below(target, top) and os.path.isfile(target):
                temporary = f"{path}.outlast-link"
                copy_file(target, temporary, pulse)
                os.replace(temporary, path)
                continue
            what = "a link to no file in it" if stat.S_ISLNK(mode) else "neither a file nor a directory"
            warnings.append(f"{inside} in the output directory is {what}; it was removed")
            os.unlink(path)
    return warnings


def validate(
    rules: Sequence[OutputRule], output: str, run_check: Callable[[Sequence[str]], str | None]
) -> list[Problem]:
    """Return the rules that are not kept. `run_check` runs a command and returns how it failed, or None."""
    problems = []
    for rule in rules:
        try:
            _check_rule(rule, output, run_check)
        except _RuleBroken as failure:
            problems.append(Problem(f"{rule.path}|{rule.key}|{rule.check}", f"{rule.path} {failure}."))
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
        if os.path.getsize(path) > _MAX_JSON_BYTES:
            raise _RuleBroken("is too large to read a key from (over 64 MiB)")
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
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
        raise _RuleBroken(f"has {rule.key} = {number}, but at least {rule.at_least} is required")
    if rule.at_most is not None and not number <= rule.at_most:
        raise _RuleBroken(f"has {rule.key} = {number}, but at most {rule.at_most} is required")

"""Whether a training's outputs are what its params.yaml asks for."""

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

_LARGEST_JSON = 64 * 1024 * 1024


@dataclass(frozen=True)
class Problem:
    """A rule that is not kept: `rule` says which, alike at every attempt; `sentence` tells the user."""

    rule: str
    sentence: str


class _Fails(Exception):
    """One rule's sentence."""


def normalize_output(output: str, pulse: Callable[[], None] = no_pulse) -> list[str]:
    """Leave only files and directories in the output directory; what was left out, as sentences.

    A link to a file beside it (best.pt → step-100.pt) becomes a file; other links and devices go.
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
            what = "a link that leads nowhere inside" if stat.S_ISLNK(mode) else "neither file nor directory"
            warnings.append(f"the output {inside} is {what}; it is left out")
            os.unlink(path)
    return warnings


def validate(
    rules: Sequence[OutputRule], output: str, run_check: Callable[[Sequence[str]], str | None]
) -> list[Problem]:
    """All rules that are not kept. `run_check` runs a command and says how it failed, or None."""
    problems = []
    for rule in rules:
        try:
            _judge(rule, output, run_check)
        except _Fails as failure:
            problems.append(Problem(f"{rule.path}|{rule.key}|{rule.check}", f"{rule.path} {failure}."))
    return problems


def _judge(rule: OutputRule, output: str, run_check: Callable[[Sequence[str]], str | None]) -> None:
    if not is_inside_name(rule.path):
        raise _Fails("is not a name inside the output directory")
    path = os.path.join(output, rule.path)
    if not os.path.lexists(path):
        raise _Fails(
            "is not there: neither in $OUTLAST_OUTPUT_DIR nor in the working directory (links do not count)"
        )
    if not is_below(os.path.realpath(path), os.path.realpath(output)):
        raise _Fails("is a link out of the output directory")
    if os.path.isdir(path):
        if not os.listdir(path):
            raise _Fails("is an empty directory")
    elif not os.path.isfile(path):
        raise _Fails("is neither a file nor a directory")
    elif os.path.getsize(path) == 0:
        raise _Fails("is empty")
    if rule.key is not None:
        _judge_value(rule, _value(path, rule.key))
    elif rule.at_least is not None or rule.at_most is not None:
        raise _Fails("has a bound but no key to compare it with")
    if rule.check is not None:
        failed = run_check(rule.check)
        if failed is not None:
            raise _Fails(f"was not accepted: the check `{' '.join(rule.check)}` {failed}")


def _value(path: str, key: str) -> Any:
    try:
        if os.path.getsize(path) > _LARGEST_JSON:
            raise _Fails("is too large to look for a key in (over 64 MiB)")
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise _Fails(f"is not readable as JSON: {error}") from error
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            raise _Fails(f"has no key {key}")
        value = value[part]
    return value


def _judge_value(rule: OutputRule, value: Any) -> None:
    bounded = rule.at_least is not None or rule.at_most is not None
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    if bounded and number is None:
        raise _Fails(f"has {rule.key} = {json.dumps(value)[:60]}, which is not a number")
    if isinstance(number, float) and not math.isfinite(number):
        shown = "NaN" if math.isnan(number) else "Infinity"
        raise _Fails(f"has {rule.key} = {shown}, which is no result")
    if number is None:
        return
    if rule.at_least is not None and not number >= rule.at_least:
        raise _Fails(f"has {rule.key} = {number}, but at least {rule.at_least} is asked for")
    if rule.at_most is not None and not number <= rule.at_most:
        raise _Fails(f"has {rule.key} = {number}, but at most {rule.at_most} is asked for")

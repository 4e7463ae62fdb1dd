"""The shape of `params.yaml` and `clusters.yaml`: keys, types and bounds. Pydantic ends here.

Defaults are those of `outlast.model`. A field that may be left out has a default of its own type, never None,
so that a key without a value is a mistake; whether it was given is in `model_fields_set`.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from outlast.model import Checkpoints, Limits, Resources
from outlast.spec import units

MOST_RUNS = 100_000
LONGEST_TEXT = 30_000
SCHEDULERS = ("local", "slurm", "sge", "htcondor")


class Entry(Enum):
    """Stands in a list for an entry that was wrong, so that the others keep their places."""

    LEFT_OUT = "left out"


def _duration(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"must be a duration; {units.DURATION_EXAMPLES}")
    return units.duration(str(value))


def _size(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"must be a size; {units.SIZE_EXAMPLES}")
    return units.size(str(value))


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("is empty")
    if len(value) > LONGEST_TEXT:
        raise ValueError(f"is longer than {LONGEST_TEXT:,} characters; put it into a script or a file")
    if any(ord(character) < 32 and character not in "\n\t\r" for character in value):
        raise ValueError("contains a control character")
    if any(0xD800 <= ord(character) <= 0xDFFF for character in value):
        raise ValueError("contains half of a character (a lone surrogate)")
    return value


def _line(value: str) -> str:
    if "\n" in _text(value):
        raise ValueError("must be on one line")
    return value


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("must be a number that is not infinite")
    return value


def _path_is_enough(value: Any) -> Any:
    """`- model.npz` is short for `- {path: model.npz}`. An entry that was left out has no key at all."""
    if value is Entry.LEFT_OUT:
        return {}
    return {"path": value} if isinstance(value, str) else value


def _empty_if_left_out(value: Any, read: ValidatorFunctionWrapHandler) -> str:
    """What was written is never empty, so that an empty text can stand for an entry that was left out."""
    return "" if value is Entry.LEFT_OUT else str(read(value))


def _cpus_are_enough(value: Any) -> Any:
    """`alpha: 2` is short for `alpha: {cpus: 2}`."""
    return {"cpus": value} if isinstance(value, int) and not isinstance(value, bool) else value


Duration = Annotated[float, BeforeValidator(_duration)]
Size = Annotated[int, BeforeValidator(_size)]
Text = Annotated[str, AfterValidator(_text)]
Line = Annotated[str, AfterValidator(_line)]
Bound = Annotated[float, AfterValidator(_finite)]
#: Bounded so that it fits every scheduler's and the journal's integers.
Count = Annotated[int, Field(ge=1, le=1_000_000)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ResourcesKeys(Strict):
    cpus: Count = Resources.cpus
    gpus: Annotated[int, Field(ge=0, le=1_000_000)] = Resources.gpus
    memory: Size = Resources.memory
    disk: Size = Resources.disk
    time: Duration = Resources.time


class OutputKeys(Strict):
    path: Line = ""
    key: Line = ""
    at_least: Bound = 0.0
    at_most: Bound = 0.0
    check: Text = ""


class LimitsKeys(Strict):
    attempts: Count = Limits.attempts
    without_progress: Count = Limits.without_progress
    total: Duration = Limits.total


class CheckpointsKeys(Strict):
    # One being written must never be the only one there is.
    keep: Annotated[int, Field(ge=2, le=1_000_000)] = Checkpoints.keep
    grace: Duration = Checkpoints.grace
    signal: Literal["TERM", "USR1", "USR2"] = "TERM"


class ParamsKeys(Strict):
    name: Line = ""
    command: Text = ""
    code: list[Annotated[Line, WrapValidator(_empty_if_left_out)]] = []
    cluster: Line = "local"
    resources: ResourcesKeys = ResourcesKeys()
    runs: Annotated[int, Field(ge=1, le=MOST_RUNS)] = 1
    #: Read by `outlast.spec.runs`, which needs the values as they were written.
    sweep: Any = None
    parallel: Count = 1
    outputs: list[Annotated[OutputKeys, BeforeValidator(_path_is_enough)]] = []
    limits: LimitsKeys = LimitsKeys()
    checkpoints: CheckpointsKeys = CheckpointsKeys()


class HostKeys(Strict):
    cpus: Count = 1
    gpus: Annotated[int, Field(ge=0, le=1_000_000)] = 0


class ProfileKeys(Strict):
    scheduler: Literal["local", "slurm", "sge", "htcondor"] = "local"
    hosts: dict[str, Annotated[HostKeys, BeforeValidator(_cpus_are_enough)]] = {}
    longest: Duration = 0.0

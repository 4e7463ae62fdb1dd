"""The shape of `params.yaml` and `clusters.yaml`: keys, types and bounds. Pydantic ends here.

Defaults are those of `outlast.domain.model`. A field that may be left out has a default of its own type,
never None, so that a key without a value is a mistake; whether it was given is in `model_fields_set`.
"""

from __future__ import annotations

import math
import string
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

from outlast import units
from outlast.domain.model import Checkpoints, Limits, Resources
from outlast.schedulers.profile import Profile
from outlast.spec import command as commands
from outlast.spec.mistakes import did_you_mean, shorten

MOST_RUNS = 100_000
LONGEST_TEXT = 30_000
SCHEDULERS = ("local", "slurm", "sge", "htcondor")
#: What a site's words for resources may leave a place for; `outlast.schedulers.profile.fill` puts it in.
PLACES = (
    "cpus",
    "gpus",
    "memory_mb",
    "memory_gb",
    "memory_mb_per_cpu",
    "memory_gb_per_cpu",
    "disk_gb",
)


class DataEntry(Enum):
    """Stands in a list for an entry that was wrong, so that the others keep their places."""

    LEFT_OUT = "left out"


def _duration(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"must be a duration; {units.DURATION_EXAMPLES}")
    return units.duration(str(value))


def _auto_or_duration(value: object) -> float:
    """0, which no duration is, stands for `auto`."""
    if isinstance(value, str) and value.strip() == "auto":
        return 0.0
    try:
        return _duration(value)
    except ValueError as error:
        raise ValueError(f"{error}; or auto") from None


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
    if any(end in _text(value) for end in "\n\r"):
        raise ValueError("must be on one line")
    return value


def _word(value: str) -> str:
    """Goes into a line that the scheduler reads, where a space or a quote would begin something else."""
    if any(character.isspace() or character in "\"'`\\$;&|<>(){}" for character in _line(value)):
        raise ValueError(f'"{shorten(value)}" holds a space, a quote or another character that no name has')
    if value.startswith("-"):
        raise ValueError(f'"{shorten(value)}" begins with -; write the name alone')
    return value


def _template(value: str) -> str:
    _line(value)
    try:
        parts = list(string.Formatter().parse(value))
    except ValueError as error:
        raise ValueError("a { or } has no partner; write {{ or }} if it is meant as it is") from error
    for _, name, form, conversion in parts:
        if name is None:
            continue
        if name not in PLACES or form or conversion:
            hint = did_you_mean(name, PLACES) or f"known are {', '.join(PLACES)}"
            raise ValueError(f"nothing is known to put in for {{{shorten(name)}}}; {hint}")
    return value


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("must be a number that is not infinite")
    return value


def _path_is_enough(value: Any) -> Any:
    """`- model.npz` is short for `- {path: model.npz}`. An entry that was left out has no key at all."""
    if value is DataEntry.LEFT_OUT:
        return {}
    return {"path": value} if isinstance(value, str) else value


def _empty_if_left_out(value: Any, read: ValidatorFunctionWrapHandler) -> str:
    """What was written is never empty, so that an empty text can stand for an entry that was left out."""
    return "" if value is DataEntry.LEFT_OUT else str(read(value))


def _words_are_enough(value: Any) -> Any:
    """`python3 cuda` is short for `[python3, cuda]`."""
    return value.split() or [value] if isinstance(value, str) else value


def _lines_are_enough(value: Any) -> Any:
    """Text of several lines is short for a list of them."""
    return (
        [line for line in value.splitlines() if line.strip()] or [value] if isinstance(value, str) else value
    )


def _url_is_enough(value: Any) -> Any:
    """`- https://…` is short for `- {url: https://…}`. An entry that was left out has no key at all."""
    if value is DataEntry.LEFT_OUT:
        return {}
    return {"url": value} if isinstance(value, str) else value


def _one_is_enough(value: Any) -> Any:
    """A text is short for a list with it alone."""
    return [value] if isinstance(value, str) else value


def _yes_or_no(value: Any) -> Any:
    """`yes` and `no` are text here; `true` and `false` mean the same."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value


def _exact(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("must be the exact number of bytes; write it without a unit, such as 147897477120")
    if not 0 <= value <= units.LARGEST:
        raise ValueError("is not the size of any file")
    return value


def _where_a_token_is(value: Any) -> Any:
    # What was written in its place may be the token: it is not repeated.
    if isinstance(value, str):
        raise ValueError(
            "must say where a token is, never be one; write {file: ~/.my-token, hosts: [data.example.org]}"
        )
    return value


def _command_words(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return commands.split(value) or [value]
    except ValueError:
        raise ValueError("a quote is opened and not closed") from None


def _cpus_are_enough(value: Any) -> Any:
    """`alpha: 2` is short for `alpha: {cpus: 2}`."""
    return {"cpus": value} if isinstance(value, int) and not isinstance(value, bool) else value


Duration = Annotated[float, BeforeValidator(_duration)]
Size = Annotated[int, BeforeValidator(_size)]
Text = Annotated[str, AfterValidator(_text)]
Line = Annotated[str, AfterValidator(_line)]
Word = Annotated[str, AfterValidator(_word)]
Template = Annotated[str, AfterValidator(_template)]
Words = Annotated[
    list[Annotated[Word, WrapValidator(_empty_if_left_out)]], BeforeValidator(_words_are_enough)
]
Lines = Annotated[
    list[Annotated[Line, WrapValidator(_empty_if_left_out)]], BeforeValidator(_lines_are_enough)
]
#: Like `Lines`, but a text is one entry, whatever is in it.
OneOrMore = Annotated[
    list[Annotated[Line, WrapValidator(_empty_if_left_out)]], BeforeValidator(_one_is_enough)
]
Exact = Annotated[int, BeforeValidator(_exact)]
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


class DataKeys(Strict):
    url: OneOrMore = []
    #: Digests are read by `outlast.spec.data_keys` as they were written: some of them look like numbers.
    sha256: Any = None
    sha1: Any = None
    md5: Any = None
    crc32c: Any = None
    crc32: Any = None
    adler32: Any = None
    size: Exact = 0
    unpack: Annotated[Literal["no", "yes", "nested"], BeforeValidator(_yes_or_no)] = "no"
    to: Line = ""
    method: Literal["auto", "http", "osdf", "native", "shared"] = "auto"


class LimitsKeys(Strict):
    attempts: Count = Limits.attempts
    without_progress: Count = Limits.without_progress
    total: Duration = Limits.total


class CheckpointsKeys(Strict):
    # One being written must never be the only one there is.
    keep: Annotated[int, Field(ge=2, le=1_000_000)] = Checkpoints.keep
    grace: Duration = Checkpoints.grace
    signal: Literal["TERM", "USR1", "USR2"] = "TERM"
    every: Annotated[float, BeforeValidator(_auto_or_duration)] = 0.0
    shortest: Duration = Checkpoints.shortest
    longest: Duration = Checkpoints.longest


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
    data: list[Annotated[DataKeys, BeforeValidator(_url_is_enough)]] = []
    outputs: list[Annotated[OutputKeys, BeforeValidator(_path_is_enough)]] = []
    limits: LimitsKeys = LimitsKeys()
    checkpoints: CheckpointsKeys = CheckpointsKeys()


class HostKeys(Strict):
    cpus: Count = 1
    gpus: Annotated[int, Field(ge=0, le=1_000_000)] = 0


class TokenKeys(Strict):
    file: Line = ""
    command: Annotated[
        list[Annotated[Line, WrapValidator(_empty_if_left_out)]], BeforeValidator(_command_words)
    ] = []
    hosts: OneOrMore = []


class TransfersKeys(Strict):
    stall: Duration = Profile.stall
    patience: Duration = Profile.patience
    connections: Annotated[int, Field(ge=1, le=32)] = Profile.connections


class ProfileKeys(Strict):
    """The keys of `outlast.schedulers.profile.Profile`, and `account` and `partition`, Slurm's own words."""

    scheduler: Literal["local", "slurm", "sge", "htcondor"] = "local"
    hosts: dict[str, Annotated[HostKeys, BeforeValidator(_cpus_are_enough)]] = {}
    project: Word = ""
    account: Word = ""
    queue: Word = ""
    partition: Word = ""
    gpus: Template = ""
    cpus: Template = ""
    memory: Template = ""
    modules: Words = []
    before: Lines = []
    environment: Line = ""
    container: Line = ""
    scratch: Line = ""
    python: Line = Profile.python
    longest: Duration = 0.0
    largest_transfer: Size = 0
    submit_rate: Count = 1
    most_jobs: Count = 1
    directives: Lines = []
    commit: Literal["auto", "chirp", "restart", "never"] = "auto"
    commit_every: Duration = Profile.commit_every
    interval: Duration = 0.0
    lag: Duration = 0.0
    cache: Line = ""
    cache_size: Size = 0
    token: Annotated[TokenKeys, BeforeValidator(_where_a_token_is)] = TokenKeys()
    transfers: TransfersKeys = TransfersKeys()

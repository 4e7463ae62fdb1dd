"""The schema of `params.yaml` and `clusters.yaml`: keys, types and bounds.

Defaults are those of `outlast.domain.model`. An optional field has a default of its own type, never None, so
that a key without a value is a mistake; `model_fields_set` has the keys that were written.
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
from outlast.domain.model import Checkpoints, Limits, Resources, Spec
from outlast.schedulers.profile import Profile
from outlast.spec import command as commands
from outlast.spec.mistakes import did_you_mean, shorten

MOST_RUNS = 100_000
LONGEST_TEXT = 30_000
SCHEDULERS = ("local", "slurm", "sge", "htcondor")
#: Placeholders in a site's resource options, which `outlast.schedulers.profile.fill_template` replaces.
PLACEHOLDERS = (
    "cpus",
    "gpus",
    "memory_mb",
    "memory_gb",
    "memory_mb_per_cpu",
    "memory_gb_per_cpu",
    "disk_gb",
)


class DataEntry(Enum):
    """Replaces an invalid entry of a list, so that the others keep their indices."""

    LEFT_OUT = "left out"


def _duration(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"must be a duration; {units.DURATION_EXAMPLES}")
    return units.parse_duration(str(value))


def _auto_or_duration(value: object) -> float:
    """Parse a duration. Return 0 for `auto`: no duration is 0."""
    if isinstance(value, str) and value.strip() == "auto":
        return 0.0
    try:
        return _duration(value)
    except ValueError as error:
        raise ValueError(f"{error}; or auto") from None


def _size(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"must be a size; {units.SIZE_EXAMPLES}")
    # The message of an error quotes it, and must not have half a character.
    return units.parse_size(str(value).encode("utf-8", "replace").decode())


def _none_or_size(value: object) -> int:
    """Parse a size, which may be 0."""
    is_none = str(value).strip() in ("0", "0B", "0 B") and not isinstance(value, bool)
    return 0 if is_none else _size(value)


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("is empty")
    if len(value) > LONGEST_TEXT:
        raise ValueError(f"is longer than {LONGEST_TEXT:,} characters; put it into a script or a file")
    if any(ord(character) < 32 and character not in "\n\t\r" for character in value):
        raise ValueError("contains a control character")
    if any(0xD800 <= ord(character) <= 0xDFFF for character in value):
        raise ValueError("contains half a character (a lone surrogate)")
    return value


def _line(value: str) -> str:
    if any(end in _text(value) for end in "\n\r"):
        raise ValueError("must be on one line")
    return value


def _word(value: str) -> str:
    """Validate a name that is put into a line for the scheduler, where spaces and quotes separate words."""
    if any(character.isspace() or character in "\"'`\\$;&|<>(){}" for character in _line(value)):
        raise ValueError(
            f'"{shorten(value)}" contains a space, a quote or another character not allowed in names'
        )
    if value.startswith("-"):
        raise ValueError(f'"{shorten(value)}" begins with -; write the name alone')
    return value


def _template(value: str) -> str:
    _line(value)
    try:
        parts = list(string.Formatter().parse(value))
    except ValueError as error:
        raise ValueError("unbalanced { or }; write {{ or }} for a literal brace") from error
    for _, name, form, conversion in parts:
        if name is None:
            continue
        if name not in PLACEHOLDERS or form or conversion:
            hint = did_you_mean(name, PLACEHOLDERS) or f"known: {', '.join(PLACEHOLDERS)}"
            raise ValueError(f"unknown placeholder {{{shorten(name)}}}; {hint}")
    return value


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


def _expand_path(value: Any) -> Any:
    """Expand `- model.npz` to `- {path: model.npz}`. An entry that was left out has no keys."""
    if value is DataEntry.LEFT_OUT:
        return {}
    return {"path": value} if isinstance(value, str) else value


def _empty_if_left_out(value: Any, read: ValidatorFunctionWrapHandler) -> str:
    """Return an empty text, which no valid entry is, for an entry that was left out."""
    return "" if value is DataEntry.LEFT_OUT else str(read(value))


def _split_words(value: Any) -> Any:
    """Expand `python3 cuda` to `[python3, cuda]`."""
    return value.split() or [value] if isinstance(value, str) else value


def _split_lines(value: Any) -> Any:
    """Expand a text to the list of its lines that are not blank."""
    return (
        [line for line in value.splitlines() if line.strip()] or [value] if isinstance(value, str) else value
    )


def _expand_url(value: Any) -> Any:
    """Expand `- https://…` to `- {url: https://…}`. An entry that was left out has no keys."""
    if value is DataEntry.LEFT_OUT:
        return {}
    return {"url": value} if isinstance(value, str) else value


def _expand_single(value: Any) -> Any:
    """Expand a text to a list of one."""
    return [value] if isinstance(value, str) else value


def _yes_or_no(value: Any) -> Any:
    """Convert `true` and `false` to `yes` and `no`, which are text in YAML 1.2."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value


def _exact(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("must be the exact number of bytes; write it without a unit, such as 147897477120")
    if not 0 <= value <= units.LARGEST:
        raise ValueError("is not the size of any file")
    return value


def _reject_token_text(value: Any) -> Any:
    # The text may be the token itself: the message must not quote it.
    if isinstance(value, str):
        raise ValueError(
            "must name a token's file, not be a token; write {file: ~/.my-token, hosts: [data.example.org]}"
        )
    return value


def _command_words(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return commands.split(value) or [value]
    except ValueError:
        raise ValueError("a quote is opened and not closed") from None


def _expand_cpus(value: Any) -> Any:
    """Expand `alpha: 2` to `alpha: {cpus: 2}`."""
    return {"cpus": value} if isinstance(value, int) and not isinstance(value, bool) else value


Duration = Annotated[float, BeforeValidator(_duration)]
Size = Annotated[int, BeforeValidator(_size)]
Text = Annotated[str, AfterValidator(_text)]
Line = Annotated[str, AfterValidator(_line)]
Word = Annotated[str, AfterValidator(_word)]
Template = Annotated[str, AfterValidator(_template)]
Words = Annotated[list[Annotated[Word, WrapValidator(_empty_if_left_out)]], BeforeValidator(_split_words)]
Lines = Annotated[list[Annotated[Line, WrapValidator(_empty_if_left_out)]], BeforeValidator(_split_lines)]
#: A list of lines, or a text for a list of one.
OneOrMore = Annotated[
    list[Annotated[Line, WrapValidator(_empty_if_left_out)]], BeforeValidator(_expand_single)
]
#: The default of such a list.
NO_LINES: list[str] = []
Exact = Annotated[int, BeforeValidator(_exact)]
Bound = Annotated[float, AfterValidator(_finite)]
#: The upper bound fits the integers of every scheduler and of the journal.
Count = Annotated[int, Field(ge=1, le=1_000_000)]
CountOrZero = Annotated[int, Field(ge=0, le=1_000_000)]
Port = Annotated[int, Field(ge=1, le=65_535)]
YesOrNo = Annotated[Literal["no", "yes"], BeforeValidator(_yes_or_no)]
Unpack = Annotated[Literal["no", "yes", "nested"], BeforeValidator(_yes_or_no)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ResourcesKeys(Strict):
    cpus: Count = Resources.cpus
    gpus: CountOrZero = Resources.gpus
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
    #: `outlast.spec.data_keys` parses digests from the text as written: some look like numbers.
    sha256: Any = None
    sha1: Any = None
    md5: Any = None
    crc32c: Any = None
    crc32: Any = None
    adler32: Any = None
    size: Exact = 0
    unpack: Unpack = "no"
    to: Line = ""
    method: Literal["auto", "http", "osdf", "native", "shared"] = "auto"
    writable: YesOrNo = "no"


class LimitsKeys(Strict):
    attempts: Count = Limits.attempts
    without_progress: Count = Limits.without_progress
    total: Duration = Limits.total
    start_over: YesOrNo = "no"
    #: 0: not written.
    memory: Size = 0
    disk: Size = 0
    time: Duration = 0.0


class CheckpointsKeys(Strict):
    # At least two: the one being written must not be the only one.
    keep: Annotated[int, Field(ge=2, le=1_000_000)] = Checkpoints.keep
    grace: Duration = Checkpoints.grace
    signal: Literal["TERM", "USR1", "USR2"] = "TERM"
    every: Annotated[float, BeforeValidator(_auto_or_duration)] = 0.0
    shortest: Duration = Checkpoints.shortest
    longest: Duration = Checkpoints.longest
    snapshots: Annotated[int, Field(ge=0, le=100)] = Checkpoints.snapshots
    snapshot_size: Size = Checkpoints.snapshot_size
    resume: Text = ""


class ParamsKeys(Strict):
    name: Line = ""
    command: Text = ""
    code: list[Annotated[Line, WrapValidator(_empty_if_left_out)]] = []
    cluster: Line = "local"
    resources: ResourcesKeys = ResourcesKeys()
    runs: Annotated[int, Field(ge=1, le=MOST_RUNS)] = 1
    #: Parsed by `outlast.spec.runs`, which needs the values as written.
    sweep: Any = None
    parallel: Count = 1
    data: list[Annotated[DataKeys, BeforeValidator(_expand_url)]] = []
    outputs: list[Annotated[OutputKeys, BeforeValidator(_expand_path)]] = []
    other_outputs: Annotated[int, BeforeValidator(_none_or_size)] = Spec.other_outputs
    limits: LimitsKeys = LimitsKeys()
    checkpoints: CheckpointsKeys = CheckpointsKeys()
    #: Parsed by `outlast.spec.env_keys`, which needs the values as written.
    env: Any = None


class HostKeys(Strict):
    cpus: Count = 1
    gpus: CountOrZero = 0


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
    """The keys of `outlast.schedulers.profile.Profile`, and Slurm's names `account` and `partition`."""

    scheduler: Literal["local", "slurm", "sge", "htcondor"] = "local"
    hosts: dict[str, Annotated[HostKeys, BeforeValidator(_expand_cpus)]] = {}
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
    token: Annotated[TokenKeys, BeforeValidator(_reject_token_text)] = TokenKeys()
    transfers: TransfersKeys = TransfersKeys()

"""The schema of `template.yaml`: keys, types and bounds; defaults are those of `outlast.gateway.settings`."""

from __future__ import annotations

from typing import Any, Literal

from outlast.gateway.settings import Ceilings, InputRule, Parameter, Quota
from outlast.spec.schema import (
    NO_LINES,
    Bound,
    Count,
    CountOrZero,
    Duration,
    Line,
    OneOrMore,
    Size,
    Strict,
    Unpack,
    YesOrNo,
)

PARAMETER_TYPES = ("integer", "number", "text", "choice", "yes-no")


class ParameterKeys(Strict):
    type: Literal["integer", "number", "text", "choice", "yes-no"] = "text"
    at_least: Bound = 0.0
    at_most: Bound = 0.0
    #: Read as they are written: some look like numbers.
    choices: Any = None
    longest: Count = Parameter.longest
    pattern: Line = Parameter.pattern
    default: Any = None
    secret: YesOrNo = "no"


class InputKeys(Strict):
    to: Line = ""
    required: YesOrNo = "yes"
    most: Size = InputRule.most
    unpack: Unpack = "no"
    hosts: OneOrMore = NO_LINES
    private_hosts: OneOrMore = NO_LINES
    token: YesOrNo = "yes"


class CeilingsKeys(Strict):
    cpus: Count = Ceilings.cpus
    gpus: CountOrZero = Ceilings.gpus
    memory: Size = Ceilings.memory
    disk: Size = Ceilings.disk
    time: Duration = Ceilings.time
    total: Duration = Ceilings.total
    outage: Duration = Ceilings.outage


class QuotaKeys(Strict):
    running: Count = Quota.running
    waiting: Count = Quota.waiting
    waiting_per_user: Count = Quota.waiting_per_user
    per_day_per_user: Count = Quota.per_day_per_user


class UploadsKeys(Strict):
    hosts: OneOrMore = NO_LINES
    path: Line = ""
    directory: Line = ""


#: The default of `answer`.
NO_FILES: dict[str, str] = {}


class TemplateKeys(Strict):
    title: Line = ""
    #: Each is read with `ParameterKeys` and `InputKeys`.
    parameters: Any = None
    inputs: Any = None
    ceilings: CeilingsKeys = CeilingsKeys()
    quota: QuotaKeys = QuotaKeys()
    users: OneOrMore = NO_LINES
    answer: dict[str, Line] = NO_FILES
    uploads: UploadsKeys = UploadsKeys()


#: For tests of the reference: the keys of entries whose names are free.
ENTRIES: dict[str, type[Strict]] = {"parameters": ParameterKeys, "inputs": InputKeys}

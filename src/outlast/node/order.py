"""The work order: the immutable JSON file that tells an attempt all it needs."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from outlast.node.staging.plan import DataPlan

VERSION = 1
_PATHS = ("exchange", "scratch", "checkpoints", "log", "previous_scratch", "code", "zipapp")


class BadOrder(ValueError):
    """The work order is missing, torn or of another version."""


@dataclass(frozen=True)
class OutputRule:
    """One output that must be there, and what it must satisfy.

    `key` looks into a JSON file (dots descend); `check` is an argument list that must exit 0.
    """

    path: str
    key: str | None = None
    at_least: float | None = None
    at_most: float | None = None
    check: tuple[str, ...] | None = None


@dataclass(frozen=True)
class SaveSettings:
    """When the training is to save by itself: what the user allows, and what the run has been through so far.

    All in seconds. What is not known yet is None.
    """

    #: None: the training works it out, within the two bounds.
    every: float | None = None
    shortest: float = 10.0
    longest: float = 3600.0
    #: How long it was at work, and how often the cluster cut it short.
    observed: float = 0.0
    interruptions: int = 0
    #: How long a save held it up, and how long the slowest took to be durable.
    blocked: float | None = None
    durable: float | None = None


@dataclass(frozen=True)
class WorkOrder:
    """All paths are absolute, once `read_order` has read them: where nothing is shared they are written
    relative to the order's own directory, which is the one the job starts in."""

    token: str
    experiment: str
    run: str
    number: int
    command: tuple[str, ...]
    #: Belongs to this attempt alone: claim, event log, progress, delivered outputs.
    exchange: str
    #: Belongs to this attempt alone and may be deleted: working directory and outputs in the making.
    scratch: str
    #: Shared by the attempts of the run, one after the other.
    checkpoints: str
    #: stdout and stderr of the training.
    log: str
    #: An earlier attempt's scratch, whose unfinished outputs are carried on.
    previous_scratch: str | None = None
    #: A tar archive of the code that travels with the job, and its SHA-256.
    code: str | None = None
    code_sha256: str | None = None
    #: The zipapp that gives the training its `import outlast`.
    zipapp: str | None = None
    outputs: tuple[OutputRule, ...] = ()
    #: Wall-time limit of the job in seconds; the scheduler kills it at the end of it.
    time: float = 3600.0
    #: How long the training may take to save after the stop signal.
    grace: float = 30.0
    #: The stop signal's name without SIG.
    signal: str = "TERM"
    keep: int = 3
    saving: SaveSettings = field(default_factory=SaveSettings)
    cpus: int = 1
    environment: dict[str, str] = field(default_factory=dict)
    #: The signal by which this scheduler tells that the wall-time limit is near, without SIG.
    limit_signal: str | None = None
    #: How many jobs carry this order, one after the other.
    jobs: int = 1
    #: A directory of the node's own for what is needed only while the job runs; variables in it are expanded.
    node_scratch: str | None = None
    #: A file to touch when the job begins and ends, for a controller that waits.
    bell: str | None = None
    #: Nothing is shared with the controller: everything is in the order's directory and travels with the job.
    sandbox: bool = False
    #: In a sandbox: how checkpoints get out while the job runs (auto, chirp, restart, never), and how often.
    commit: str = "never"
    commit_every: float = 1800.0
    #: What has to be there before the training starts.
    data: DataPlan = field(default_factory=DataPlan)

    @property
    def home(self) -> str:
        """In a sandbox: the directory the job starts in."""
        return os.path.dirname(self.exchange)

    def to_json(self) -> str:
        return json.dumps({"version": VERSION, **asdict(self)}, separators=(",", ":"))


def read_order(path: str) -> WorkOrder:
    try:
        with open(path, encoding="utf-8") as file:
            raw: dict[str, Any] = json.load(file)
        if not isinstance(raw, dict) or raw.pop("version", None) != VERSION:
            raise BadOrder("%s: not a work order of version %d" % (path, VERSION))
        raw = _known_to(WorkOrder, raw)
        raw["command"] = tuple(raw["command"])
        raw["outputs"] = tuple(
            OutputRule(**{**rule, "check": tuple(rule["check"]) if rule.get("check") else None})
            for rule in raw.get("outputs", ())
        )
        raw["saving"] = SaveSettings(**_known_to(SaveSettings, raw.get("saving", {})))
        here = os.path.dirname(os.path.abspath(path))
        for name in _PATHS:
            if isinstance(raw.get(name), str):
                raw[name] = os.path.join(here, raw[name])
        raw["data"] = DataPlan.from_dict(raw.get("data", {})).with_absolute_paths(here)
        return WorkOrder(**raw)
    except (OSError, ValueError, TypeError, KeyError) as error:
        if isinstance(error, BadOrder):
            raise
        raise BadOrder("%s: %s" % (path, error)) from error


def _known_to(kind: Any, raw: dict[str, Any]) -> dict[str, Any]:
    """Without what a later version has added."""
    names = {field.name for field in fields(kind)}
    return {key: value for key, value in raw.items() if key in names}

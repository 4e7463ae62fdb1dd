"""The work order: the immutable JSON file with everything that an attempt needs."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from outlast.node.output_rule import OutputRule
from outlast.node.staging.plan import DataPlan
from outlast.untrusted_files import parse_json, read_file

VERSION = 1
_MAX_BYTES = 64 * 2**20
_PATHS = ("exchange", "scratch", "checkpoints", "log", "previous_scratch", "code", "zipapp", "snapshots")


class BadOrder(ValueError):
    """The work order is missing, damaged or of another version."""


@dataclass(frozen=True)
class SaveSettings:
    """Settings for automatic saves, and what is known of the run so far. Times are in seconds; None: unknown.

    The training process receives all of them.
    """

    #: Seconds between two saves; None: the training chooses, within the two bounds.
    every: float | None = None
    shortest: float = 10.0
    longest: float = 3600.0
    #: How long the run has computed, and how often the cluster interrupted it.
    observed: float = 0.0
    interruptions: int = 0
    #: How long a save blocked the training, and the most until one was durable.
    blocked: float | None = None
    durable: float | None = None


@dataclass(frozen=True)
class WorkOrder:
    """Everything that a job needs to run one attempt.

    `read_order` makes all paths absolute. In the file they may be relative to its own directory, which is
    the one that a job without a shared file system starts in.
    """

    token: str
    experiment: str
    run: str
    number: int
    command: tuple[str, ...]
    #: Directory of this attempt alone: claim, event log, progress, delivered outputs.
    exchange: str
    #: Directory of this attempt alone that may be deleted: working directory and unfinished outputs.
    scratch: str
    #: Shared by the attempts of the run, one after the other.
    checkpoints: str
    #: stdout and stderr of the training.
    log: str
    #: An earlier attempt's scratch, whose unfinished outputs are carried over.
    previous_scratch: str | None = None
    #: The tar archive with the code of the job, and its SHA-256.
    code: str | None = None
    code_sha256: str | None = None
    #: The zipapp from which the training imports `outlast`.
    zipapp: str | None = None
    outputs: tuple[OutputRule, ...] = ()
    #: The most bytes of files that no rule names and that are kept nevertheless.
    other_outputs: int = 2 * 10**9
    #: Wall-time limit of the job in seconds; the scheduler then kills the job.
    time: float = 3600.0
    #: Seconds that the training may take to save after the stop signal.
    grace: float = 30.0
    #: The name of the stop signal without SIG.
    signal: str = "TERM"
    keep: int = 3
    saving: SaveSettings = field(default_factory=SaveSettings)
    cpus: int = 1
    gpus: int = 0
    #: Bytes; None: unknown.
    memory: int | None = None
    environment: dict[str, str] = field(default_factory=dict)
    #: Variables that the user sets for the training process, and files with the values of others.
    env: dict[str, str] = field(default_factory=dict)
    env_files: dict[str, str] = field(default_factory=dict)
    #: The signal with which this scheduler announces the wall-time limit, without SIG.
    limit_signal: str | None = None
    #: The number of jobs that run this order, one after the other.
    jobs: int = 1
    #: A directory on the node for temporary files; variables in it are expanded.
    node_scratch: str | None = None
    #: A file to touch when the job begins and ends; a waiting controller watches it.
    bell: str | None = None
    #: True if job and controller share no file system: all files are transferred with the job.
    sandbox: bool = False
    #: In a sandbox: how checkpoints are committed (auto, chirp, restart, never), and the seconds between.
    commit: str = "never"
    commit_every: float = 1800.0
    #: Snapshots of checkpoints that the training script writes by itself: where (None: none are taken), how
    #: many, and the most bytes.
    snapshots: str | None = None
    most_snapshots: int = 2
    snapshot_bytes: int = 20 * 10**9
    #: Start from the newest snapshot with a lower number; None: from the checkpoints as they are.
    start_before: int | None = None
    #: Words that are added to the command if there is something to resume from.
    resume: tuple[str, ...] = ()
    #: The data to stage before the training starts.
    data: DataPlan = field(default_factory=DataPlan)

    @property
    def home(self) -> str:
        """The directory that a job in a sandbox starts in."""
        return os.path.dirname(self.exchange)

    def to_json(self) -> str:
        raw = asdict(self)
        raw["data"]["items"] = [item.to_dict() for item in self.data.items]
        return json.dumps({"version": VERSION, **raw}, separators=(",", ":"))


def read_order(path: str) -> WorkOrder:
    """Read a work order. Raises BadOrder."""
    try:
        raw: dict[str, Any] = parse_json(read_file(path, _MAX_BYTES))
        version = raw.pop("version", None) if isinstance(raw, dict) else None
        if version != VERSION:
            raise BadOrder(
                "%s: not a work order of version %d, which this version of Outlast reads (version: %s)"
                % (path, VERSION, version)
            )
        raw = _known_fields(WorkOrder, raw)
        raw["command"] = tuple(raw["command"])
        raw["resume"] = tuple(raw.get("resume", ()))
        raw["outputs"] = tuple(
            OutputRule(**{**rule, "check": tuple(rule["check"]) if rule.get("check") else None})
            for rule in raw.get("outputs", ())
        )
        raw["saving"] = SaveSettings(**_known_fields(SaveSettings, raw.get("saving", {})))
        here = os.path.dirname(os.path.abspath(path))
        for name in _PATHS:
            if isinstance(raw.get(name), str):
                raw[name] = os.path.join(here, raw[name])
        raw["env_files"] = {
            name: os.path.join(here, os.path.expanduser(file))
            for name, file in raw.get("env_files", {}).items()
        }
        raw["data"] = DataPlan.from_dict(raw.get("data", {})).with_absolute_paths(here)
        return WorkOrder(**raw)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        if isinstance(error, BadOrder):
            raise
        raise BadOrder("%s: %s" % (path, error)) from error


def _known_fields(kind: Any, raw: dict[str, Any]) -> dict[str, Any]:
    """Return `raw` without the keys that a later version has added."""
    names = {field.name for field in fields(kind)}
    return {key: value for key, value in raw.items() if key in names}

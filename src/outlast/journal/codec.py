"""The JSON form of runs, attempts and specs in the journal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from outlast.domain.accounts import AttemptAccount, read_account
from outlast.domain.model import (
    Attempt,
    AttemptState,
    Cause,
    Checkpoints,
    Ending,
    Limits,
    Outcome,
    OutputRule,
    Removal,
    Resources,
    Run,
    RunState,
    Spec,
)
from outlast.node.staging.item import DataItem


def dump(value: object) -> str:
    """Return the JSON text of a dataclass, or of plain data that contains dataclasses."""
    return json.dumps(value, default=_plain, separators=(",", ":"))


def _plain(value: object) -> object:
    return value.to_dict() if isinstance(value, AttemptAccount) else value.__dict__


def read_run(record: str) -> Run:
    """Parse the JSON text of a run."""
    raw = json.loads(record)
    raw["state"] = RunState(raw["state"])
    raw["sour_hosts"] = tuple(tuple(pair) for pair in raw["sour_hosts"])
    if raw["last"] is not None:
        raw["last"]["outcome"] = Outcome(raw["last"]["outcome"])
        raw["last"]["cause"] = _cause(raw["last"])
        raw["last"]["removed"] = Removal(raw["last"].get("removed", Removal.NO))
        raw["last"] = Ending(**raw["last"])
    return Run(**raw)


def read_attempt(record: str) -> Attempt:
    """Parse the JSON text of an attempt."""
    raw = json.loads(record)
    raw["state"] = AttemptState(raw["state"])
    raw["avoid"] = tuple(raw["avoid"])
    if raw["outcome"] is not None:
        raw["outcome"] = Outcome(raw["outcome"])
    if raw["condemned"] is not None:
        outcome, reason = raw["condemned"]
        raw["condemned"] = Outcome(outcome), reason
    raw["cause"] = _cause(raw)
    raw["account"] = read_account(raw["account"])
    return Attempt(**raw)


def _cause(raw: Mapping[str, Any]) -> Cause | None:
    """Return the cause in a record; older versions wrote none."""
    return Cause(raw["cause"]) if raw.get("cause") else None


def read_spec(record: str) -> Spec:
    """Parse the JSON text of a spec. Raise ValueError, TypeError or KeyError if it is none."""
    raw = json.loads(record)
    raw["code"] = tuple(raw["code"])
    raw["resources"] = Resources(**raw["resources"])
    raw["limits"] = Limits(**raw["limits"])
    raw["checkpoints"] = Checkpoints(**raw["checkpoints"])
    raw["outputs"] = tuple(
        OutputRule(**{**rule, "check": tuple(rule["check"]) if rule["check"] else None})
        for rule in raw["outputs"]
    )
    raw["data"] = tuple(DataItem.from_dict(item) for item in raw.get("data", ()))
    return Spec(**raw)

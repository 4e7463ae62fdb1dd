"""The JSON form of runs, attempts and specs in the journal."""

from __future__ import annotations

import json
import json.encoder
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any, TypeVar

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
from outlast.text import printable
from outlast.untrusted_files import parse_json

_Record = TypeVar("_Record", Run, Attempt)
#: Parses JSON text: `json.loads`, or `parse_untrusted`.
Parse = Callable[[str], Any]


def dump(value: object) -> str:
    """Return the JSON text of a dataclass, or of plain data that contains dataclasses."""
    return "".join(_encode(value))


def _plain(value: object) -> object:
    return value.to_dict() if isinstance(value, AttemptAccount) else value.__dict__


def _make_encoder() -> Callable[[object], Iterable[str]]:
    """Return an encoder to be used again and again; `json.dumps` takes longer to make one than to use it."""
    options: Any = json.JSONEncoder(default=_plain, separators=(",", ":"))
    with suppress(KeyError, TypeError):  # CPython's own encoder, without a check for cycles
        make: Any = vars(json.encoder)["c_make_encoder"]
        encode = make(None, _plain, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, True)
        if "".join(encode(["x"], 0)) == '["x"]':
            return lambda value: encode(value, 0)
    iterencode: Callable[[object], Iterable[str]] = options.iterencode
    return iterencode


_encode = _make_encoder()


def parse_untrusted(text: str) -> Any:
    """Parse JSON text that another user wrote; control characters in its strings are replaced.

    Raise ValueError for anything that cannot be used safely.
    """
    parsed = parse_json(text)
    return _make_printable(parsed) if "\\" in text or not text.isascii() else parsed


def _make_printable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_make_printable(inner) for inner in value]
    if isinstance(value, dict):
        return {printable(key): _make_printable(inner) for key, inner in value.items()}
    return value


def read_run(record: str, parse: Parse = json.loads) -> Run:
    """Parse the JSON text of a run."""
    raw = parse(record)
    raw["state"] = RunState(raw["state"])
    raw["sour_hosts"] = tuple(map(tuple, raw["sour_hosts"]))
    if raw["last"] is not None:
        raw["last"]["outcome"] = Outcome(raw["last"]["outcome"])
        raw["last"]["cause"] = _cause(raw["last"])
        raw["last"]["removed"] = Removal(raw["last"].get("removed", Removal.NO))
        raw["last"] = Ending(**raw["last"])
    return _build(Run, _RUN_FIELDS, raw)


def read_attempt(record: str, parse: Parse = json.loads) -> Attempt:
    """Parse the JSON text of an attempt."""
    raw = parse(record)
    raw["state"] = AttemptState(raw["state"])
    raw["avoid"] = tuple(raw["avoid"])
    if raw["outcome"] is not None:
        raw["outcome"] = Outcome(raw["outcome"])
    if raw["condemned"] is not None:
        outcome, reason = raw["condemned"]
        raw["condemned"] = Outcome(outcome), reason
    raw["cause"] = _cause(raw)
    raw["account"] = read_account(raw["account"])
    return _build(Attempt, _ATTEMPT_FIELDS, raw)


_RUN_FIELDS = {field.name: None for field in fields(Run)}
_ATTEMPT_FIELDS = {field.name: None for field in fields(Attempt)}


def _build(cls: type[_Record], names: dict[str, None], raw: dict[str, Any]) -> _Record:
    """Return a record with these fields, without the constructor of a frozen class, which takes longer."""
    if raw.keys() != names.keys():
        return cls(**raw)  # by an older version, or a newer one: raises TypeError
    record = object.__new__(cls)
    # All records share the strings of `names`; each parsed text has its own.
    record.__dict__.update({name: raw[name] for name in names})
    return record


def _cause(raw: Mapping[str, Any]) -> Cause | None:
    """Return the cause in a record; older versions wrote none."""
    return Cause(raw["cause"]) if raw.get("cause") else None


def read_spec(record: str, parse: Parse = json.loads) -> Spec:
    """Parse the JSON text of a spec. Raise ValueError, TypeError or KeyError if it is none."""
    raw = parse(record)
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

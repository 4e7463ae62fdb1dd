"""The JSON form of runs, attempts and specs in the journal.

Fields that have their default are left out of runs and attempts; journals of earlier versions have them.
"""

from __future__ import annotations

import json
import json.encoder
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields
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

_Record = TypeVar("_Record", Run, Attempt, Ending)
#: Parses JSON text: `parse_own`, or `parse_untrusted`.
Parse = Callable[[str], Any]

_decode_first = json.JSONDecoder().raw_decode


def dump(value: object) -> str:
    """Return the JSON text of a dataclass, or of plain data that contains dataclasses."""
    return "".join(_encode(value))


def _plain(value: object) -> object:
    known = _FIELDS.get(type(value))
    if known is not None:
        # With all of them, a record takes three times the space, and the time to read it.
        defaults = known.defaults
        return {
            name: field
            for name, field in value.__dict__.items()
            if field is not defaults[name] and field != defaults[name]
        }
    return value.to_dict() if isinstance(value, (AttemptAccount, DataItem)) else value.__dict__


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


def parse_own(text: str) -> Any:
    """Parse JSON text that `dump` wrote, in three quarters of the time of `json.loads`. Raise ValueError."""
    value, end = _decode_first(text)
    if end != len(text):
        raise ValueError("more than one JSON value")
    return value


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


def read_run(record: str, parse: Parse = parse_own) -> Run:
    """Parse the JSON text of a run. Raise ValueError, TypeError, KeyError or AttributeError if it is none."""
    raw = parse(record)
    raw["state"] = _RUN_STATES[raw["state"]]
    if "sour_hosts" in raw:
        raw["sour_hosts"] = tuple(map(tuple, raw["sour_hosts"]))
    if "accepted_before" in raw:
        raw["accepted_before"] = tuple(raw["accepted_before"])
    last = raw.get("last")
    if last is not None:
        last["outcome"] = _OUTCOMES[last["outcome"]]
        last["cause"] = _cause(last)
        if "removed" in last:
            last["removed"] = Removal(last["removed"])
        raw["last"] = _build(Ending, _ENDING, last)
    return _build(Run, _RUN, raw)


def read_attempt(record: str, parse: Parse = parse_own) -> Attempt:
    """Parse the JSON text of an attempt; errors as of `read_run`."""
    raw = parse(record)
    raw["state"] = _ATTEMPT_STATES[raw["state"]]
    if "avoid" in raw:
        raw["avoid"] = tuple(raw["avoid"])
    if raw.get("outcome") is not None:
        raw["outcome"] = _OUTCOMES[raw["outcome"]]
    if raw.get("condemned") is not None:
        outcome, reason = raw["condemned"]
        raw["condemned"] = Outcome(outcome), reason
    raw["cause"] = _cause(raw)
    if "account" in raw:
        raw["account"] = read_account(raw["account"])
    return _build(Attempt, _ATTEMPT, raw)


# A lookup takes a fifth of the time of a call of the class.
_RUN_STATES = {state.value: state for state in RunState}
_ATTEMPT_STATES = {state.value: state for state in AttemptState}
_OUTCOMES = {outcome.value: outcome for outcome in Outcome}
_CAUSES = {cause.value: cause for cause in Cause}


class _Fields:
    """The fields of a class of records, in order."""

    def __init__(self, cls: type[Any]) -> None:
        #: The default of each field; of one that has none, a value that no record has.
        self.defaults: dict[str, Any] = {}
        self.required: set[str] = set()
        for field in fields(cls):
            default = field.default
            if field.default_factory is not MISSING:
                default = field.default_factory()
            elif default is MISSING:
                default = object()
                self.required.add(field.name)
            self.defaults[field.name] = default


_RUN, _ATTEMPT, _ENDING = map(_Fields, (Run, Attempt, Ending))
_FIELDS = {Run: _RUN, Attempt: _ATTEMPT, Ending: _ENDING}


def _build(cls: type[_Record], known: _Fields, raw: dict[str, Any]) -> _Record:
    """Return a record with these fields, without the constructor of a frozen class, which takes longer."""
    # All records share the strings of the names; each parsed text has its own.
    values = known.defaults.copy()
    values.update(raw)
    if len(values) != len(known.defaults) or not raw.keys() >= known.required:
        return cls(**raw)  # raises TypeError: another version wrote it
    record = object.__new__(cls)
    record.__dict__.update(values)
    return record


def _cause(raw: Mapping[str, Any]) -> Cause | None:
    """Return the cause in a record; older versions wrote none."""
    return _CAUSES[raw["cause"]] if raw.get("cause") else None


def read_spec(record: str, parse: Parse = parse_own) -> Spec:
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

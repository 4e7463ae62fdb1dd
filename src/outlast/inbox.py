"""Requests to the controller: files that `submit`, `cancel` and `retry` leave, whoever holds the journal.

A request is durable before the command that made it returns. The controller records what follows from it
together with its name, then removes the file; doing it twice changes nothing.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.crashpoints import reach
from outlast.domain.model import RunPlan, Spec
from outlast.errors import NotWritable
from outlast.filesystem import write_durably
from outlast.journal.codec import dump, read_spec

MOST_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Submit:
    spec: Spec
    runs: tuple[RunPlan, ...]


@dataclass(frozen=True)
class Cancel:
    #: None: all.
    runs: tuple[str, ...] | None
    reason: str


@dataclass(frozen=True)
class Retry:
    spec: Spec
    runs: tuple[str, ...]


Request = Submit | Cancel | Retry


@dataclass(frozen=True)
class Inbox:
    directory: Path

    def put(self, request: Request) -> str:
        """Returns when the request can no longer be lost."""
        name = "%d-%s.json" % (time.time_ns(), secrets.token_hex(4))
        content = {"kind": type(request).__name__.lower(), **request.__dict__}
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_durably(self.directory / name, dump(content).encode())
        except OSError as error:
            raise NotWritable(
                "%s: the request could not be written (%s); nothing was submitted"
                % (self.directory, error.strerror)
            ) from error
        reach("submit.requested")
        return name

    def names(self) -> list[str]:
        return sorted(path.name for path in self.directory.glob("[0-9]*.json") if path.exists())

    def read(self) -> Iterator[tuple[str, Request | None]]:
        """The requests in their order; None for a file that is none."""
        for name in self.names():
            path = self.directory / name
            try:
                if path.stat().st_size > MOST_BYTES:
                    yield name, None
                    continue
                yield name, _parse(json.loads(path.read_bytes()))
            except FileNotFoundError:
                continue
            except (ValueError, TypeError, KeyError, IsADirectoryError, PermissionError):
                yield name, None

    def remove(self, name: str) -> None:
        (self.directory / name).unlink(missing_ok=True)

    def put_aside(self, name: str) -> Path:
        """Out of the way, for a person to look at."""
        target = self.directory / (name + ".unreadable")
        (self.directory / name).replace(target)
        return target


def _parse(raw: Mapping[str, Any]) -> Request:
    match raw["kind"]:
        case "submit":
            plans = tuple(RunPlan(_text(plan["name"]), dict(plan["params"])) for plan in raw["runs"])
            return Submit(read_spec(json.dumps(raw["spec"])), plans)
        case "cancel":
            names = None if raw["runs"] is None else tuple(map(_text, raw["runs"]))
            return Cancel(names, str(raw["reason"]))
        case "retry":
            return Retry(read_spec(json.dumps(raw["spec"])), tuple(map(_text, raw["runs"])))
    raise ValueError("no such request")


def _text(value: object) -> str:
    """A run's name becomes the name of directories."""
    if not isinstance(value, str) or not value or value[0] == "." or "/" in value or "\0" in value:
        raise TypeError("not a name: %r" % value)
    return value

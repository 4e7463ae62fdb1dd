"""The rule for an output of a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OutputRule:
    """An output that must exist, and its conditions.

    `key` names a value in a JSON file (dots descend); `check` is a command that must exit with 0.
    """

    path: str
    key: str | None = None
    at_least: float | None = None
    at_most: float | None = None
    check: tuple[str, ...] | None = None

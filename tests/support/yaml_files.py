"""YAML files for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_yaml(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file, and the directories above it. JSON is YAML, and needs no library."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["%s: %s\n" % (key, json.dumps(value)) for key, value in content.items()]
    path.write_text("".join(lines), encoding="utf-8")

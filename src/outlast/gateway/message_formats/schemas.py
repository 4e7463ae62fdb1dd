"""Our own format as JSON Schema, for those who write requests and read answers."""

from __future__ import annotations

import importlib.resources
import json
from typing import Any

REQUEST = "request-1.json"
ANSWER = "answer-1.json"


def read_schema(name: str) -> dict[str, Any]:
    """Return the packaged schema REQUEST or ANSWER."""
    place = importlib.resources.files("outlast.gateway.message_formats") / name
    schema: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    return schema

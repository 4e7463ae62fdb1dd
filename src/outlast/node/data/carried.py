"""What a scheduler's own transfer brought: beside a file that the plugin fetched lies what it cost."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

from outlast.node import files
from outlast.node.data.receipt import Receipt

_LARGEST = 65536


def note(path: str, receipt: Receipt) -> None:
    """Of the file that has come to `path`. If it cannot be written, the data is there all the same."""
    with contextlib.suppress(OSError), open(_beside(path), "w", encoding="utf-8") as file:
        json.dump(receipt.to_dict(), file)


def told(path: str) -> dict[str, Any]:
    """What the plugin has noted; empty where the scheduler brought the file without it."""
    try:
        with files.open_file(_beside(path)) as file:
            raw = json.loads(file.read(_LARGEST))
    except (OSError, ValueError):
        return {}
    return raw if isinstance(raw, dict) else {}


def _beside(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, ".%s.receipt" % name)

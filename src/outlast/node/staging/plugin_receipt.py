"""What a scheduler's own transfer brought: beside a file that the plugin fetched lies what it cost."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import fields
from typing import Any

from outlast.node.staging.cache.entry import read_json
from outlast.node.staging.fetch.receipt import Receipt

#: What `note` puts down. It lies where the job's programs could write as well.
_TOLD = frozenset({*(one.name for one in fields(Receipt)), "troubles"})


def note(path: str, receipt: Receipt) -> None:
    """Of the file that has come to `path`. If it cannot be written, the data is there all the same."""
    with contextlib.suppress(OSError), open(_beside(path), "w", encoding="utf-8") as file:
        json.dump(receipt.to_dict(), file)


def told(path: str) -> dict[str, Any]:
    """What the plugin has noted; empty where the scheduler brought the file without it."""
    return {key: value for key, value in read_json(_beside(path)).items() if key in _TOLD}


def _beside(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, ".%s.receipt" % name)

"""Receipts of HTCondor's transfer plugin: beside each file that it fetched, a file with the costs."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import fields
from typing import Any

from outlast.node.staging.cache.entry import read_json
from outlast.node.staging.fetch.receipt import Receipt

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
#: The keys that `write` writes. The job's programs can write to the same directory, so others are ignored.
_KEYS = frozenset({*(field.name for field in fields(Receipt)), "troubles"})


def write(path: str, receipt: Receipt) -> None:
    """Write the receipt of the file at `path`. Errors are ignored: the data is usable without it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(_receipt_path(path), _NEW_FILE, 0o644)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(receipt.to_dict(), file)


def read(path: str) -> dict[str, Any]:
    """Return the receipt of the file at `path`; empty if the scheduler transferred it without the plugin."""
    return {key: value for key, value in read_json(_receipt_path(path)).items() if key in _KEYS}


def _receipt_path(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, ".%s.receipt" % name)

"""The record that a process gave up a fetch: those that waited for it give up too, with its cause.

It is beside the lock of the fetch, and names the process. One that cannot be read, or that another version
wrote, is ignored: each waiting process then tries for itself.
"""

from __future__ import annotations

import contextlib
import json
import os

from outlast.node.staging.cache.entry import read_json
from outlast.node.staging.errors import ErrorKind, FetchFailed, SourceError

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_SUFFIX = ".gave-up"


def record(locks: str, key: str, owner_id: str, failed: FetchFailed) -> None:
    """Record in the directory of locks that this process gave up the fetch of `key`, if possible."""
    content = {"mark": owner_id, "kind": failed.cause.kind.value, "detail": str(failed)}
    with contextlib.suppress(OSError):
        descriptor = os.open(os.path.join(locks, key + _SUFFIX), _NEW_FILE, 0o644)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(content, file)


def raise_if_recorded(locks: str, key: str, waited_for: str) -> None:
    """Raise FetchFailed if the process `waited_for` gave up the fetch of `key`."""
    content = read_json(os.path.join(locks, key + _SUFFIX))
    if waited_for and content.get("mark") == waited_for:
        detail = "%s (reported by another job that was fetching the same data)" % content.get("detail")
        try:
            kind = ErrorKind(content.get("kind"))
        except ValueError:
            return
        raise FetchFailed(detail, SourceError(kind, detail))

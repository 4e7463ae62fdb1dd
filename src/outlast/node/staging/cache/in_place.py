"""A file that is used where it lies, on a file system that the node sees: looked at once, then remembered."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Callable

from outlast.node.pulse import silent
from outlast.node.staging.cache.data_cache import DataCache
from outlast.node.staging.errors import ErrorKind, FetchFailed, SourceError
from outlast.node.staging.fetch.digests import PINNED, Digests, normalised, proof
from outlast.node.staging.item import DataItem
from outlast.node.staging.sources.file_source import FileSource, path_of

_BLOCK = 1 << 20
_LARGEST = 65536


def checked(wanted: DataItem, store: DataCache, pulse: Callable[[], None] = silent) -> str:
    """Its path, once it is known to be the right file; of a folder nothing is known. Raises GivenUp."""
    path = path_of(wanted.urls[0])
    if os.path.isdir(path) and not wanted.digests and wanted.size is None:
        return path
    source = FileSource(path)
    try:
        size = source.version().size
        if wanted.size is not None and size != wanted.size:
            detail = "has %s bytes, and should have %d" % (size, wanted.size)
            raise SourceError(ErrorKind.WRONG_LENGTH, detail, path)
        if wanted.digests:
            _compare(wanted, source, store, pulse)
    except SourceError as trouble:
        raise FetchFailed("%s cannot be used: %s" % (wanted.name, trouble), trouble) from trouble
    return path


def _compare(wanted: DataItem, source: FileSource, store: DataCache, pulse: Callable[[], None]) -> None:
    pinned = {name: normalised(name, value) for name, value in wanted.digests.items()}
    status = os.stat(source.name)
    seen = [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, sorted(pinned.items())]
    note = store.note_of(os.path.realpath(source.name))
    if _read(note) == json.loads(json.dumps(seen)):
        return
    proves = proof(pinned, {}, "")
    assert proves.vouched == PINNED
    found = _digests(source, proves.algorithms, pulse)
    contradiction = proves.contradiction(found)
    if contradiction:
        raise SourceError(ErrorKind.WRONG_DIGEST, contradiction, source.name)
    temporary = "%s.%s" % (note, os.urandom(4).hex())
    with contextlib.suppress(OSError):  # only the next attempt's time is saved by it
        with open(temporary, "w", encoding="ascii") as file:
            json.dump(seen, file)
        os.replace(temporary, note)


def _digests(source: FileSource, algorithms: tuple[str, ...], pulse: Callable[[], None]) -> dict[str, str]:
    hashed = Digests(algorithms)
    body, buffer = source.open(0), memoryview(bytearray(_BLOCK))
    try:
        while True:
            pulse()
            count = body.read_into(buffer)
            if count == 0:
                return hashed.results()
            hashed.replay(buffer[:count])
    finally:
        body.close()


def _read(note: str) -> object:
    try:
        with open(note, "rb") as file:
            return json.loads(file.read(_LARGEST))
    except (OSError, ValueError):
        return None

"""Verification of files that are used where they are, on a file system that the node can read.

A file is hashed once; a record in the cache spares later attempts the work until the file changes.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Callable

from outlast.node.pulse import no_pulse
from outlast.node.staging.cache.data_cache import DataCache
from outlast.node.staging.errors import ErrorKind, FetchFailed, SourceError
from outlast.node.staging.fetch.digests import PINNED, Digests, choose_check, normalise_digest
from outlast.node.staging.item import DataItem
from outlast.node.staging.sources.file_source import FileSource, path_of
from outlast.untrusted_files import create_file, parse_json, read_file

_BLOCK = 1 << 20
_MAX_BYTES = 65536


def verify(item: DataItem, cache: DataCache, pulse: Callable[[], None] = no_pulse) -> str:
    """Compare a file with the pinned size and digests, and return its path. Raises FetchFailed.

    A directory for which nothing is pinned is accepted as it is.
    """
    path = path_of(item.urls[0])
    if os.path.isdir(path) and not item.digests and item.size is None:
        return path
    source = FileSource(path)
    try:
        size = source.version().size
        if item.size is not None and size != item.size:
            detail = "has %s bytes, but should have %d" % (size, item.size)
            raise SourceError(ErrorKind.WRONG_LENGTH, detail, path)
        if item.digests:
            _compare_digests(item, source, cache, pulse)
    except SourceError as error:
        raise FetchFailed("%s cannot be used: %s" % (item.name, error), error) from error
    return path


def _compare_digests(item: DataItem, source: FileSource, cache: DataCache, pulse: Callable[[], None]) -> None:
    pinned = {name: normalise_digest(name, value) for name, value in item.digests.items()}
    status = os.stat(source.name)
    state = [
        *(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns),
        sorted(pinned.items()),
    ]
    record = cache.verification_record(os.path.realpath(source.name))
    if _read(record) == json.loads(json.dumps(state)):
        return
    check = choose_check(pinned, {}, "")
    assert check.vouched == PINNED
    digests = _compute_digests(source, check.algorithms, pulse)
    contradiction = check.mismatch(digests)
    if contradiction:
        raise SourceError(ErrorKind.WRONG_DIGEST, contradiction, source.name)
    temporary = "%s.%s" % (record, os.urandom(4).hex())
    with contextlib.suppress(OSError):  # the record only saves time
        with create_file(temporary) as file:
            file.write(json.dumps(state).encode("ascii"))
        os.replace(temporary, record)


def _compute_digests(
    source: FileSource, algorithms: tuple[str, ...], pulse: Callable[[], None]
) -> dict[str, str]:
    digests = Digests(algorithms)
    body, buffer = source.open(0), memoryview(bytearray(_BLOCK))
    try:
        while True:
            pulse()
            count = body.read_into(buffer)
            if count == 0:
                return digests.results()
            digests.update(buffer[:count])
    finally:
        body.close()


def _read(record: str) -> object:
    try:
        return parse_json(read_file(record, _MAX_BYTES))
    except (OSError, ValueError):
        return None

"""The identity of the file: its pinned digests and size, and what the sources report about it."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import replace
from urllib.parse import urlsplit

from outlast.node.quantities import show_size
from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.node.staging.fetch.digests import normalise_digest
from outlast.node.staging.file_version import FileVersion
from outlast.node.staging.item import DataItem


class FileIdentity:
    """The file that a fetch transfers. Receivers report what their sources have, from several threads.

    `version` is the first report and `first_source` its source, None before; `size` is None if unknown.
    """

    def __init__(self, item: DataItem) -> None:
        self._item = item
        self.pinned: dict[str, str] = {
            name: normalise_digest(name, value) for name, value in item.digests.items()
        }
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Forget all reports of the sources; pinned values stay."""
        with self._lock:
            self.version: FileVersion | None = None
            self.first_source: int | None = None
            self.size = self._item.size
            self._by_source: dict[int, FileVersion] = {}

    def add_version(self, index: int, name: str, version: FileVersion) -> None:
        """Add a source's report about its file.

        Raises SourceError if it contradicts pinned values or an earlier report of any source.
        """
        version = replace(version, digests=_readable_digests(version))
        with self._lock:
            self.check_size(version.size, name)
            self._compare_with_pins(name, version)
            before = self._by_source.get(index)
            if before is not None and _has_changed(before, version):
                raise SourceError(ErrorKind.CHANGED, "its file has changed since the last request", name)
            if self.version is not None and self.version.contradicts(version):
                raise SourceError(
                    ErrorKind.CHANGED, "its file is not the one that this fetch started with", name
                )
            # Later responses may lack the digests, so the first ones are kept.
            self._by_source[index] = version if before is None else replace(version, digests=before.digests)
            if self.version is None:
                self.version, self.first_source = version, index
            if self.size is None:
                self.size = version.size

    def check_size(self, size: int | None, name: str = "") -> None:
        """Raise SourceError if a file of at least `size` bytes is larger than the item may be."""
        most = self._item.most
        if most is not None and size is not None and size > most:
            detail = "its file has more than the allowed %s" % show_size(most)
            raise SourceError(ErrorKind.TOO_LARGE, detail, name)

    def forget_source(self, index: int) -> None:
        """Forget this source's reports, so that it may have changed: the digest decides about its bytes."""
        with self._lock:
            self._by_source.pop(index, None)

    def set_size_if_unknown(self, size: int) -> None:
        with self._lock:
            if self.size is None:
                self.size = size

    @property
    def is_distinguishable(self) -> bool:
        """True if another file of the same size behind the same URLs would be noticed."""
        version = self.version or FileVersion()
        return bool(self.pinned or version.etag or version.modified or version.digests)

    def identity(self) -> str:
        """Return a text that is the same for all processes that need the same bytes. It reveals no URL."""
        if self.pinned:
            return " ".join("%s:%s" % pair for pair in sorted(self.pinned.items()))
        version = self.version or FileVersion()
        # A signed URL has another query each time, so queries count only where nothing else distinguishes.
        urls = [
            urlsplit(url)._replace(query="").geturl() if self.is_distinguishable else url
            for url in self._item.urls
        ]
        facts = [urls, self.size, version.etag, version.modified, sorted(version.digests.items())]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def _compare_with_pins(self, name: str, version: FileVersion) -> None:
        if self._item.size is not None and version.size not in (None, self._item.size):
            detail = "its file has %s bytes, expected %d" % (version.size, self._item.size)
            raise SourceError(ErrorKind.WRONG_LENGTH, detail, name)
        for algorithm, value in version.digests.items():
            if self.pinned.get(algorithm, value) != value:
                detail = "it reports the %s of its file as %s, expected %s" % (
                    algorithm,
                    value,
                    self.pinned[algorithm],
                )
                raise SourceError(ErrorKind.WRONG_DIGEST, detail, name)


def _has_changed(before: FileVersion, now: FileVersion) -> bool:
    """Return True if two reports of one source are about different files. Dates count only without ETags."""
    if before.etag and now.etag:
        return before.etag != now.etag or before.contradicts(now)
    return before.contradicts(now) or bool(
        before.modified and now.modified and before.modified != now.modified
    )


def _readable_digests(version: FileVersion) -> dict[str, str]:
    """Return the valid digests of known algorithms, normalised."""
    readable = {}
    for algorithm, value in version.digests.items():
        try:
            readable[algorithm] = normalise_digest(algorithm, value)
        except ValueError:  # a digest that could not be checked is ignored
            continue
    return readable

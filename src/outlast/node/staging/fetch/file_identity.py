"""What is known of the file: what is pinned, and what the sources say of it, which must not contradict."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import replace
from urllib.parse import urlsplit

from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.node.staging.fetch.digests import normalised
from outlast.node.staging.item import DataItem
from outlast.node.staging.sources.base import FileVersion


class FileIdentity:
    """Receivers tell it what their sources say, from several threads."""

    def __init__(self, wanted: DataItem) -> None:
        self._wanted = wanted
        self.pinned: dict[str, str] = {
            name: normalised(name, value) for name, value in wanted.digests.items()
        }
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """The file has changed: what was said of it counts no longer."""
        with self._lock:
            self.version: FileVersion | None = None
            #: Who said so first.
            self.by: int | None = None
            self.size = self._wanted.size
            self._said: dict[int, FileVersion] = {}

    def hear(self, index: int, name: str, said: FileVersion) -> None:
        """Raises Trouble if it contradicts what is pinned, or what this source or another said before."""
        said = replace(said, digests=_sound(said))
        with self._lock:
            self._compare_with_pins(name, said)
            before = self._said.get(index)
            if before is not None and _differ(before, said):
                raise SourceError(
                    ErrorKind.CHANGED, "the file has changed since it was last asked for it", name
                )
            if self.version is not None and self.version.contradicts(said):
                raise SourceError(ErrorKind.CHANGED, "its file is not the one that was begun", name)
            # What it says of digests may come once only.
            self._said[index] = said if before is None else replace(said, digests=before.digests)
            if self.version is None:
                self.version, self.by = said, index
            if self.size is None:
                self.size = said.size

    def tolerate(self, index: int) -> None:
        """Listen to this source as if for the first time: the digest decides about its bytes."""
        with self._lock:
            self._said.pop(index, None)

    def ends_at(self, size: int) -> None:
        """Nobody knew the size, and the file has ended."""
        with self._lock:
            if self.size is None:
                self.size = size

    @property
    def is_told_apart(self) -> bool:
        """Whether it would show if another file of the same size came to be behind the same URLs."""
        version = self.version or FileVersion()
        return bool(self.pinned or version.etag or version.modified or version.digests)

    def identity(self) -> str:
        """The same for two processes that want the same bytes. No word of a URL can be read from it."""
        if self.pinned:
            return " ".join("%s:%s" % pair for pair in sorted(self.pinned.items()))
        version = self.version or FileVersion()
        telling = self.is_told_apart
        # A signed URL has another query each time; where nothing else tells two files apart it counts.
        urls = [urlsplit(url)._replace(query="").geturl() if telling else url for url in self._wanted.urls]
        said = [urls, self.size, version.etag, version.modified, sorted(version.digests.items())]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()

    def _compare_with_pins(self, name: str, said: FileVersion) -> None:
        if self._wanted.size is not None and said.size not in (None, self._wanted.size):
            detail = "its file has %s bytes, and should have %d" % (said.size, self._wanted.size)
            raise SourceError(ErrorKind.WRONG_LENGTH, detail, name)
        for algorithm, value in said.digests.items():
            if self.pinned.get(algorithm, value) != value:
                detail = "it says that its file's %s is %s, and it should be %s" % (
                    algorithm,
                    value,
                    self.pinned[algorithm],
                )
                raise SourceError(ErrorKind.WRONG_DIGEST, detail, name)


def _differ(before: FileVersion, now: FileVersion) -> bool:
    if before.etag and now.etag:
        return before.etag != now.etag or before.contradicts(now)
    return before.contradicts(now) or bool(
        before.modified and now.modified and before.modified != now.modified
    )


def _sound(said: FileVersion) -> dict[str, str]:
    """The digests that can be understood; a source may know more kinds than we do."""
    sound = {}
    for algorithm, value in said.digests.items():
        try:
            sound[algorithm] = normalised(algorithm, value)
        except ValueError:  # it vouches for nothing that we could check
            continue
    return sound

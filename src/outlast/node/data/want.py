"""What a training wants to have: one entry of `data:` in params.yaml."""

from __future__ import annotations

import posixpath
from dataclasses import asdict, dataclass, field
from typing import Any, Mapping
from urllib.parse import unquote, urlsplit

#: In the order of how much each proves.
ALGORITHMS = ("sha256", "sha1", "md5", "crc32c", "crc32", "adler32")


@dataclass(frozen=True)
class Wanted:
    #: Mirrors of the same bytes, the preferred one first.
    urls: tuple[str, ...]
    #: Hexadecimal, by algorithm; empty where nothing was pinned.
    digests: Mapping[str, str] = field(default_factory=dict)
    size: int | None = None
    #: "no", "yes", or "nested": archives inside the archive as well.
    unpack: str = "no"
    #: Relative to the data directory; empty for the data directory itself.
    to: str = ""
    #: "auto", "http", "osdf", "native" or "shared".
    method: str = "auto"

    @property
    def name(self) -> str:
        """What the file is called where it is not unpacked."""
        return posixpath.basename(unquote(urlsplit(self.urls[0]).path).rstrip("/")) or "data"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "urls": list(self.urls), "digests": dict(self.digests)}

    @staticmethod
    def from_dict(raw: Mapping[str, Any]) -> Wanted:
        return Wanted(**{**raw, "urls": tuple(raw["urls"]), "digests": dict(raw.get("digests", {}))})

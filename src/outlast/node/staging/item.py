"""What a training wants to have: one entry of `data:` in params.yaml."""

from __future__ import annotations

import posixpath
from dataclasses import asdict, dataclass, field
from typing import Any, Mapping

#: In the order of how much each proves.
ALGORITHMS = ("sha256", "sha1", "md5", "crc32c", "crc32", "adler32")

#: Of 32 bits: they show what broke on the way, and do not tell one file from all others.
CHECKSUMS = frozenset(("crc32c", "crc32", "adler32"))


def is_path(url: str) -> bool:
    """Whether it is no URL but the path of a file: in that `#`, `?`, `%` and `:` are letters as others."""
    return "://" not in url and not url.startswith("file:")


@dataclass(frozen=True)
class DataItem:
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
        # Every job imports this module with its work order, and most want no data.
        from urllib.parse import unquote, urlsplit

        first = self.urls[0]
        path = first if is_path(first) else unquote(urlsplit(first).path)
        name = posixpath.basename(path.rstrip("/"))
        return "data" if name in ("", ".", "..") else name

    @property
    def strongest(self) -> str:
        """The algorithm of the pinned digest that proves most; empty where nothing was pinned."""
        return next((name for name in ALGORITHMS if name in self.digests), "")

    @property
    def is_named_by_digest(self) -> bool:
        """Whether no other file, not even one made to that end, has the digest that is pinned."""
        return bool(self.digests) and self.strongest not in CHECKSUMS

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "urls": list(self.urls), "digests": dict(self.digests)}

    @staticmethod
    def from_dict(raw: Mapping[str, Any]) -> DataItem:
        return DataItem(**{**raw, "urls": tuple(raw["urls"]), "digests": dict(raw.get("digests", {}))})

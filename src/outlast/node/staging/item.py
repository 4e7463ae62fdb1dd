"""One item of data that a run needs: an entry of `data:` in params.yaml."""

from __future__ import annotations

import posixpath
from dataclasses import asdict, dataclass, field
from typing import Any, Mapping

#: The strongest first.
ALGORITHMS = ("sha256", "sha1", "md5", "crc32c", "crc32", "adler32")

#: 32 bits only: they detect transfer errors, but do not identify a file.
CHECKSUMS = frozenset(("crc32c", "crc32", "adler32"))


def is_local_path(url: str) -> bool:
    """Return True for a plain file path, in which `#`, `?`, `%` and `:` have no special meaning."""
    return "://" not in url and not url.startswith("file:")


@dataclass(frozen=True)
class DataItem:
    """An item, its mirrors, and what is pinned. Its fields are part of the work order."""

    #: Mirrors of the same bytes, the preferred one first.
    urls: tuple[str, ...]
    #: The pinned digests, hexadecimal, by algorithm; may be empty.
    digests: Mapping[str, str] = field(default_factory=dict)
    size: int | None = None
    #: "no", "yes", or "nested" to unpack archives inside the archive as well.
    unpack: str = "no"
    #: Relative to the data directory; empty for the data directory itself.
    to: str = ""
    #: "auto", "http", "osdf", "native" or "shared".
    method: str = "auto"
    #: Each attempt gets a copy of its own, which it may change.
    writable: bool = False
    #: The name of the file; empty: the one in the first URL.
    file_name: str = ""
    #: If a stranger chose the URL: the hosts that it, and redirects, may lead to, and those of them that need
    #: not have a public address. Both empty: any.
    hosts: tuple[str, ...] = ()
    private_hosts: tuple[str, ...] = ()
    #: The most bytes of the file, and of what is unpacked from it; None: no limit of its own.
    most: int | None = None
    #: The word before the plan's token in the header Authorization; empty: send no token.
    token_scheme: str = "Bearer"
    #: A file with the certificates to trust instead of the system's.
    ca_file: str = ""

    @property
    def is_restricted(self) -> bool:
        """True if it may be fetched from certain hosts only."""
        return bool(self.hosts or self.private_hosts)

    @property
    def name(self) -> str:
        """The file name; by default from the first URL, "data" if that has none."""
        if self.file_name:
            return self.file_name
        # Imported here since every job imports this module, and most need no data.
        from urllib.parse import unquote, urlsplit

        first = self.urls[0]
        path = first if is_local_path(first) else unquote(urlsplit(first).path)
        name = posixpath.basename(path.rstrip("/"))
        return "data" if name in ("", ".", "..") else name

    @property
    def strongest_algorithm(self) -> str:
        """The algorithm of the strongest pinned digest; empty if none is pinned."""
        return next((name for name in ALGORITHMS if name in self.digests), "")

    @property
    def is_named_by_digest(self) -> bool:
        """True if a pinned digest identifies the file: it is more than a 32-bit checksum."""
        return bool(self.digests) and self.strongest_algorithm not in CHECKSUMS

    def to_dict(self) -> dict[str, Any]:
        raw = {**asdict(self), "urls": list(self.urls), "digests": dict(self.digests)}
        # Earlier versions do not know these.
        defaults = {name: raw.pop(name) for name in _LATER if raw[name] == _LATER[name]}
        raw.update({name: list(raw[name]) for name in _LISTS if name not in defaults})
        return raw

    @staticmethod
    def from_dict(raw: Mapping[str, Any]) -> DataItem:
        lists = {name: tuple(raw[name]) for name in ("urls", *_LISTS) if name in raw}
        return DataItem(**{**raw, **lists, "digests": dict(raw.get("digests", {}))})


#: Fields that were added later, with their defaults.
_LATER: Mapping[str, Any] = {
    "writable": False,
    "file_name": "",
    "hosts": (),
    "private_hosts": (),
    "most": None,
    "token_scheme": "Bearer",
    "ca_file": "",
}
_LISTS = ("hosts", "private_hosts")

"""The identity of a file as one source reports it: size, ETag, modification time and digests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping


@dataclass(frozen=True)
class FileVersion:
    """The size and the validators of a file. Fields that are None or empty are unknown."""

    size: int | None = None
    #: A strong ETag. Weak ones do not identify bytes and are left out.
    etag: str = ""
    modified: str = ""
    #: Hexadecimal, by algorithm.
    digests: Mapping[str, str] = field(default_factory=dict)

    def contradicts(self, other: FileVersion) -> bool:
        """Return True if both report a size, or a digest of the same algorithm, and the two differ."""
        if self.size is not None and other.size is not None and self.size != other.size:
            return True
        return any(other.digests.get(name, value) != value for name, value in self.digests.items())

"""Paths of URLs that a request names: whether some server could take one for another place."""

from __future__ import annotations

from urllib.parse import unquote

#: Segments that lead out of a directory may be quoted, and servers may unquote twice.
_UNQUOTINGS = 3


def leads_out(path: str) -> bool:
    """Return True if a path, unquoted or not, has a segment that some server may take for another place."""
    for _ in range(_UNQUOTINGS):
        segments = path.replace("\\", "/").strip("/").split("/")
        # Some servers cut parameters off: `..;x` is `..` for them.
        if any(segment.partition(";")[0] in ("", ".", "..") for segment in segments):
            return True
        path = unquote(path)
    return not path.isprintable()

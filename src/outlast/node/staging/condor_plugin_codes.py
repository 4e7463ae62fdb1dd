"""What the transfer plugin on the node and the controller agree on."""

from __future__ import annotations

from outlast.node.staging.errors import ErrorKind

#: The URLs that the plugin takes, as HTCondor wants them listed.
METHODS = "osdf,pelican,http,https"
#: The plugin's exit code for the first kind of trouble; the others follow. HTCondor passes an exit code on to
#: the access point, and of all else that a plugin says only a sentence.
_FIRST = 100
_KINDS = tuple(ErrorKind)


def code_of(kind: ErrorKind) -> int:
    return _FIRST + _KINDS.index(kind)


def kind_of(code: int) -> ErrorKind | None:
    """None: it is no exit code of ours."""
    return _KINDS[code - _FIRST] if 0 <= code - _FIRST < len(_KINDS) else None

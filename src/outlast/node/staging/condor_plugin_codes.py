"""Exit codes and URL schemes that HTCondor's transfer plugin on the node and the controller agree on."""

from __future__ import annotations

from outlast.node.staging.errors import ErrorKind

#: The URL schemes that the plugin supports, in HTCondor's notation.
METHODS = "osdf,pelican,http,https"
#: The exit code for the first error kind; the others follow in order. Of the plugin's report, HTCondor passes
#: only the exit code and one message on to the access point.
_FIRST = 100
_KINDS = tuple(ErrorKind)


def exit_code_of(kind: ErrorKind) -> int:
    return _FIRST + _KINDS.index(kind)


def error_kind_of(code: int) -> ErrorKind | None:
    """Return the error kind of an exit code of the plugin, or None if it is not one of the plugin's."""
    return _KINDS[code - _FIRST] if 0 <= code - _FIRST < len(_KINDS) else None

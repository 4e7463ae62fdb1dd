"""`params.yaml` and cluster profiles: read once, at the edge, into the objects of `outlast.domain.model`.

The names below are looked up on first use: `outlast.units` and `outlast.spec.command` need nothing but
the standard library, and whoever imports only those does not pay for pydantic and ruamel.yaml.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlast.spec.cluster_library import ClusterProfile, Host
    from outlast.spec.mistakes import BadSpec, Mistake
    from outlast.spec.reader import Parsed, read

__all__ = ["BadSpec", "ClusterProfile", "Host", "Mistake", "Parsed", "read"]

_HOME = {
    "BadSpec": "mistakes",
    "ClusterProfile": "cluster_library",
    "Host": "cluster_library",
    "Mistake": "mistakes",
    "Parsed": "reader",
    "read": "reader",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(f"outlast.spec.{_HOME[name]}"), name)
    raise AttributeError(f"module 'outlast.spec' has no attribute {name!r}")

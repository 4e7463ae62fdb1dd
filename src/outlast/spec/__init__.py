"""Reading and validating `params.yaml` and cluster profiles, into the objects of `outlast.domain.model`.

The names below are imported on first use: `outlast.spec.command` needs only the standard library, and a
program that imports nothing else does not load pydantic and ruamel.yaml.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlast.spec.cluster_library import ClusterProfile, Host
    from outlast.spec.mistakes import BadSpec, Mistake
    from outlast.spec.reader import Parsed, read

__all__ = ["BadSpec", "ClusterProfile", "Host", "Mistake", "Parsed", "read"]

_MODULES = {
    "BadSpec": "mistakes",
    "ClusterProfile": "cluster_library",
    "Host": "cluster_library",
    "Mistake": "mistakes",
    "Parsed": "reader",
    "read": "reader",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(f"outlast.spec.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'outlast.spec' has no attribute {name!r}")

"""The data of an attempt: the part `data` of its work order."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from typing import Any, Mapping

from outlast.node.staging.item import DataItem, is_local_path


@dataclass(frozen=True)
class DataSite:
    """The data settings of a cluster's profile. They are part of every work order for that cluster."""

    #: Directory of the data cache; variables are expanded on the node.
    cache: str = ""
    cache_size: int | None = None
    #: Where to find a token and the hosts it is for, never the token itself.
    token_hosts: tuple[str, ...] = ()
    token_file: str = ""
    token_command: tuple[str, ...] = ()
    #: Seconds without a byte until another source is tried, and without a byte from any source until the
    #: fetch is given up.
    stall: float = 15.0
    patience: float = 600.0
    #: The maximum for one item of data.
    connections: int = 4


@dataclass(frozen=True)
class DataPlan(DataSite):
    """The settings of the cluster and the items to stage."""

    items: tuple[DataItem, ...] = ()

    @staticmethod
    def at(site: DataSite, items: tuple[DataItem, ...]) -> DataPlan:
        return DataPlan(items=items, **{field.name: getattr(site, field.name) for field in fields(DataSite)})

    @staticmethod
    def from_dict(raw: Mapping[str, Any]) -> DataPlan:
        """Parse the part `data` of a work order. Raises TypeError, KeyError or ValueError."""
        return DataPlan(
            **{
                **raw,
                "items": tuple(DataItem.from_dict(item) for item in raw.get("items", ())),
                "token_hosts": tuple(raw.get("token_hosts", ())),
                "token_command": tuple(raw.get("token_command", ())),
            }
        )

    def with_absolute_paths(self, directory: str) -> DataPlan:
        """Return a copy whose relative paths start at `directory`, where the work order is.

        Files with relative paths were transferred with the job.
        """
        items = tuple(
            replace(item, urls=tuple(_absolute(url, directory) for url in item.urls)) for item in self.items
        )
        cache = os.path.expandvars(os.path.expanduser(self.cache))
        token_file = os.path.expandvars(os.path.expanduser(self.token_file))
        return replace(
            self,
            items=items,
            cache=os.path.join(directory, cache) if cache else "",
            token_file=os.path.join(directory, token_file) if token_file else "",
        )


def _absolute(url: str, directory: str) -> str:
    return os.path.join(directory, url) if is_local_path(url) else url

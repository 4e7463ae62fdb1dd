"""What an attempt is told about its data: the part `data` of its work order."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from typing import Any, Mapping

from outlast.node.staging.item import DataItem, is_path


@dataclass(frozen=True)
class DataSite:
    """What a cluster's profile says about data, and every attempt there is told."""

    #: Where data stays for other attempts; variables are expanded on the node.
    cache: str = ""
    cache_size: int | None = None
    #: Where a token is and for which hosts, never the token itself.
    token_hosts: tuple[str, ...] = ()
    token_file: str = ""
    token_command: tuple[str, ...] = ()
    #: Seconds without a byte after which a source is left, and without one from anybody until we give up.
    stall: float = 15.0
    patience: float = 600.0
    #: The most for one item of data.
    connections: int = 4


@dataclass(frozen=True)
class DataPlan(DataSite):
    items: tuple[DataItem, ...] = ()

    @staticmethod
    def at(site: DataSite, items: tuple[DataItem, ...]) -> DataPlan:
        return DataPlan(items=items, **{one.name: getattr(site, one.name) for one in fields(DataSite)})

    @staticmethod
    def from_dict(raw: Mapping[str, Any]) -> DataPlan:
        """Raises TypeError, KeyError or ValueError."""
        return DataPlan(
            **{
                **raw,
                "items": tuple(DataItem.from_dict(item) for item in raw.get("items", ())),
                "token_hosts": tuple(raw.get("token_hosts", ())),
                "token_command": tuple(raw.get("token_command", ())),
            }
        )

    def located(self, here: str) -> DataPlan:
        """Paths that are relative begin where the work order is: such files came along with the job."""
        items = tuple(
            replace(item, urls=tuple(_located(url, here) for url in item.urls)) for item in self.items
        )
        cache = os.path.expandvars(os.path.expanduser(self.cache))
        token = os.path.expandvars(os.path.expanduser(self.token_file))
        return replace(
            self,
            items=items,
            cache=os.path.join(here, cache) if cache else "",
            token_file=os.path.join(here, token) if token else "",
        )


def _located(url: str, here: str) -> str:
    return os.path.join(here, url) if is_path(url) else url

"""With what data is asked for from this machine: limits and tokens, as the cluster's profile has them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outlast.node.data.fetch_settings import FetchSettings
from outlast.node.data.sources import sources_for
from outlast.node.data.tokens import Tokens
from outlast.node.data.web.limits import HttpSettings

if TYPE_CHECKING:
    from outlast.node.data.source import Source
    from outlast.node.data.want import Wanted
    from outlast.schedulers.profile import Profile


@dataclass(frozen=True)
class Means:
    http: HttpSettings
    tokens: Tokens
    fetching: FetchSettings

    def sources(self, wanted: Wanted) -> list[Source]:
        """Raises ValueError."""
        return sources_for(wanted, self.http, self.tokens)


def means_of(site: Profile) -> Means:
    file = os.path.expanduser(site.token_file)  # noqa: PTH111
    return Means(
        HttpSettings(site.stall, site.stall, site.stall),
        Tokens(site.token_hosts, file, site.token_command),
        FetchSettings(patience=site.patience, connections=site.connections),
    )

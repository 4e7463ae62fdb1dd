"""With what data is asked for from this machine: limits and tokens, as the cluster's profile has them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outlast.node.staging.fetch.settings import FetchSettings
from outlast.node.staging.http.settings import HttpSettings
from outlast.node.staging.sources.resolve import sources_for
from outlast.node.staging.sources.tokens import Tokens

if TYPE_CHECKING:
    from outlast.node.staging.item import Wanted
    from outlast.node.staging.sources.base import Source
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

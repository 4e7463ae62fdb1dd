"""From the URLs of an item to its sources. Nothing is asked of anybody here: that is for the first `open`."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Mapping
from urllib.parse import urlsplit

from outlast.node.staging.http.http_settings import HttpSettings
from outlast.node.staging.item import DataItem, is_path
from outlast.node.staging.sources import pelican_source
from outlast.node.staging.sources.base import Source
from outlast.node.staging.sources.file_source import FileSource, path_of
from outlast.node.staging.sources.http_source import HttpSource
from outlast.node.staging.sources.pelican_director import Federation
from outlast.node.staging.sources.tokens import Tokens

#: The host that describes the OSDF, if it is another than the real one; Pelican's own client knows it too.
DISCOVERY_VARIABLE = "OSDF_FEDERATION_DISCOVERYURL"
SCHEMES = ("https", "http", "osdf", "pelican", "file")


def sources_for(
    wanted: DataItem, settings: HttpSettings, tokens: Tokens, environment: Mapping[str, str] = os.environ
) -> list[Source]:
    """In the order of the URLs; several for one of a federation. Raises ValueError, in words for the user."""
    # A body whose end nobody announced may have been cut: with a digest that shows.
    settings = replace(settings, unannounced_end=bool(wanted.digests))
    federations: dict[str, Federation] = {}
    found: list[Source] = []
    for url in wanted.urls:
        scheme = "file" if is_path(url) else urlsplit(url).scheme.lower()
        if scheme in {"http", "https"}:
            found.append(HttpSource(url, settings, tokens))
        elif scheme in {"osdf", "pelican"}:
            address = pelican_source.PelicanUrl.parse(url, osdf_host(environment))
            federation = federations.setdefault(address.federation, Federation(address.federation, settings))
            found.extend(pelican_source.sources(address, federation, tokens))
        elif scheme == "file":
            found.append(FileSource(path_of(url)))
        else:
            raise ValueError(
                "%s: URLs of the kind %s are not known; these are: %s"
                % (wanted.name, scheme, ", ".join(SCHEMES))
            )
    return found


def osdf_host(environment: Mapping[str, str] = os.environ) -> str:
    said = environment.get(DISCOVERY_VARIABLE, "").strip()
    if not said:
        return pelican_source.OSDF
    parts = urlsplit(said if "://" in said else "https://" + said)
    if parts.scheme != "https" or not parts.netloc:
        raise ValueError("%s=%s is no https URL with a host" % (DISCOVERY_VARIABLE, said))
    return parts.netloc

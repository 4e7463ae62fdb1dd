"""Resolution of the URLs of an item into sources. Nothing is sent before the first `open`."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Mapping
from urllib.parse import urlsplit

from outlast.node.staging.http.host_rules import HostRules
from outlast.node.staging.http.http_settings import HttpSettings
from outlast.node.staging.item import DataItem, is_local_path
from outlast.node.staging.sources import pelican_source
from outlast.node.staging.sources.base import Source
from outlast.node.staging.sources.file_source import FileSource, path_of
from outlast.node.staging.sources.http_source import HttpSource
from outlast.node.staging.sources.pelican_director import Federation
from outlast.node.staging.sources.tokens import Tokens

#: Overrides the host that describes the OSDF. Pelican's own client uses the same variable.
DISCOVERY_VARIABLE = "OSDF_FEDERATION_DISCOVERYURL"
SCHEMES = ("https", "http", "osdf", "pelican", "file")


def sources_for(
    item: DataItem, settings: HttpSettings, tokens: Tokens, environment: Mapping[str, str] = os.environ
) -> list[Source]:
    """Return the sources of an item in the order of its URLs; a federation's URL has several.

    Raises ValueError, with a message for the user.
    """
    # A body without an announced length may be truncated; only a digest can detect that.
    settings = replace(settings, allow_unknown_length=bool(item.digests))
    if item.ca_file:
        settings = replace(settings, ca_file=item.ca_file)
    if item.is_restricted:
        settings = replace(settings, rules=HostRules(item.hosts, item.private_hosts))
    tokens = replace(tokens, scheme=item.token_scheme) if item.token_scheme else Tokens()
    federations: dict[str, Federation] = {}
    found: list[Source] = []
    for url in item.urls:
        scheme = "file" if is_local_path(url) else urlsplit(url).scheme.lower()
        if item.is_restricted and scheme not in {"http", "https"}:
            raise ValueError("%s: only http and https URLs can be restricted to hosts" % item.name)
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
                "%s: URLs with the scheme %s are not supported; use one of %s"
                % (item.name, scheme, ", ".join(SCHEMES))
            )
    return found


def osdf_host(environment: Mapping[str, str] = os.environ) -> str:
    """Return the host, with its port if it has one, that describes the OSDF. Raises ValueError."""
    configured = environment.get(DISCOVERY_VARIABLE, "").strip()
    if not configured:
        return pelican_source.OSDF
    parts = urlsplit(configured if "://" in configured else "https://" + configured)
    if parts.scheme != "https" or not parts.netloc:
        raise ValueError("%s=%s is not an https URL with a host" % (DISCOVERY_VARIABLE, configured))
    return parts.netloc

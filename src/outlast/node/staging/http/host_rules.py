"""The hosts that a request may be sent to, for URLs that a stranger chose: of data, and of redirects."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Union

from outlast.node.staging.http.url import Url

_Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]
#: Addresses of IPv6 in which an IPv4 address is embedded that a translator forwards to.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


@dataclass(frozen=True)
class HostRules:
    """Hosts as in a URL: with their port if it is not the usual one. Only `private_hosts`, which need not be
    listed twice, may have an address that is not public, or be reached without TLS.
    """

    hosts: tuple[str, ...] = ()
    private_hosts: tuple[str, ...] = ()

    def refusal(self, url: Url) -> str:
        """Return why nothing may be requested from `url`; empty if it may be. No name is resolved."""
        if url.authority not in map(str.lower, (*self.hosts, *self.private_hosts)):
            return "%s is not one of the hosts from which files are fetched" % url.authority
        if self.allows_private(url):
            return ""
        if not url.is_tls:
            return "%s would be read over plain http, which anybody on the way can change" % url.authority
        if is_private_name(url.host):
            return "%s is not a public address" % url.host
        return ""

    def allows_private(self, url: Url) -> bool:
        """Return True if the host of `url` may have an address that is not public."""
        return url.authority in map(str.lower, self.private_hosts)


def is_private_name(host: str) -> bool:
    """Return True for an address that is not public, and for the name localhost; other names are unknown."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return is_private_address(host)


def is_private_address(text: str) -> bool:
    """Return True unless `text` is an address that is reachable from the whole internet."""
    try:
        address: _Address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return True
    if isinstance(address, ipaddress.IPv6Address):
        address = _embedded(address) or address
    return not address.is_global or address.is_multicast or address.is_reserved


def _embedded(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address to which packets for this one are sent in the end; None if there is none."""
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None)

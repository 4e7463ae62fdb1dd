"""PUT of a result's file to a URL: one that the request gives, on a host that the template lists.

The host's address is resolved once and checked, and exactly that address is contacted. No redirect is
followed. One call is one attempt; the caller waits and repeats it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from outlast.gateway.answers.collect import checked_blocks, open_result
from outlast.gateway.answers.errors import UploadError
from outlast.gateway.requests import ResultFile
from outlast.gateway.web_application.web_request import (
    Address,
    WebError,
    WebTimeouts,
    addresses_of,
    digest_header,
    request,
)
from outlast.node.pulse import no_pulse
from outlast.node.staging.http.host_rules import is_private_address
from outlast.node.staging.http.url import BadUrl, Url

#: The slowest upload that is waited for, in bytes per second, and the seconds that every upload may take.
SLOWEST = 100_000
_BASE_TIME = 60.0
#: The longest time for one file, in seconds.
_LONGEST = 6 * 3600.0


@dataclass(frozen=True)
class UploadTarget:
    """A URL for PUT. Its representation has no query, which may be a signature."""

    url: Url
    #: Host and port of each place that the template allows. An address that is not public is allowed only if
    #: it is listed itself, with the port: `10.0.0.5:9000`.
    hosts: tuple[str, ...]

    @staticmethod
    def parse(text: str, hosts: Sequence[str]) -> UploadTarget:
        """Parse the URL and check its host; no name is resolved. Raise UploadError (final)."""
        try:
            url = Url.parse(text)
        except BadUrl:
            # Its message is about data, and quotes the path.
            raise UploadError(False, "the URL for an upload is not a valid https URL") from None
        target = UploadTarget(url, tuple(host.lower() for host in hosts))
        if url.authority not in target.hosts:
            raise UploadError(False, f"{url.authority} is not one of the hosts for uploads")
        if any(part in (".", "..") for part in url.path.lower().replace("%2e", ".").split("/")):
            raise UploadError(False, f"the URL for an upload to {url.authority} leads to another directory")
        return target

    def addresses(self, timeout: float) -> list[Address]:
        """Resolve the host, and refuse it if one of its addresses is not allowed. Raise WebError."""
        found = addresses_of(self.url, timeout)
        for _, address in found:
            if is_private_address(str(address[0])) and not self._is_listed(str(address[0])):
                raise WebError(False, f"{self.url.authority} does not have a public address")
        return found

    def _is_listed(self, address: str) -> bool:
        shown = f"[{address}]" if ":" in address else address
        return f"{shown}:{self.url.port}" in self.hosts


def timeouts_for(size: int) -> WebTimeouts:
    """Return the timeouts for the upload of a file of `size` bytes."""
    return WebTimeouts(total=min(_LONGEST, _BASE_TIME + size / SLOWEST))


def upload(
    results: Path,
    file: ResultFile,
    target: UploadTarget,
    *,
    authorization: str = "",
    ca_file: Path | None = None,
    timeouts: WebTimeouts | None = None,
    pulse: Callable[[], None] = no_pulse,
) -> ResultFile:
    """PUT a file and return it with its place, the URL without its query. Raise UploadError, or OSError.

    `authorization` is the value of that header, for targets of the application's own. `pulse` is called for
    each block and may raise.
    """
    limits = timeouts or timeouts_for(file.size)
    headers = {"Repr-Digest": digest_header(file.sha256)}
    if authorization:
        # Not for a presigned URL: some signatures cover the type.
        headers |= {"Authorization": authorization, "Content-Type": "application/octet-stream"}
    with open_result(results, file) as stream:
        try:
            addresses = target.addresses(limits.connect)
            reply = request(
                "PUT",
                target.url,
                addresses,
                headers,
                checked_blocks(stream, file, pulse),
                file.size,
                timeouts=limits,
                ca_file=ca_file,
            )
        except WebError as error:
            raise UploadError(error.transient, f"{file.name!r}: {error.text}", error.status) from None
    refusal = reply.refusal(target.url.authority)
    if refusal is not None:
        raise UploadError(refusal.transient, f"{file.name!r}: {refusal.text}", refusal.status)
    return replace(file, place=target.url.name)

"""Where results are put with the application's token, which may write more there than a requester may."""

from __future__ import annotations

from outlast.gateway.settings import ApplicationSettings, Template
from outlast.gateway.url_paths import leads_out
from outlast.node.staging.http.url import BadUrl, Url


def needs_token(url: Url, application: ApplicationSettings) -> bool:
    """Return True for a URL of the application's without a permission of its own.

    A presigned URL has one, and stores refuse two of them.
    """
    return bool(application.login) and not url.query and _has_same_host(url, application.url)


def is_upload_place(url: Url, template: Template, application: ApplicationSettings) -> bool:
    """Return True for a URL below the path at which the template allows results to be put with the token."""
    return bool(template.upload_path) and is_below(url, application.url + template.upload_path)


def is_below(url: Url, base: str) -> bool:
    """Return True if the URL is on the host of `base`, with its scheme, and below its path on any server."""
    if not _has_same_host(url, base) or leads_out(url.path):
        return False
    return url.path.startswith(Url.parse(base).path.rstrip("/") + "/")


def _has_same_host(url: Url, base: str) -> bool:
    try:
        other = Url.parse(base)
    except BadUrl:
        return False
    return (url.scheme, url.authority) == (other.scheme, other.authority)

"""From a file that a request names to an item of data, with the rules that the node enforces.

Everything here is decided by the text of the reference: no name is resolved and nothing is connected to.
"""

from __future__ import annotations

import posixpath
import re
from urllib.parse import urlsplit

from outlast.gateway.configuration.host_names import authority_of
from outlast.gateway.requests import FailureCode, InputReference
from outlast.gateway.settings import ApplicationSettings, InputRule
from outlast.gateway.url_paths import leads_out
from outlast.node.staging.http.host_rules import HostRules
from outlast.node.staging.http.url import BadUrl, Url
from outlast.node.staging.item import DataItem
from outlast.spec import urls
from outlast.units import show_size

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_LONGEST_URL = 4000


class InputMistake(Exception):
    """A file is not one that may be fetched. The text quotes nothing that could be a secret."""

    def __init__(self, code: FailureCode, text: str) -> None:
        super().__init__(text)
        self.code = code


def input_item(rule: InputRule, reference: InputReference, application: ApplicationSettings) -> DataItem:
    """Return the item for a file. Raise InputMistake."""
    url = _checked_url(rule, reference.url, application)
    size, sha256 = reference.size, reference.sha256
    if sha256 and not (isinstance(sha256, str) and _SHA256.fullmatch(sha256)):
        raise InputMistake(FailureCode.INVALID_REQUEST, "sha256 must be 64 hexadecimal digits")
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 0):
        raise InputMistake(FailureCode.INVALID_REQUEST, "size must be a number of bytes")
    if size is not None and size > rule.most:
        text = f"has {show_size(size)}; at most {show_size(rule.most)} are allowed"
        raise InputMistake(FailureCode.OVER_CEILING, text)
    to, name = posixpath.split(rule.to) if rule.unpack == "no" else (rule.to, "")
    host = authority_of(application.url) if application.url else ""
    is_applications = url.authority == host
    return DataItem(
        urls=(url.full,),
        digests={"sha256": sha256.lower()} if sha256 else {},
        size=size,
        unpack=rule.unpack,
        to=to,
        method="http",
        file_name=name,
        hosts=_allowed_hosts(rule, application),
        private_hosts=rule.private_hosts,
        most=rule.most,
        token_scheme=application.scheme if rule.token and is_applications else "",
        ca_file=str(application.ca_file) if application.ca_file and is_applications else "",
    )


def target_of(item: DataItem) -> str:
    """Return the path of an item below the data directory."""
    return posixpath.join(item.to, item.name) if item.unpack == "no" else item.to


def _allowed_hosts(rule: InputRule, application: ApplicationSettings) -> tuple[str, ...]:
    own = (authority_of(application.url),) if application.url else ()
    return tuple(dict.fromkeys((*own, *rule.hosts)))


def _checked_url(rule: InputRule, text: str, application: ApplicationSettings) -> Url:
    if not isinstance(text, str) or not text or len(text) > _LONGEST_URL or not text.isprintable():
        raise _refused(f"is not a URL of 1 to {_LONGEST_URL} printable characters")
    if text.startswith("//") or "\\" in text or "#" in text:
        raise _refused("is neither an https URL nor a path on the application's host")
    if text.startswith("/"):
        if not application.url:
            raise _refused("is a path, and no application's URL is set: an https URL is needed")
        text = application.url + text
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not text.startswith(f"{parts.scheme}://"):
        raise _refused("is neither an https URL nor a path on the application's host")
    if leads_out(parts.path):
        raise _refused("has . or .. or an empty name in its path")
    wrong, _ = urls.mistake_in(text)
    if wrong:
        raise _refused(wrong)
    try:
        url = Url.parse(text)
    except BadUrl as error:
        raise _refused(str(error)) from None
    refusal = HostRules(_allowed_hosts(rule, application), rule.private_hosts).refusal(url)
    if refusal:
        raise _refused(refusal)
    return url


def _refused(text: str) -> InputMistake:
    return InputMistake(FailureCode.INPUT_REFUSED, text)

"""Checks of the URLs in `data:`: their kind, their form, and secrets in them. No server is contacted."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import quote, urlsplit

from outlast.node.staging.http.url import BadUrl, Url
from outlast.node.staging.sources import pelican_source
from outlast.node.staging.sources.file_source import path_of
from outlast.node.staging.sources.resolve import SCHEMES
from outlast.spec.mistakes import did_you_mean, one_of, shorten

#: The URL schemes of each method.
KINDS = {"http": ("http", "https"), "osdf": ("osdf", "pelican"), "file": ("file",)}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
#: Hints for schemes that are not supported.
_INSTEAD = {
    "s3": "write the https URL of the object, such as https://BUCKET.s3.amazonaws.com/KEY",
    "gs": "write the https URL of the object, such as https://storage.googleapis.com/BUCKET/KEY",
    "stash": "write osdf:///PATH",
    "ftp": "most FTP servers offer the same file over https",
    **dict.fromkeys(
        ("ftps", "sftp", "scp", "ssh", "rsync"), "fetch it once, and write a path or an https URL"
    ),
    **dict.fromkeys(
        ("root", "roots", "xroot", "gsiftp", "globus", "davs"), "write the https or osdf URL of the same file"
    ),
    "hf": "write https://huggingface.co/datasets/NAME/resolve/main/FILE",
}
#: Names of query parameters that hold secrets, and values that look like a token under any name.
_SECRET_NAME = re.compile(
    r"(?i)authz|authorization|(access_?|bearer_?|id_?|private_?)?token|passw(or)?d|secret|api_?key"
    r"|sig|signature|x-(amz|goog)-(signature|credential|security-token)|awsaccesskeyid|jwt"
)
_SECRET_VALUE = re.compile(r"(?i)bearer([ +]|%20).+|eyJ[\w-]{10,}\.[\w-]+.*")


def kind_of(url: str) -> str:
    """Return `http`, `osdf` or `file`; an empty text for other schemes."""
    scheme = scheme_of(url) or "file"
    return next((kind for kind, schemes in KINDS.items() if scheme in schemes), "")


def scheme_of(url: str) -> str:
    """Return the scheme in lower case; an empty text for a path."""
    found = _SCHEME.match(url)
    # A file name may contain a colon: without slashes behind it, only a known scheme is a URL.
    if found is None or not (
        url[found.end() :].startswith("//") or found[1].lower() in (*SCHEMES, *_INSTEAD)
    ):
        return ""
    return found[1].lower()


def mistake_in(url: str) -> tuple[str, str]:
    """Return the mistake in a URL and a hint; two empty texts if it is valid. Never quotes a secret."""
    scheme = scheme_of(url)
    if scheme and scheme not in SCHEMES:
        hint = _INSTEAD.get(scheme) or did_you_mean(scheme, SCHEMES)
        known = f"supported: {one_of(SCHEMES)}"
        return f"{scheme}: URLs are not supported", f"{hint} ({known})" if hint else known
    try:
        return _secret_in(url) if scheme not in ("", "file") else _path_mistake(url)
    except BadUrl as error:
        text, _, hint = str(error).partition(": ")
        return text, hint
    except ValueError as error:
        return str(error), ""


def _secret_in(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    hint = "remove it, and set a token by file or command in the cluster's profile"
    if "@" in parts.netloc:
        return "contains a user or password, which everybody who sees the experiment could read", hint
    for pair in parts.query.split("&"):
        name, _, value = pair.partition("=")
        if value and (_SECRET_NAME.fullmatch(name) or _SECRET_VALUE.fullmatch(value)):
            shown = shorten(name, 30) if _SECRET_NAME.fullmatch(name) else "its query"
            return f"contains a secret ({shown}), which everybody who sees the experiment could read", hint
    if kind_of(url) == "osdf":
        pelican_source.PelicanUrl.parse(url)
    else:
        Url.parse(url)
        if not parts.path.strip("/"):
            return f"{shorten(url)} names a host but no file", "write the URL of the file itself"
    return "", ""


def _path_mistake(url: str) -> tuple[str, str]:
    return ("", "") if _file_path(url) else ("names no file", "write file:///PATH, or the path alone")


def absolute_url(url: str, directory: Path) -> str:
    """Return a path or `file:` URL as `file:///PATH`, relative to `directory`; other URLs unchanged."""
    if kind_of(url) != "file":
        return url
    path = os.path.expanduser(_file_path(url))  # noqa: PTH111
    return "file://" + quote(os.path.normpath(directory.absolute() / path))


def _file_path(url: str) -> str:
    """Return the path in `file:///data/x`, `file:x` or a bare path. Raises ValueError if it names a host."""
    return path_of("file:" + url.partition(":")[2]) if scheme_of(url) == "file" else url


def shown(url: str) -> str:
    """Return a URL for people: without its query; a `file:` URL as a path."""
    return (
        _file_path(url) if kind_of(url) == "file" else urlsplit(url)._replace(query="", fragment="").geturl()
    )

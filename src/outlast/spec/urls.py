"""A URL of `data:`: what kind it is, and what must not be in it. Nothing is asked of anybody here."""

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

#: By method, which schemes it brings.
KINDS = {"http": ("http", "https"), "osdf": ("osdf", "pelican"), "file": ("file",)}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
#: Schemes that people have data under, and what to write instead.
_INSTEAD = {
    "s3": "write the https URL of the object, such as https://BUCKET.s3.amazonaws.com/KEY",
    "gs": "write the https URL of the object, such as https://storage.googleapis.com/BUCKET/KEY",
    "stash": "write osdf:///PATH",
    "ftp": "most such servers have the same file under https",
    **dict.fromkeys(
        ("ftps", "sftp", "scp", "ssh", "rsync"), "fetch it once, and give a path or an https URL"
    ),
    **dict.fromkeys(
        ("root", "roots", "xroot", "gsiftp", "globus", "davs"), "write the https or osdf URL of the same file"
    ),
    "hf": "write https://huggingface.co/datasets/NAME/resolve/main/FILE",
}
#: Names of a query's parts that open a door to whoever has them, and how a token looks that has no such name.
_SECRET_NAME = re.compile(
    r"(?i)authz|authorization|(access_?|bearer_?|id_?|private_?)?token|passw(or)?d|secret|api_?key"
    r"|sig|signature|x-(amz|goog)-(signature|credential|security-token)|awsaccesskeyid|jwt"
)
_SECRET_VALUE = re.compile(r"(?i)bearer([ +]|%20).+|eyJ[\w-]{10,}\.[\w-]+.*")


def kind_of(url: str) -> str:
    """`http`, `osdf` or `file`; empty for what is none of them."""
    scheme = scheme_of(url) or "file"
    return next((kind for kind, schemes in KINDS.items() if scheme in schemes), "")


def scheme_of(url: str) -> str:
    """In lower case; empty for a path."""
    found = _SCHEME.match(url)
    # A file may have a colon in its name; what has no slashes behind it is a URL only if it is one of ours.
    if found is None or not (
        url[found.end() :].startswith("//") or found[1].lower() in (*SCHEMES, *_INSTEAD)
    ):
        return ""
    return found[1].lower()


def mistake_in(url: str) -> tuple[str, str]:
    """What is wrong with it and what to do; two empty texts if nothing is. No secret is repeated."""
    scheme = scheme_of(url)
    if scheme and scheme not in SCHEMES:
        hint = _INSTEAD.get(scheme) or did_you_mean(scheme, SCHEMES)
        known = f"known are {one_of(SCHEMES)}"
        return f"{scheme}: is no kind of URL that data comes from", f"{hint} ({known})" if hint else known
    try:
        return _secret_in(url) if scheme not in ("", "file") else _path_mistake(url)
    except BadUrl as error:
        text, _, hint = str(error).partition(": ")
        return text, hint
    except ValueError as error:
        return str(error), ""


def _secret_in(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    hint = "leave it out, and give a token by file or command in the cluster's profile"
    if "@" in parts.netloc:
        return "holds a user or a password, which everybody who sees the experiment could read", hint
    for pair in parts.query.split("&"):
        name, _, value = pair.partition("=")
        if value and (_SECRET_NAME.fullmatch(name) or _SECRET_VALUE.fullmatch(value)):
            shown = shorten(name, 30) if _SECRET_NAME.fullmatch(name) else "its query"
            return f"holds a secret ({shown}), which everybody who sees the experiment could read", hint
    if kind_of(url) == "osdf":
        pelican_source.PelicanUrl.parse(url)
    else:
        Url.parse(url)
        if not parts.path.strip("/"):
            return f"{shorten(url)} names a host and no file", "write the URL of the file itself"
    return "", ""


def _path_mistake(url: str) -> tuple[str, str]:
    return ("", "") if _bare(url) else ("names no file", "write file:///PATH, or the path alone")


def located(url: str, directory: Path) -> str:
    """A path or file: as `file:///PATH`; what is relative begins in the experiment's directory."""
    if kind_of(url) != "file":
        return url
    path = os.path.expanduser(_bare(url))  # noqa: PTH111
    return "file://" + quote(os.path.normpath(directory.absolute() / path))


def _bare(url: str) -> str:
    """The path of `file:///data/x`, of `file:x`, or of itself. Raises ValueError for another machine's."""
    return path_of("file:" + url.partition(":")[2]) if scheme_of(url) == "file" else url


def shown(url: str) -> str:
    """For people: without a query."""
    return _bare(url) if kind_of(url) == "file" else urlsplit(url)._replace(query="", fragment="").geturl()

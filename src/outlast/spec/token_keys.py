"""`token:` of a cluster's profile: where a token for data is, and for whom. Never the token itself."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from outlast.spec.document import Path_
from outlast.spec.mistakes import Mistake, shorten
from outlast.spec.schema import TokenKeys

if TYPE_CHECKING:
    from outlast.spec.cluster_library import KnownCluster

_HOST = re.compile(
    r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9-]+)*(:\d{1,5})?|\[[0-9a-fA-F:]+\](:\d{1,5})?"
)
#: What a token looks like where a path was expected.
_TOKEN = re.compile(r"eyJ[\w-]+\..*|[A-Za-z0-9+_=.-]{80,}")
_WRITE_HOSTS = "add hosts: [data.example.org]; nobody else is sent the token"


def token_mistakes(token: TokenKeys) -> Iterator[tuple[Path_, str, str]]:
    """What is wrong with the keys, whatever is on disk."""
    given = token.model_fields_set
    if not given:
        return
    if {"file", "command"} <= given:
        yield ("token", "command"), "is another way to say where the token is than file", "keep one of them"
    if _TOKEN.fullmatch(token.file):
        yield ("token", "file"), "looks like a token, and must be the path of a file", "write it into a file"
    if not token.hosts:
        yield ("token",), "does not say for which hosts it is", _WRITE_HOSTS
    for index, host in enumerate(token.hosts):
        if host and not _HOST.fullmatch(host):
            hint = "write a name such as data.example.org, *.example.org or data.example.org:8443"
            place: Path_ = ("token", "hosts", index) if len(token.hosts) > 1 else ("token", "hosts")
            yield place, f'"{shorten(host)}" is no host', hint


def token_objections(cluster: KnownCluster) -> tuple[list[Mistake], list[Mistake]]:
    """Mistakes and warnings about the file."""
    profile = cluster.profile
    if not profile.site.token_file:
        return [], []
    path, line = Path(profile.site.token_file), cluster.lines.get("token")

    def told(text: str, hint: str) -> Mistake:
        return Mistake(cluster.file, line, None, f"{profile.name}.token.file: {path} {text}", hint)

    try:
        mode = path.stat().st_mode
    except OSError as error:
        # Something may write it before the jobs start.
        return [], [told(f"cannot be read: {error.strerror}", "put the token there before the runs start")]
    if not stat.S_ISREG(mode):
        return [told("is no file", "")], []
    if mode & 0o077:
        return [told(f"can be read by others (mode {mode & 0o777:03o})", f"chmod 600 {path}")], []
    return [], []

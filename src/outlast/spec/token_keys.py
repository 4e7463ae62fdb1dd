"""The `token:` section of a profile: the place of the token for data, and its hosts."""

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
#: Text that looks like a token where a path is expected.
_TOKEN = re.compile(r"eyJ[\w-]+\..*|[A-Za-z0-9+_=.-]{80,}")
_WRITE_HOSTS = "add hosts: [data.example.org]; the token is sent only to these hosts"


def token_mistakes(token: TokenKeys) -> Iterator[tuple[Path_, str, str]]:
    """Yield the path, text and hint of each mistake in the keys; files are not checked."""
    given = token.model_fields_set
    if not given:
        return
    if {"file", "command"} <= given:
        yield ("token", "command"), "cannot be combined with file", "keep one of them"
    if _TOKEN.fullmatch(token.file):
        yield (
            ("token", "file"),
            "looks like a token, but must be the path of a file",
            "write the token into a file",
        )
    if not token.hosts:
        yield ("token",), "hosts is missing", _WRITE_HOSTS
    for index, host in enumerate(token.hosts):
        if host and not _HOST.fullmatch(host):
            hint = "write a name such as data.example.org, *.example.org or data.example.org:8443"
            place: Path_ = ("token", "hosts", index) if len(token.hosts) > 1 else ("token", "hosts")
            yield place, f'"{shorten(host)}" is not a host', hint


def check_token_file(cluster: KnownCluster) -> tuple[list[Mistake], list[Mistake]]:
    """Return the mistakes and the warnings about the token's file."""
    profile = cluster.profile
    if not profile.site.token_file:
        return [], []
    path, line = Path(profile.site.token_file), cluster.lines.get("token")

    def about_file(text: str, hint: str) -> Mistake:
        return Mistake(cluster.file, line, None, f"{profile.name}.token.file: {path} {text}", hint)

    try:
        mode = path.stat().st_mode
    except OSError as error:
        # It may be written before the jobs start.
        return [], [
            about_file(f"cannot be read: {error.strerror}", "put the token there before the runs start")
        ]
    if not stat.S_ISREG(mode):
        return [about_file("is not a file", "")], []
    if mode & 0o077:
        return [about_file(f"can be read by others (mode {mode & 0o777:03o})", f"chmod 600 {path}")], []
    return [], []

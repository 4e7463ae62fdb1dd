"""Cluster profiles: which scheduler a name stands for, and where that is written.

`local`, `slurm`, `sge` and `htcondor` exist without a profile. `clusters.yaml` beside `params.yaml`, then
the one in the user's configuration directory, may describe those or name others; the first one counts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from outlast.local_cluster.hosts import Host, this_machine
from outlast.spec.document import Document
from outlast.spec.document import Mapping as MappingNode
from outlast.spec.mistakes import BadSpec, Mistake, nearest
from outlast.spec.profiles import ClusterProfile, read_profile
from outlast.spec.schema import SCHEDULERS
from outlast.spec.yamlfile import load

__all__ = [
    "FILE",
    "ClusterProfile",
    "Host",
    "KnownCluster",
    "Library",
    "configuration_directory",
    "find_cluster",
    "known_hosts",
]

FILE = "clusters.yaml"
_EMPTY = "write a profile into it, such as `mine: {scheduler: slurm}`, or remove it"


@dataclass(frozen=True)
class KnownCluster:
    profile: ClusterProfile
    #: The file that describes it; empty for a name that exists without one.
    file: str
    #: The line of that file.
    line: int | None
    mistakes: tuple[Mistake, ...] = ()
    #: The lines of the keys that the profile has.
    lines: Mapping[str, int] = field(default_factory=dict)


class Library:
    """The profiles that an experiment in `directory` may name. What is wrong with one concerns no other."""

    def __init__(self, directory: Path) -> None:
        #: What makes a whole file unreadable.
        self.mistakes: list[Mistake] = []
        self._documents: list[tuple[Document, Path]] = []
        own, users = directory / FILE, configuration_directory() / FILE
        for path, shown in ((own, FILE), (users, str(users))):
            if os.path.lexists(path):
                try:
                    self._documents.append((load(path, shown, _EMPTY), path.parent))
                except BadSpec as bad:
                    self.mistakes += bad.mistakes

    @property
    def names(self) -> list[str]:
        """The four that always exist, then the others in the order of the files."""
        written = (name for document, _ in self._documents for name in document.root.entries)
        return list(dict.fromkeys([*SCHEDULERS, *written]))

    def find(self, name: str) -> KnownCluster | None:
        for document, folder in self._documents:
            if name in document.root.entries:
                profile, mistakes = read_profile(name, document, folder)
                line, node = document.line((name,), of_key=True), document.root.entries[name]
                lines = node.key_lines if isinstance(node, MappingNode) else {}
                return KnownCluster(profile, document.file, line, tuple(mistakes), lines)
        return KnownCluster(ClusterProfile(name, name), "", None) if name in SCHEDULERS else None

    def instead_of(self, name: str) -> str:
        """What to write for a name that is not known."""
        near, known = nearest(name, self.names), ", ".join(self.names)
        return f'did you mean "{near}"? (known: {known})' if near else f"known are {known}"

    def mistakes_near(self, name: str) -> list[Mistake]:
        """What is wrong with the profile that was probably meant; where none is near, with any of them."""
        near = nearest(name, self.names)
        found = [self.find(one) for one in ([near] if near else self.names)]
        return [mistake for one in found if one is not None for mistake in one.mistakes]


def configuration_directory() -> Path:
    base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if not base.is_absolute():
        # Unset, or relative, which the XDG specification has ignored. A home that is not known stays "~".
        base = Path(os.path.expanduser("~/.config"))  # noqa: PTH111
    return base / "outlast"


def find_cluster(name: str, directory: Path) -> tuple[ClusterProfile | None, str, list[Mistake]]:
    """The profile called `name`; or None and, if there is no such name, what to write instead.

    The mistakes are those of the `clusters.yaml` files. Only the profile that is asked for is looked into,
    and for a name that is misspelt, the one that was probably meant.
    """
    library = Library(directory)
    found = library.find(name)
    if found is None:
        return None, library.instead_of(name), [*library.mistakes, *library.mistakes_near(name)]
    return found.profile, "", [*library.mistakes, *found.mistakes]


def known_hosts(profile: ClusterProfile) -> Mapping[str, Host]:
    """The hosts that a job can go to; empty where only the scheduler knows them."""
    if profile.scheduler == "local" and not profile.hosts:
        return this_machine()
    return profile.hosts

"""Lookup of cluster profiles by name.

`local`, `slurm`, `sge` and `htcondor` exist without a profile. `clusters.yaml` beside `params.yaml` and the
one in the user's configuration directory may describe these and add others; the first of the two wins.
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
    """A cluster profile, where it was found, and the mistakes in it."""

    profile: ClusterProfile
    #: The file with the profile; empty for a scheduler without one.
    file: str
    #: The line of the profile in that file.
    line: int | None
    mistakes: tuple[Mistake, ...] = ()
    #: The line of each key of the profile.
    lines: Mapping[str, int] = field(default_factory=dict)


class Library:
    """The profiles that an experiment in `directory` can use. A mistake in one does not affect the others."""

    def __init__(self, directory: Path) -> None:
        #: Mistakes that make a whole file unreadable.
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
        """The four schedulers, then the other profiles in the order of the files."""
        written = (name for document, _ in self._documents for name in document.root.entries)
        return list(dict.fromkeys([*SCHEDULERS, *written]))

    def find(self, name: str) -> KnownCluster | None:
        """Return the cluster called `name`, or None if there is none."""
        for document, folder in self._documents:
            if name in document.root.entries:
                profile, mistakes = read_profile(name, document, folder)
                line, node = document.line((name,), of_key=True), document.root.entries[name]
                lines = node.key_lines if isinstance(node, MappingNode) else {}
                return KnownCluster(profile, document.file, line, tuple(mistakes), lines)
        return KnownCluster(ClusterProfile(name, name), "", None) if name in SCHEDULERS else None

    def instead_of(self, name: str) -> str:
        """Return a hint for an unknown name: the most similar one, and all that are known."""
        near, known = nearest(name, self.names), ", ".join(self.names)
        return f'did you mean "{near}"? (known: {known})' if near else f"known: {known}"

    def mistakes_near(self, name: str) -> list[Mistake]:
        """Return the mistakes in the profile that was probably meant; in all profiles if none is similar."""
        near = nearest(name, self.names)
        found = [self.find(one) for one in ([near] if near else self.names)]
        return [mistake for one in found if one is not None for mistake in one.mistakes]


def configuration_directory() -> Path:
    """Return the directory of the user's `clusters.yaml`, after the XDG specification."""
    base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if not base.is_absolute():
        # Unset, or relative, which must be ignored. An unknown home directory stays "~".
        base = Path(os.path.expanduser("~/.config"))  # noqa: PTH111
    return base / "outlast"


def find_cluster(name: str, directory: Path) -> tuple[ClusterProfile | None, str, list[Mistake]]:
    """Return the profile called `name`, or None; a hint if there is no such name; and the mistakes.

    The mistakes are in the `clusters.yaml` files. Only the requested profile is validated, or, if the name is
    unknown, the one that was probably meant.
    """
    library = Library(directory)
    found = library.find(name)
    if found is None:
        return None, library.instead_of(name), [*library.mistakes, *library.mistakes_near(name)]
    return found.profile, "", [*library.mistakes, *found.mistakes]


def known_hosts(profile: ClusterProfile) -> Mapping[str, Host]:
    """Return the hosts of a local cluster; empty for other schedulers, which know their own."""
    if profile.scheduler == "local" and not profile.hosts:
        return this_machine()
    return profile.hosts

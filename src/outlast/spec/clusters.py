"""Cluster profiles: which scheduler a name stands for, and what is known of its limits.

`local`, `slurm`, `sge` and `htcondor` exist without a profile. `clusters.yaml` beside `params.yaml`, then
the one in the user's configuration directory, may describe those or name others; the first one counts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from outlast.local_cluster.hosts import Host, this_machine
from outlast.spec.document import Document
from outlast.spec.document import Mapping as MappingNode
from outlast.spec.mistakes import BadSpec, Mistake, did_you_mean
from outlast.spec.schema import SCHEDULERS, ProfileKeys
from outlast.spec.validate import validate
from outlast.spec.yamlfile import load

__all__ = [
    "FILE",
    "SERVED",
    "ClusterProfile",
    "Host",
    "configuration_directory",
    "find_cluster",
    "known_hosts",
    "unserved",
]

FILE = "clusters.yaml"
#: The schedulers that `submit` can talk to.
SERVED = frozenset({"local"})

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class ClusterProfile:
    name: str
    #: local, slurm, sge or htcondor.
    scheduler: str
    #: For local: names that stand for machines. Empty: this machine, under its own name.
    hosts: Mapping[str, Host] = field(default_factory=dict)
    #: The longest wall time one job may ask for, in seconds.
    longest: float | None = None


def configuration_directory() -> Path:
    base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if not base.is_absolute():
        # Unset, or relative, which the XDG specification has ignored. A home that is not known stays "~".
        base = Path(os.path.expanduser("~/.config"))  # noqa: PTH111
    return base / "outlast"


def find_cluster(name: str, directory: Path) -> tuple[ClusterProfile | None, str, list[Mistake]]:
    """The profile called `name`; or None and, if there is no such name, what to write instead.

    The mistakes are those of the `clusters.yaml` files. Only the profile that is asked for is looked into.
    """
    documents: list[Document] = []
    mistakes: list[Mistake] = []
    user_file = configuration_directory() / FILE
    for path, shown in ((directory / FILE, FILE), (user_file, str(user_file))):
        if os.path.lexists(path):
            try:
                documents.append(load(path, shown))
            except BadSpec as bad:
                mistakes += bad.mistakes
    for document in documents:
        if name in document.root.entries:
            profile, wrong = _profile(name, document)
            return profile, "", mistakes + wrong
    if name in SCHEDULERS:
        return ClusterProfile(name, name), "", mistakes
    known = list(dict.fromkeys([*SCHEDULERS, *(key for one in documents for key in one.root.entries)]))
    near, all_known = did_you_mean(name, known), ", ".join(known)
    return None, f"{near} (known: {all_known})" if near else f"known are {all_known}", mistakes


def _profile(name: str, document: Document) -> tuple[ClusterProfile, list[Mistake]]:
    keys, mistakes = validate(ProfileKeys, document, (name,))
    given = keys.model_fields_set
    scheduler = keys.scheduler if "scheduler" in given or name not in SCHEDULERS else name
    if "scheduler" not in given and name not in SCHEDULERS and not mistakes:
        hint = f"add scheduler: with {', '.join(SCHEDULERS)}"
        mistakes.append(document.mistake((name,), "does not say which scheduler it is", hint, of_key=True))
    if keys.hosts and scheduler != "local":
        text = f"are for the local scheduler; {scheduler} knows its own"
        mistakes.append(document.mistake((name, "hosts"), text, "remove it", of_key=True))
    hosts_node = document.find((name, "hosts"))
    if isinstance(hosts_node, MappingNode) and not hosts_node.entries:
        hint = "write it like {alpha: 2}, or remove the line"
        mistakes.append(document.mistake((name, "hosts"), "is empty", hint, of_key=True))
    for host in keys.hosts:
        if not _HOST.fullmatch(host):
            hint = "use letters, digits, ., _ and -"
            mistakes.append(
                document.mistake((name, "hosts", host), "is not a host's name", hint, of_key=True)
            )
    hosts = {host: Host(one.cpus, one.gpus) for host, one in keys.hosts.items()}
    longest = keys.longest if "longest" in given else None
    return ClusterProfile(name, scheduler, hosts, longest), [*document.mistakes, *mistakes]


def known_hosts(profile: ClusterProfile) -> Mapping[str, Host]:
    """The hosts that a job can go to; empty where only the scheduler knows them."""
    if profile.scheduler == "local" and not profile.hosts:
        return this_machine()
    return profile.hosts


def unserved(profile: ClusterProfile) -> str:
    """Why `submit` cannot use this cluster; empty if it can."""
    if profile.scheduler in SERVED:
        return ""
    return f"this version runs cluster: local, and cannot submit to {profile.scheduler} yet"

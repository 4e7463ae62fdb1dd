"""Reading one profile of a `clusters.yaml` into a `ClusterProfile`, with its mistakes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from outlast.local_cluster.hosts import Host
from outlast.schedulers.profile import Profile
from outlast.spec.data_methods import SHARING
from outlast.spec.directives import directive_mistake
from outlast.spec.document import Document, Path_
from outlast.spec.document import Mapping as MappingNode
from outlast.spec.mistakes import Mistake, nearest, one_of
from outlast.spec.schema import SCHEDULERS, ProfileKeys
from outlast.spec.token_keys import token_mistakes
from outlast.spec.validate import validate

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_BATCH = ("slurm", "sge", "htcondor")
#: The schedulers that a key is for; a key that is not listed is for all.
_FOR: Mapping[str, tuple[str, ...]] = {
    "hosts": ("local",),
    **dict.fromkeys(("project", "account", "gpus", "modules", "before", "environment"), _BATCH),
    **dict.fromkeys(("container", "python", "directives"), _BATCH),
    "queue": ("slurm", "sge"),
    "partition": ("slurm",),
    **dict.fromkeys(("cpus", "memory"), ("sge",)),
    "scratch": ("local", "slurm", "sge"),
    "lag": ("slurm", "sge"),
    **dict.fromkeys(("largest_transfer", "commit", "commit_every"), ("htcondor",)),
}
#: Hints for a key that is not for a scheduler.
_INSTEAD: Mapping[tuple[str, str], str] = {
    ("hosts", "slurm"): "remove it: Slurm knows its own",
    ("hosts", "sge"): "remove it: Grid Engine knows its own",
    ("hosts", "htcondor"): "remove it: HTCondor knows its own",
    ("queue", "htcondor"): "remove it: HTCondor has no queues; restrict its choice under directives",
    ("scratch", "htcondor"): "remove it: HTCondor gives each job a scratch directory",
    ("partition", "sge"): "write queue:",
    **{
        (key, one): "remove it: resources in params.yaml set it"
        for key in ("cpus", "memory")
        for one in _BATCH
    },
}
#: Keys with the same meaning.
_ALIASES = {"account": "project", "partition": "queue"}


@dataclass(frozen=True)
class ClusterProfile:
    """A named cluster: its scheduler, its hosts if it is local, and the settings of its site."""

    name: str
    #: local, slurm, sge or htcondor; empty if the profile has none that is valid.
    scheduler: str
    #: For local: virtual hosts by name. Empty: this machine, under its own name.
    hosts: Mapping[str, Host] = field(default_factory=dict)
    #: The settings of the site; `site.name` stays empty.
    site: Profile = field(default_factory=Profile)

    def as_json(self) -> dict[str, Any]:
        """Return what differs from the defaults, for `Spec.profile`; `Profile.from_dict` reads it."""
        values: dict[str, Any] = {"scheduler": self.scheduler}
        if self.hosts:
            values["hosts"] = {name: asdict(host) for name, host in self.hosts.items()}
        for one in fields(Profile):
            value = getattr(self.site, one.name)
            if value != one.default:
                values[one.name] = list(value) if isinstance(value, tuple) else value
        return values


def is_for(key: str, scheduler: str) -> bool:
    """Return True if a key is for this scheduler."""
    return scheduler in _FOR.get(key, SCHEDULERS)


def read_profile(name: str, document: Document, folder: Path) -> tuple[ClusterProfile, list[Mistake]]:
    """Return the profile called `name` and its mistakes; paths in it are relative to `folder`."""
    keys, mistakes = validate(ProfileKeys, document, (name,))
    node = document.find((name,))
    written = isinstance(node, MappingNode) and "scheduler" in node.entries
    scheduler: str = keys.scheduler if "scheduler" in keys.model_fields_set else ""
    if not written and name in SCHEDULERS:
        scheduler = name
    elif not written and isinstance(node, MappingNode):
        hint = f"add scheduler: with {one_of(SCHEDULERS)}"
        mistakes.append(document.mistake((name,), "scheduler is missing", hint, of_key=True))
    # A misspelt scheduler does not hide other mistakes.
    meant = scheduler or nearest(document.text((name, "scheduler")) or "", SCHEDULERS)
    if meant:
        mistakes += [
            document.mistake((name, *path), text, hint, of_key=len(path) == 1)
            for path, text, hint in [
                *_misplaced(keys, meant),
                *_unfit(keys, meant),
                *token_mistakes(keys.token),
            ]
        ]
    mistakes += _hosts_mistakes(name, document, keys)
    hosts = {host: Host(one.cpus, one.gpus) for host, one in keys.hosts.items()}
    return ClusterProfile(name, scheduler, hosts, _site(keys, folder, scheduler)), [
        *document.mistakes,
        *mistakes,
    ]


def _misplaced(keys: ProfileKeys, scheduler: str) -> Iterator[tuple[Path_, str, str]]:
    """Yield keys that are not for this scheduler, and keys with the same meaning."""
    given = keys.model_fields_set
    for key in ProfileKeys.model_fields:
        if key in given and not is_for(key, scheduler):
            text = f"is for {one_of(_FOR[key])}, not for {scheduler}"
            yield (key,), text, _INSTEAD.get((key, scheduler), "remove it")
    for alias, word in _ALIASES.items():
        if {alias, word} <= given:
            yield (alias,), f"means the same as {word}, which is also set", "keep one of them"


def _unfit(keys: ProfileKeys, scheduler: str) -> Iterator[tuple[Path_, str, str]]:
    """Yield values that this scheduler cannot read."""
    if scheduler == "slurm" and any(character.isspace() for character in keys.gpus):
        yield ("gpus",), f'"{keys.gpus}" has a space in it', "write it like gpu:a100:{gpus}"
    if scheduler in _BATCH:
        for index, line in enumerate(keys.directives):
            text, hint = directive_mistake(line, scheduler) if line else ("", "")
            if text:
                yield ("directives", index), text, hint


def _hosts_mistakes(name: str, document: Document, keys: ProfileKeys) -> Iterator[Mistake]:
    node = document.find((name, "hosts"))
    if isinstance(node, MappingNode) and not node.entries:
        hint = "write it like {alpha: 2}, or remove the line"
        yield document.mistake((name, "hosts"), "is empty", hint, of_key=True)
    for host in keys.hosts:
        if not _HOST.fullmatch(host):
            hint = "use letters, digits, ., _ and -"
            yield document.mistake((name, "hosts", host), "is not a valid host name", hint, of_key=True)


def _site(keys: ProfileKeys, folder: Path, scheduler: str) -> Profile:
    values = keys.model_dump(exclude_unset=True)
    for alias, word in _ALIASES.items():
        if alias in keys.model_fields_set:
            values.setdefault(word, getattr(keys, alias))
    if environment := values.get("environment"):
        # Without a slash it is the name of a conda environment.
        values["environment"] = _located(environment, folder) if "/" in environment else environment
    if container := values.get("container"):
        values["container"] = container if "://" in container else _located(container, folder)
    values.update({f"token_{key}": value for key, value in values.pop("token", {}).items()})
    values.update(values.pop("transfers", {}))
    # The token's file is read on this machine. Without a shared file system the cache is a directory on the
    # node, where "~" is the job's home.
    here = ("token_file", "cache") if scheduler in SHARING else ("token_file",)
    values.update({key: _located(values[key], folder) for key in here if values.get(key)})
    return Profile.from_dict(values)


def _located(path: str, folder: Path) -> str:
    """Return an absolute path: `~` is the user's home, a relative path starts from `folder`."""
    # An unknown home stays "~"; variables are expanded on the node.
    expanded = os.path.expanduser(path)  # noqa: PTH111
    return expanded if expanded.startswith(("/", "~", "$")) else str((folder / expanded).absolute())

"""One profile of a `clusters.yaml`: from its keys to a `ClusterProfile`, or what is wrong with them."""

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
#: Which schedulers a key is for; those that are not here are for all.
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
#: What to write instead, or why there is no need to.
_INSTEAD: Mapping[tuple[str, str], str] = {
    ("hosts", "slurm"): "remove it: Slurm knows its own",
    ("hosts", "sge"): "remove it: Grid Engine knows its own",
    ("hosts", "htcondor"): "remove it: HTCondor knows its own",
    ("queue", "htcondor"): "remove it: HTCondor has none; narrow its choice under directives",
    ("scratch", "htcondor"): "remove it: a job's own directory is scratch there",
    ("partition", "sge"): "write queue:",
    **{
        (key, one): "remove it: resources in params.yaml say it"
        for key in ("cpus", "memory")
        for one in _BATCH
    },
}
#: Two words for one thing.
_ALIASES = {"account": "project", "partition": "queue"}


@dataclass(frozen=True)
class ClusterProfile:
    name: str
    #: local, slurm, sge or htcondor; empty where a mistake keeps that from being known.
    scheduler: str
    #: For local: names that stand for machines. Empty: this machine, under its own name.
    hosts: Mapping[str, Host] = field(default_factory=dict)
    #: What is known of the site; its own `name` is left empty.
    site: Profile = field(default_factory=Profile)

    def as_json(self) -> dict[str, Any]:
        """What `Spec.profile` holds: only what differs from the defaults. `Profile.of` reads it."""
        told: dict[str, Any] = {"scheduler": self.scheduler}
        if self.hosts:
            told["hosts"] = {name: asdict(host) for name, host in self.hosts.items()}
        for one in fields(Profile):
            value = getattr(self.site, one.name)
            if value != one.default:
                told[one.name] = list(value) if isinstance(value, tuple) else value
        return told


def is_for(key: str, scheduler: str) -> bool:
    """Whether a key means something to a scheduler."""
    return scheduler in _FOR.get(key, SCHEDULERS)


def read_profile(name: str, document: Document, folder: Path) -> tuple[ClusterProfile, list[Mistake]]:
    """The profile called `name`; paths in it are relative to `folder`, where the file is."""
    keys, mistakes = validate(ProfileKeys, document, (name,))
    node = document.find((name,))
    written = isinstance(node, MappingNode) and "scheduler" in node.entries
    scheduler: str = keys.scheduler if "scheduler" in keys.model_fields_set else ""
    if not written and name in SCHEDULERS:
        scheduler = name
    elif not written and isinstance(node, MappingNode):
        hint = f"add scheduler: with {one_of(SCHEDULERS)}"
        mistakes.append(document.mistake((name,), "does not say which scheduler it is", hint, of_key=True))
    # One that is misspelt does not hide what else is wrong.
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
    """Keys that mean nothing to this scheduler, and keys that say the same."""
    given = keys.model_fields_set
    for key in ProfileKeys.model_fields:
        if key in given and not is_for(key, scheduler):
            text = f"is for {one_of(_FOR[key])}, not for {scheduler}"
            yield (key,), text, _INSTEAD.get((key, scheduler), "remove it")
    for alias, word in _ALIASES.items():
        if {alias, word} <= given:
            yield (alias,), f"is another word for {word}, which is given as well", "keep one of them"


def _unfit(keys: ProfileKeys, scheduler: str) -> Iterator[tuple[Path_, str, str]]:
    """Values that this scheduler cannot read."""
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
            yield document.mistake((name, "hosts", host), "is not a host's name", hint, of_key=True)


def _site(keys: ProfileKeys, folder: Path, scheduler: str) -> Profile:
    told = keys.model_dump(exclude_unset=True)
    for alias, word in _ALIASES.items():
        if alias in keys.model_fields_set:
            told.setdefault(word, getattr(keys, alias))
    if environment := told.get("environment"):
        # Without a slash it is the name of a conda environment.
        told["environment"] = _located(environment, folder) if "/" in environment else environment
    if container := told.get("container"):
        told["container"] = container if "://" in container else _located(container, folder)
    told.update({f"token_{key}": value for key, value in told.pop("token", {}).items()})
    told.update(told.pop("transfers", {}))
    # The token's file is read here, or travels from here. Where nothing is shared a cache is a place on the
    # node, and a "~" the home that a job has there.
    here = ("token_file", "cache") if scheduler in SHARING else ("token_file",)
    told.update({key: _located(told[key], folder) for key in here if told.get(key)})
    return Profile.of(told)


def _located(path: str, folder: Path) -> str:
    """`~` is the user's home, and a relative path begins where the file is that has it."""
    # A home that is not known stays "~", and a variable is the node's to expand.
    expanded = os.path.expanduser(path)  # noqa: PTH111
    return expanded if expanded.startswith(("/", "~", "$")) else str((folder / expanded).absolute())

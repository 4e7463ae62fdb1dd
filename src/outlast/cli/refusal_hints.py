"""What to change, where, and what to type when a scheduler refused a job, or a source its data, for good."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from outlast.domain.model import Cause, Outcome, Run, RunState
from outlast.node.failure_streak import DATA_FAILURES

if TYPE_CHECKING:
    from outlast.journal.journal import Journal
    from outlast.spec.cluster_library import KnownCluster


@dataclass(frozen=True)
class _Refusal:
    """Words of a scheduler's, and the keys that they are about; words for one key are another word for it."""

    scheduler: str
    words: str
    #: Of the profile.
    keys: tuple[tuple[str, ...], ...] = ()
    #: Of `params.yaml`.
    params: tuple[str, ...] = ()
    #: What lists the choices there are.
    ask: str = ""


_ACCOUNT, _QUEUE = ("account", "project"), ("partition", "queue")
_NODES = 'sinfo -o "%P %c %m %G %l"'
_CAUSES = (
    _Refusal(
        "slurm",
        r"invalid account|account/partition",
        (_ACCOUNT, _QUEUE),
        ask="sacctmgr show assoc user=$USER format=account,partition",
    ),
    _Refusal("slurm", r"partition name|invalid partition|group not permitted", (_QUEUE,), ask="sinfo -s"),
    _Refusal("slurm", r"time limit", (("longest",),), ("resources.time",), 'sinfo -o "%P %l"'),
    _Refusal("slurm", r"\bgres\b|generic resource", (("gpus",),), ("resources.gpus",), _NODES),
    _Refusal("slurm", r"memory", (), ("resources.memory",), _NODES),
    _Refusal("slurm", r"more processors", (), ("resources.cpus",), _NODES),
    _Refusal(
        "slurm",
        r"node configuration",
        (("gpus",), _QUEUE),
        ("resources.cpus", "resources.memory", "resources.gpus"),
        _NODES,
    ),
    _Refusal("slurm", r"\bqos\b|option|invalid feature|reservation|licen[sc]e", (("directives",),)),
    _Refusal("sge", r"requested project|no project|project", (_ACCOUNT,), ask="qconf -sprjl"),
    _Refusal("sge", r"unknown queue", (("queue",),), ask="qconf -sql"),
    _Refusal("sge", r"parallel environment", (("cpus",),), ("resources.cpus",), "qconf -spl"),
    _Refusal("sge", r"unknown resource", (("gpus",), ("memory",), ("directives",)), ask="qconf -sc"),
    _Refusal("sge", r"option", (("directives",),)),
    _Refusal("htcondor", r"submit description cannot be read", (("directives",),)),
    _Refusal("htcondor", r"require_gpus", (("gpus",),), ("resources.gpus",)),
    _Refusal("htcondor", r"MAX_TRANSFER", (), ("code", "checkpoints.keep")),
)

#: How to find out what is right.
_OF_DATA = {
    Outcome.NOT_FOUND: "`outlast data check%s` asks every source",
    Outcome.CORRUPT_INPUT: "if another file is the right one now, remove what is pinned, and "
    "`outlast data pin%s` writes it anew",
}


def advice(journal: Journal, run: Run, root: Path, directory: Path | None = None) -> str:
    """For a run that failed because its job or its data was refused, else empty.

    `directory`: as the user named it.
    """
    last = run.last
    if run.state is not RunState.FAILED or last is None or last.transient:
        return ""
    if last.cause is Cause.ACCESS_POINT:
        return ""  # the reason itself has the path to repair, and the command
    place = shlex.quote(str(directory)) if directory and str(directory) != "." else ""
    again = "type `outlast retry %s%s`" % (shlex.quote(run.name), " -C " + place if place else "")
    if last.outcome in DATA_FAILURES:
        return "correct `data` in params.yaml (%s), then %s" % (
            _OF_DATA[last.outcome] % (" " + place if place else ""),
            again,
        )
    if last.outcome is not Outcome.REJECTED:
        return ""
    from outlast.spec.cluster_library import Library

    cluster = Library(root).find(journal.spec(run.spec).cluster)
    if cluster is None:
        return again
    return "%s, then %s" % (remedy(last.detail, cluster), again)


def remedy(said: str, cluster: KnownCluster) -> str:
    """Which keys to look at, with their lines, and what lists the choices."""
    for cause in _CAUSES:
        if cause.scheduler == cluster.profile.scheduler and re.search(cause.words, said, re.IGNORECASE):
            return _remedy(cause, cluster)
    shown = "`outlast submit --dry-run` shows what was sent"
    return "correct %s or resources in params.yaml (%s)" % (_profile(cluster), shown)


def _remedy(cause: _Refusal, cluster: KnownCluster) -> str:
    found = [key for words in cause.keys for key in words if key in cluster.lines]
    places = ["`%s` in %s:%d" % (key, cluster.file, cluster.lines[key]) for key in found]
    places += ["`%s` in params.yaml" % key for key in cause.params]
    choices = " (`%s` lists what there is)" % cause.ask if cause.ask else ""
    missing = [words[0] for words in cause.keys if not set(words) & set(found)]
    if not found and missing:
        add = "add `%s:` to %s" % (missing[0], _profile(cluster))
        return ("%s%s, or correct %s" % (add, choices, _or(places))) if places else add + choices
    return "correct %s%s" % (_or(places), choices)


def _profile(cluster: KnownCluster) -> str:
    name = cluster.profile.name
    if cluster.file:
        return "the profile %s in %s:%d" % (name, cluster.file, cluster.line or 1)
    return "a profile `%s:` in clusters.yaml beside params.yaml" % name


def _or(places: Sequence[str]) -> str:
    *most, last = places
    return "%s or %s" % (", ".join(most), last) if most else last

"""How to fix a run that failed because its job or its data was refused: what to change, and what to type."""

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
    """A pattern in a scheduler's error message and the settings it points to."""

    scheduler: str
    pattern: str
    #: Keys of the profile; those in one tuple are aliases.
    keys: tuple[tuple[str, ...], ...] = ()
    #: Keys of `params.yaml`.
    params: tuple[str, ...] = ()
    #: The command that lists the valid values.
    list_command: str = ""


_ACCOUNT, _QUEUE = ("account", "project"), ("partition", "queue")
_NODES = 'sinfo -o "%P %c %m %G %l"'
_REFUSALS = (
    _Refusal(
        "slurm",
        r"invalid account|account/partition",
        (_ACCOUNT, _QUEUE),
        list_command="sacctmgr show assoc user=$USER format=account,partition",
    ),
    _Refusal(
        "slurm", r"partition name|invalid partition|group not permitted", (_QUEUE,), list_command="sinfo -s"
    ),
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
    _Refusal("sge", r"requested project|no project|project", (_ACCOUNT,), list_command="qconf -sprjl"),
    _Refusal("sge", r"unknown queue", (("queue",),), list_command="qconf -sql"),
    _Refusal("sge", r"parallel environment", (("cpus",),), ("resources.cpus",), "qconf -spl"),
    _Refusal("sge", r"unknown resource", (("gpus",), ("memory",), ("directives",)), list_command="qconf -sc"),
    _Refusal("sge", r"option", (("directives",),)),
    _Refusal("htcondor", r"submit description cannot be read", (("directives",),)),
    _Refusal("htcondor", r"require_gpus", (("gpus",),), ("resources.gpus",)),
    _Refusal("htcondor", r"MAX_TRANSFER", (), ("code", "checkpoints.keep")),
)

#: How to find the right values of `data`.
_DATA_HINTS = {
    Outcome.NOT_FOUND: "`outlast data check%s` checks every source",
    Outcome.CORRUPT_INPUT: "if the file has changed on purpose, remove its digests and size, and "
    "`outlast data pin%s` writes the new ones",
}


def suggest_retry(journal: Journal, run: Run, root: Path, directory: Path | None = None) -> str:
    """Return what to correct before a retry; empty unless the job or the data of the run was refused.

    `directory` is the experiment's, as the user named it.
    """
    last = run.last
    if run.state is not RunState.FAILED or last is None or last.transient:
        return ""
    if last.cause is Cause.ACCESS_POINT:
        return ""  # the reason itself names the path to repair and the command
    place = shlex.quote(str(directory)) if directory and str(directory) != "." else ""
    again = "run `outlast retry %s%s`" % (shlex.quote(run.name), " -C " + place if place else "")
    if last.outcome in DATA_FAILURES:
        return "correct `data` in params.yaml (%s), then %s" % (
            _DATA_HINTS[last.outcome] % (" " + place if place else ""),
            again,
        )
    if last.outcome is not Outcome.REJECTED:
        return ""
    from outlast.spec.cluster_library import Library

    cluster = Library(root).find(journal.spec(run.spec).cluster)
    if cluster is None:
        return again
    return "%s, then %s" % (suggest_fix(last.detail, cluster), again)


def suggest_fix(message: str, cluster: KnownCluster) -> str:
    """Return which keys to correct after this error message, with their lines and the valid values."""
    for refusal in _REFUSALS:
        if refusal.scheduler == cluster.profile.scheduler and re.search(
            refusal.pattern, message, re.IGNORECASE
        ):
            return _suggest_keys(refusal, cluster)
    shown = "`outlast submit --dry-run` shows the job"
    return "correct %s or resources in params.yaml (%s)" % (_name_profile(cluster), shown)


def _suggest_keys(refusal: _Refusal, cluster: KnownCluster) -> str:
    found = [key for aliases in refusal.keys for key in aliases if key in cluster.lines]
    places = ["`%s` in %s:%d" % (key, cluster.file, cluster.lines[key]) for key in found]
    places += ["`%s` in params.yaml" % key for key in refusal.params]
    choices = " (`%s` lists the choices)" % refusal.list_command if refusal.list_command else ""
    missing = [aliases[0] for aliases in refusal.keys if not set(aliases) & set(found)]
    if not found and missing:
        add = "add `%s:` to %s" % (missing[0], _name_profile(cluster))
        return ("%s%s, or correct %s" % (add, choices, _join_or(places))) if places else add + choices
    return "correct %s%s" % (_join_or(places), choices)


def _name_profile(cluster: KnownCluster) -> str:
    name = cluster.profile.name
    if cluster.file:
        return "the profile %s in %s:%d" % (name, cluster.file, cluster.line or 1)
    return "a profile `%s:` in clusters.yaml, next to params.yaml" % name


def _join_or(places: Sequence[str]) -> str:
    *most, last = places
    return "%s or %s" % (", ".join(most), last) if most else last

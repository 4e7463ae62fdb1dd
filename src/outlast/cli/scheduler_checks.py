"""What a cluster's own scheduler has against an experiment, asked before anything is sent.

Only what is certain is a mistake. A scheduler that does not answer, a default that a site's own rules may
change, a limit that a quality of service may lift: these are warnings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from outlast.schedulers.discovery import look_for, missing_here, missing_programs
from outlast.schedulers.queue_limits import QueueLimit, queue_limits
from outlast.spec.cluster_library import KnownCluster
from outlast.spec.directives import options_set
from outlast.spec.mistakes import Mistake, did_you_mean
from outlast.spec.reader import Parsed
from outlast.units import show_limit, write_duration

#: Seconds that one question may take; at most two are asked one after the other.
PATIENCE = 5.0
#: Native options by which a profile names another partition or queue, and those that may lift its limit.
_CHOOSES = {"slurm": {"--partition", "-p"}, "sge": {"-q", "-masterq"}}
_LIFTS = {"slurm": {"--qos", "-q"}, "sge": set[str]()}
_WORD = {"slurm": "partition", "sge": "queue"}


@dataclass(frozen=True)
class Objections:
    mistakes: tuple[Mistake, ...] = ()
    warnings: tuple[Mistake, ...] = ()
    #: The scheduler could be asked.
    answered: bool = True


def objections(parsed: Parsed, cluster: KnownCluster) -> Objections:
    """Takes twice `PATIENCE` at the longest, and asks nobody where the programs to ask are missing."""
    kind, site = cluster.profile.scheduler, cluster.profile.site
    lacking = _warnings(cluster, missing_here(kind, site))
    if kind == "local" or missing_programs(kind):
        return Objections(warnings=lacking, answered=kind == "local")
    with ThreadPoolExecutor(2) as pool:
        answer = pool.submit(look_for, kind, PATIENCE)
        # All of them: the name in the profile may be misspelt.
        listing = pool.submit(queue_limits, kind, replace(site, queue=""), PATIENCE)
        problems, (queues, _) = answer.result().problems, listing.result()
    if problems:
        hint = "runs can be submitted all the same, and their jobs are sent once it answers"
        return Objections(warnings=(*lacking, *_warnings(cluster, problems, hint)), answered=False)
    if not queues or options_set(site.directives, kind) & _CHOOSES[kind]:
        return Objections(warnings=lacking)
    gone = tuple(_unknown(cluster, queues))
    if gone:
        return Objections(gone, lacking)
    certain, told = _too_long(parsed, cluster, queues)
    return Objections((told,), lacking) if told and certain else Objections((), (*lacking, *_some(told)))


def _warnings(cluster: KnownCluster, texts: Sequence[str], hint: str = "") -> tuple[Mistake, ...]:
    where = "cluster %s" % cluster.profile.name
    return tuple(Mistake(where, None, None, text, hint) for text in texts)


def _some(mistake: Mistake | None) -> tuple[Mistake, ...]:
    return (mistake,) if mistake is not None else ()


def _named(cluster: KnownCluster) -> list[str]:
    return [name for name in cluster.profile.site.queue.split(",") if name]


def _fits(name: str, queue: QueueLimit) -> bool:
    """Grid Engine takes patterns, and a queue on one host as `main.q@host`."""
    return fnmatchcase(queue.name, name.partition("@")[0])


def _unknown(cluster: KnownCluster, queues: Sequence[QueueLimit]) -> Iterator[Mistake]:
    word = _WORD[cluster.profile.scheduler]
    there = [queue.name for queue in queues]
    for name in _named(cluster):
        if not any(_fits(name, queue) for queue in queues):
            near, known = did_you_mean(name, there), "there are %s" % ", ".join(there)
            text = 'this cluster has no %s "%s"' % (word, name)
            yield _about(cluster, ("partition", "queue"), text, "%s (%s)" % (near, known) if near else known)


def _too_long(
    parsed: Parsed, cluster: KnownCluster, queues: Sequence[QueueLimit]
) -> tuple[bool, Mistake | None]:
    """Whether that is certain, and what is said of jobs that ask for more time than their queue gives."""
    kind, site, names = cluster.profile.scheduler, cluster.profile.site, _named(cluster)
    used = [queue for queue in queues if any(_fits(name, queue) for name in names)]
    if not names:
        # Without a name, Slurm takes the default, which sites may change; Grid Engine takes any that fits.
        used = [queue for queue in queues if queue.default] if kind == "slurm" else list(queues)
    if not used or any(queue.longest is None for queue in used):
        return False, None
    most = max(used, key=lambda queue: queue.longest or 0.0)
    limit = most.longest or 0.0
    asked = parsed.spec.job_time
    needed = math.ceil(asked / 60.0) * 60.0 if kind == "slurm" else asked
    certain = not (options_set(site.directives, kind) & _LIFTS[kind]) and bool(names or kind == "sge")
    who = "%s %s%s" % (_WORD[kind], most.name, "" if names or len(used) > 1 else " (the default)")
    if site.longest is not None and site.longest > limit:
        text = "%s is more than %s allows, %s" % (show_limit(site.longest), who, show_limit(limit))
        hint = "write longest: %s" % write_duration(limit)
        return certain and needed > limit, _about(cluster, ("longest",), text, hint)
    if needed <= limit:
        return False, None
    text = "%s ends jobs after %s, and resources.time asks for %s" % (
        who,
        show_limit(limit),
        show_limit(asked),
    )
    hint = "%s, and the training goes on in several jobs" % _add(
        cluster, "longest: %s" % write_duration(limit)
    )
    return certain, _about(cluster, (), text, hint)


def _about(cluster: KnownCluster, keys: Sequence[str], text: str, hint: str) -> Mistake:
    """At the line of the first of these keys that the profile has, or else at the profile's own."""
    name = cluster.profile.name
    if not cluster.file:
        return Mistake("cluster %s" % name, None, None, text, hint)
    for key in keys:
        if key in cluster.lines:
            return Mistake(cluster.file, cluster.lines[key], None, "%s.%s: %s" % (name, key, text), hint)
    return Mistake(cluster.file, cluster.line, None, "%s: %s" % (name, text), hint)


def _add(cluster: KnownCluster, setting: str) -> str:
    if cluster.file:
        return "add %s" % setting
    return "write `%s: {%s}` into clusters.yaml beside params.yaml" % (cluster.profile.name, setting)

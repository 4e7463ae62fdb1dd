"""Checks of an experiment against its scheduler, before anything is submitted.

Only what is certain is a mistake. A scheduler that does not respond, a default that a site may change, and a
limit that a quality of service may lift are warnings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from outlast.schedulers.discovery import find_scheduler, missing_programs, missing_requirements
from outlast.schedulers.queue_limits import QueueLimit, query_queue_limits
from outlast.spec.cluster_library import KnownCluster
from outlast.spec.directives import options_set
from outlast.spec.mistakes import Mistake, did_you_mean
from outlast.spec.reader import Parsed
from outlast.units import show_limit, write_duration

#: Timeout of one query in seconds; at most two run one after the other.
PATIENCE = 5.0
#: Native options that select another partition or queue, and those that may lift its time limit.
_SELECTING_OPTIONS = {"slurm": {"--partition", "-p"}, "sge": {"-q", "-masterq"}}
_LIFTING_OPTIONS = {"slurm": {"--qos", "-q"}, "sge": set[str]()}
_QUEUE_WORD = {"slurm": "partition", "sge": "queue"}


@dataclass(frozen=True)
class SchedulerFindings:
    """Mistakes and warnings that the scheduler's information reveals."""

    mistakes: tuple[Mistake, ...] = ()
    warnings: tuple[Mistake, ...] = ()
    #: False if the scheduler could not be queried.
    responded: bool = True


def check_scheduler(parsed: Parsed, cluster: KnownCluster) -> SchedulerFindings:
    """Check queue and time limit with the scheduler, if its programs are on this machine.

    Takes at most twice `PATIENCE` seconds.
    """
    kind, site = cluster.profile.scheduler, cluster.profile.site
    missing = _warnings(cluster, missing_requirements(kind, site))
    if kind == "local" or missing_programs(kind):
        return SchedulerFindings(warnings=missing, responded=kind == "local")
    with ThreadPoolExecutor(2) as pool:
        presence = pool.submit(find_scheduler, kind, PATIENCE)
        # All queues: the name in the profile may be misspelt.
        listing = pool.submit(query_queue_limits, kind, replace(site, queue=""), PATIENCE)
        problems, (queues, _) = presence.result().problems, listing.result()
    if problems:
        hint = "you can still submit the runs; their jobs are submitted once it responds"
        return SchedulerFindings(warnings=(*missing, *_warnings(cluster, problems, hint)), responded=False)
    if not queues or options_set(site.directives, kind) & _SELECTING_OPTIONS[kind]:
        return SchedulerFindings(warnings=missing)
    unknown = tuple(_unknown_queues(cluster, queues))
    if unknown:
        return SchedulerFindings(unknown, missing)
    certain, mistake = _check_time_limit(parsed, cluster, queues)
    if mistake is None:
        return SchedulerFindings(warnings=missing)
    if certain:
        return SchedulerFindings((mistake,), missing)
    return SchedulerFindings(warnings=(*missing, mistake))


def _warnings(cluster: KnownCluster, texts: Sequence[str], hint: str = "") -> tuple[Mistake, ...]:
    place = "cluster %s" % cluster.profile.name
    return tuple(Mistake(place, None, None, text, hint) for text in texts)


def _queue_names(cluster: KnownCluster) -> list[str]:
    return [name for name in cluster.profile.site.queue.split(",") if name]


def _matches(name: str, queue: QueueLimit) -> bool:
    """Return True if the name stands for this queue: Grid Engine accepts patterns and `main.q@host`."""
    return fnmatchcase(queue.name, name.partition("@")[0])


def _unknown_queues(cluster: KnownCluster, queues: Sequence[QueueLimit]) -> Iterator[Mistake]:
    word = _QUEUE_WORD[cluster.profile.scheduler]
    existing = [queue.name for queue in queues]
    for name in _queue_names(cluster):
        if not any(_matches(name, queue) for queue in queues):
            near, known = did_you_mean(name, existing), "there are %s" % ", ".join(existing)
            text = 'this cluster has no %s "%s"' % (word, name)
            yield _mistake_at(
                cluster, ("partition", "queue"), text, "%s (%s)" % (near, known) if near else known
            )


def _check_time_limit(
    parsed: Parsed, cluster: KnownCluster, queues: Sequence[QueueLimit]
) -> tuple[bool, Mistake | None]:
    """Return whether it is certain that the time exceeds the queue's limit, and the mistake, or None."""
    kind, site, names = cluster.profile.scheduler, cluster.profile.site, _queue_names(cluster)
    used = [queue for queue in queues if any(_matches(name, queue) for name in names)]
    if not names:
        # Without a name, Slurm uses the default, which sites may change; Grid Engine any queue that fits.
        used = [queue for queue in queues if queue.default] if kind == "slurm" else list(queues)
    if not used or any(queue.longest is None for queue in used):
        return False, None
    most = max(used, key=lambda queue: queue.longest or 0.0)
    limit = most.longest or 0.0
    requested = parsed.spec.job_time
    needed = math.ceil(requested / 60.0) * 60.0 if kind == "slurm" else requested
    certain = not (options_set(site.directives, kind) & _LIFTING_OPTIONS[kind]) and bool(
        names or kind == "sge"
    )
    queue_text = "%s %s%s" % (
        _QUEUE_WORD[kind],
        most.name,
        "" if names or len(used) > 1 else " (the default)",
    )
    if site.longest is not None and site.longest > limit:
        text = "%s is more than %s allows (%s)" % (show_limit(site.longest), queue_text, show_limit(limit))
        hint = "set `longest: %s`" % write_duration(limit)
        return certain and needed > limit, _mistake_at(cluster, ("longest",), text, hint)
    if needed <= limit:
        return False, None
    text = "%s ends jobs after %s, but resources.time is %s" % (
        queue_text,
        show_limit(limit),
        show_limit(requested),
    )
    hint = "%s to run the training in several jobs" % _how_to_set(
        cluster, "longest: %s" % write_duration(limit)
    )
    return certain, _mistake_at(cluster, (), text, hint)


def _mistake_at(cluster: KnownCluster, keys: Sequence[str], text: str, hint: str) -> Mistake:
    """Return a mistake at the line of the first of these keys that the profile has, else at the profile."""
    name = cluster.profile.name
    if not cluster.file:
        return Mistake("cluster %s" % name, None, None, text, hint)
    for key in keys:
        if key in cluster.lines:
            return Mistake(cluster.file, cluster.lines[key], None, "%s.%s: %s" % (name, key, text), hint)
    return Mistake(cluster.file, cluster.line, None, "%s: %s" % (name, text), hint)


def _how_to_set(cluster: KnownCluster, setting: str) -> str:
    if cluster.file:
        return "add `%s`" % setting
    return "write `%s: {%s}` into clusters.yaml, next to params.yaml," % (cluster.profile.name, setting)

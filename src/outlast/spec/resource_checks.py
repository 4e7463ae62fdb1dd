"""Checks that an experiment fits its cluster: hosts, wall time, attempts, and size of the input."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from outlast.domain.model import Spec, attempts_needed
from outlast.node import code_archive
from outlast.node.staging.sources.file_source import path_of
from outlast.spec.cluster_library import ClusterProfile, known_hosts
from outlast.spec.schema import ResourcesKeys
from outlast.text import counted
from outlast.units import in_one_unit, show_duration, show_limit, show_size


def too_small_hosts(cluster: ClusterProfile, requested: ResourcesKeys) -> tuple[str, str]:
    """Return a mistake and a hint if the hosts are known and none can run a job; else two empty texts."""
    hosts = known_hosts(cluster)
    if not hosts or any(one.cpus >= requested.cpus and one.gpus >= requested.gpus for one in hosts.values()):
        return "", ""
    text = f"no host of cluster {cluster.name} has {show_slots(requested.cpus, requested.gpus)}"
    if cluster.hosts:
        return text, "request less"
    (here,) = hosts.values()
    return text, f"request less: this machine has {show_slots(here.cpus, here.gpus)}"


def show_slots(cpus: int, gpus: int) -> str:
    """Return `4 cpus and 1 gpu`."""
    return f"{counted(cpus, 'cpu')} and {counted(gpus, 'gpu')}"


def note_on_attempts(spec: Spec) -> str:
    """Return a note on the number of attempts if the time limit of a job is too short; else an empty text."""
    needed = attempts_needed(spec)
    if needed == 1:
        return ""
    length, unit = in_one_unit(spec.resources.time)
    unit_name = {"d": "day", "h": "hour", "min": "minute", "s": "second"}[unit]
    return (
        f"this cluster ends jobs after {show_limit(spec.job_time)}; "
        f"your {length:g}-{unit_name} training run will take about {needed:,} attempts"
    )


def too_few_attempts(spec: Spec) -> list[tuple[tuple[str, str], str, str]]:
    """Return paths, warnings and hints for limits that end a run before it has used its time."""
    needed, limits, time = attempts_needed(spec), spec.limits, show_duration(spec.resources.time)
    if needed == 1:
        return []
    found = []
    if limits.attempts < needed:
        text = (
            f"{counted(limits.attempts, 'attempt')} {'is' if limits.attempts == 1 else 'are'} too few "
            f"for {time} in jobs of {show_duration(spec.job_time)}"
        )
        found.append((("limits", "attempts"), text, f"write {needed * 2:,}"))
    if limits.total <= spec.resources.time:
        text = f"{show_duration(limits.total)} leaves no time to wait in the queue besides {time} of training"
        number, unit = in_one_unit(2 * spec.resources.time)
        found.append((("limits", "total"), text, f"write {number:g}{unit}"))
    return found


def native_input(spec: Spec, cluster: ClusterProfile, directory: Path) -> dict[str, int]:
    """Return the bytes that HTCondor would transfer to each job, by kind: code, container and data."""
    sizes = {"code": 0, "container": 0, "data": 0}
    with suppress(OSError, ValueError):  # reported when it is packed
        sizes["code"] = code_archive.size(directory, spec.code)
    image = Path(cluster.site.container)
    with suppress(OSError, ValueError):  # a URL, or a file of another machine
        sizes["container"] = image.stat().st_size if image.is_file() else 0
    for item in spec.data:
        # URLs do not count: a plugin fetches them on the node.
        if item.method == "native" and item.urls[0].startswith("file:"):
            with suppress(OSError, ValueError):  # a missing file is reported elsewhere
                sizes["data"] += Path(path_of(item.urls[0])).stat().st_size
    return sizes


def too_much_input(sizes: Mapping[str, int], largest: int | None) -> tuple[str, str]:
    """Return a mistake and a hint if the input exceeds the pool's limit; else two empty texts."""
    total = sum(sizes.values())
    if largest is None or total <= largest:
        return "", ""
    limit = show_size(largest)
    return f"{show_size(total)} of native input exceeds the {limit} limit of this pool", "use http or osdf"

"""Whether what an experiment asks for fits its cluster: hosts, wall time, and what has to travel."""

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


def too_small_hosts(cluster: ClusterProfile, wanted: ResourcesKeys) -> tuple[str, str]:
    """Where the hosts are known and none could run a job: a sentence, and what to do."""
    hosts = known_hosts(cluster)
    if not hosts or any(one.cpus >= wanted.cpus and one.gpus >= wanted.gpus for one in hosts.values()):
        return "", ""
    here = [f": this machine has {sized(one.cpus, one.gpus)}" for one in hosts.values()]
    asked = sized(wanted.cpus, wanted.gpus)
    return f"no host of cluster {cluster.name} has {asked}", "ask for less" + (
        "" if cluster.hosts else here[0]
    )


def sized(cpus: int, gpus: int) -> str:
    """`4 cpus and 1 gpu`."""
    return f"{counted(cpus, 'cpu')} and {counted(gpus, 'gpu')}"


def about_attempts(spec: Spec) -> str:
    """What the cluster's limit means for a training that wants more; nothing if it does not."""
    needed = attempts_needed(spec)
    if needed == 1:
        return ""
    long, its_unit = in_one_unit(spec.resources.time)
    word = {"d": "day", "h": "hour", "min": "minute", "s": "second"}[its_unit]
    return (
        f"this cluster ends jobs after {show_limit(spec.job_time)}; "
        f"your {long:g}-{word} training will take about {needed:,} attempts"
    )


def too_few_attempts(spec: Spec) -> list[tuple[tuple[str, str], str, str]]:
    """Limits under which a run is given up before it has had the time that it wants."""
    needed, limits, wanted = attempts_needed(spec), spec.limits, show_duration(spec.resources.time)
    if needed == 1:
        return []
    found = []
    if limits.attempts < needed:
        text = (
            f"{counted(limits.attempts, 'attempt')} {'is' if limits.attempts == 1 else 'are'} too few "
            f"for {wanted} in jobs of {show_duration(spec.job_time)}"
        )
        found.append((("limits", "attempts"), text, f"write {needed * 2:,}"))
    if limits.total <= spec.resources.time:
        text = f"{show_duration(limits.total)} leaves no time for waiting beside a training of {wanted}"
        number, unit = in_one_unit(2 * spec.resources.time)
        found.append((("limits", "total"), text, f"write {number:g}{unit}"))
    return found


def native_input(spec: Spec, cluster: ClusterProfile, directory: Path) -> dict[str, int]:
    """What HTCondor's own transfer would carry to each job, in bytes, by what it is."""
    sizes = {"code": 0, "container": 0, "data": 0}
    with suppress(OSError, ValueError):  # packing it says what is wrong with it
        sizes["code"] = code_archive.size(directory, spec.code)
    image = Path(cluster.site.container)
    with suppress(OSError, ValueError):  # a URL, or a file of another machine's
        sizes["container"] = image.stat().st_size if image.is_file() else 0
    for item in spec.data:
        # URLs go past the pool's limit: a plugin fetches them on the node.
        if item.method == "native" and item.urls[0].startswith("file:"):
            with suppress(OSError, ValueError):  # that it is not there has been said
                sizes["data"] += Path(path_of(item.urls[0])).stat().st_size
    return sizes


def too_much_input(sizes: Mapping[str, int], largest: int | None) -> tuple[str, str]:
    """What is over the pool's limit for native transfer: a sentence, and what to do."""
    total = sum(sizes.values())
    if largest is None or total <= largest:
        return "", ""
    limit = show_size(largest)
    return f"{show_size(total)} of native input is over the {limit} limit of this pool", "use http or osdf"

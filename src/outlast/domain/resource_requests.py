"""What the next attempt of a run requests: more, after one that ran out of memory, disk or time.

Time grows only for runs that start from the beginning: others resume. Every request is limited by `limits` in
`params.yaml` and by the largest host of the cluster, and no resource shrinks again before a retry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, inf

from outlast.domain.model import Attempt, Cause, Ending, Outcome, Run, Spec
from outlast.units import show_limit, show_size

#: Each request is this many times the one before, or this many times the measured peak if that was more.
GROWTH = 2.0
ABOVE_PEAK = 1.5
#: Without a limit in `params.yaml`: the most, as a multiple of `resources`.
MOST_GROWTH = 4
#: Memory and disk are requested in multiples of this, in bytes.
GRAIN = 10**8


@dataclass(frozen=True)
class ResourceRequest:
    """The memory and disk in bytes, and the time in seconds, that an attempt requests."""

    memory: int
    disk: int
    time: float


@dataclass(frozen=True)
class Growth:
    """The request of the next attempt and of the last one; `wanted` is what it would be without limits."""

    before: ResourceRequest
    wanted: ResourceRequest
    request: ResourceRequest
    #: The most memory that an attempt may request, in bytes.
    most_memory: float


def next_request(run: Run, spec: Spec, memory: int | None = None, disk: int | None = None) -> Growth:
    """Return what the next attempt of `run` requests.

    `memory` and `disk` are what the largest host of the cluster has; None: unknown.
    """
    base, limits, last = spec.resources, spec.limits, run.last
    before = ResourceRequest(
        max(base.memory, run.memory or 0), max(base.disk, run.disk or 0), max(spec.job_time, run.time or 0.0)
    )
    wanted = before
    if last is not None and last.lacked_memory:
        above_peak = ABOVE_PEAK * (last.peak or 0) if (last.peak or 0) > before.memory else 0.0
        wanted = replace(wanted, memory=_round_up(above_peak or GROWTH * before.memory))
    elif last is not None and _lacked_disk(last, spec):
        wanted = replace(wanted, disk=_round_up(GROWTH * before.disk))
    elif last is not None and last.unsaved:
        wanted = replace(wanted, time=GROWTH * before.time)
    longest: float | None = spec.profile.get("longest")
    most_memory = min(limits.memory or MOST_GROWTH * base.memory, memory or inf)
    most_disk = min(limits.disk or MOST_GROWTH * base.disk, disk or inf)
    most_time = min(limits.time or MOST_GROWTH * spec.job_time, longest or inf)
    request = ResourceRequest(
        int(max(before.memory, min(wanted.memory, most_memory))),
        int(max(before.disk, min(wanted.disk, most_disk))),
        max(before.time, min(wanted.time, most_time)),
    )
    return Growth(before, wanted, request, most_memory)


def raised(growth: Growth, spec: Spec) -> Mapping[str, int | float]:
    """Return the resources of which the attempt requests more than `Spec.resources`, for its entry.

    `most`: it has the most memory that an attempt may request.
    """
    base = {"memory": spec.resources.memory, "disk": spec.resources.disk, "time": spec.job_time}
    found = {key: value for key, value in vars(growth.request).items() if value > base[key]}
    return {**found, "most": True} if "memory" in found and _is_most(growth) else found


def _is_most(growth: Growth) -> bool:
    return growth.request.memory >= growth.most_memory


def describe(growth: Growth, decided: str) -> str:
    """Return what follows: `decided`, and of what the next attempt requests more, or why it does not."""
    before, wanted, request = growth.before, growth.wanted, growth.request
    if request.memory > before.memory:
        most = ", the most that is allowed; an identical failure will fail the run"
        return "retrying with %s of memory instead of %s%s" % (
            show_size(request.memory),
            show_size(before.memory),
            most if _is_most(growth) else "",
        )
    if wanted.memory > before.memory:
        most = "limits.memory or the largest host allows no more than %s of memory" % show_size(before.memory)
        return "%s; %s" % (decided, most)
    if request.disk > before.disk:
        return "%s, with %s of disk instead of %s" % (
            decided,
            show_size(request.disk),
            show_size(before.disk),
        )
    if request.time > before.time:
        return "%s; with %s instead of %s" % (decided, show_limit(request.time), show_limit(before.time))
    return decided


def apply_request(spec: Spec, attempt: Attempt) -> Spec:
    """Return the spec with the resources that this attempt requests."""
    changes = {key: getattr(attempt, key) for key in ("memory", "disk", "time") if getattr(attempt, key)}
    return replace(spec, resources=replace(spec.resources, **changes)) if changes else spec


def _lacked_disk(last: Ending, spec: Spec) -> bool:
    """Return True if the job may succeed on a host with more disk, and jobs there request disk at all."""
    if last.outcome is not Outcome.OUT_OF_DISK or last.cause is Cause.ACCESS_POINT:
        return False
    templates = [str(spec.profile.get(key, "")) for key in ("cpus", "memory", "gpus")]
    return spec.profile.get("scheduler") == "htcondor" or any("{disk_gb}" in text for text in templates)


def _round_up(size: float) -> int:
    return ceil(size / GRAIN) * GRAIN

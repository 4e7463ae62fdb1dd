"""What attempts were allocated and what they used of it: queue time, CPUs, GPUs and memory.

The node program measures what the training uses (see `node.diagnosis.usage`). A job that was killed before
its first heartbeat has no measurement, and its time does not count for an efficiency.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from outlast.domain.model import Attempt, Resources

HOUR = 3600.0


@dataclass(frozen=True)
class ResourceUse:
    """The resources of one attempt, or of several together; times in seconds, memory in bytes."""

    #: Seconds in the queue.
    queue: float = 0.0
    #: Allocated: seconds of the slot, times CPUs or GPUs.
    cpu_allocated: float = 0.0
    gpu_allocated: float = 0.0
    #: The part of these that was measured, and how much of that was used.
    cpu_measured: float = 0.0
    cpu_used: float = 0.0
    gpu_measured: float = 0.0
    gpu_used: float = 0.0
    #: The most that an attempt used, and what it had requested; 0: not measured.
    memory: int = 0
    memory_requested: int = 0

    @property
    def cpu_efficiency(self) -> float | None:
        """The share of the measured CPU time that was used; None: nothing was measured."""
        return self.cpu_used / self.cpu_measured if self.cpu_measured else None

    @property
    def gpu_efficiency(self) -> float | None:
        """The same of the GPUs, as nvidia-smi counts: the share of the time in which they were busy."""
        return self.gpu_used / self.gpu_measured if self.gpu_measured else None

    @property
    def memory_efficiency(self) -> float | None:
        """The share of the requested memory that was used at most; None: it was not measured."""
        return self.memory / self.memory_requested if self.memory and self.memory_requested else None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "queue": round(self.queue, 3),
            "cpu_hours": self.cpu_allocated / HOUR,
            "gpu_hours": self.gpu_allocated / HOUR,
            "cpu_hours_used": self.cpu_used / HOUR if self.cpu_measured else None,
            "cpu_efficiency": self.cpu_efficiency,
            "gpu_efficiency": self.gpu_efficiency,
            "memory": self.memory or None,
            "memory_requested": self.memory_requested or None,
            "memory_efficiency": self.memory_efficiency,
        }


def of_attempt(attempt: Attempt, requested: Resources, slot: float) -> ResourceUse:
    """Return the use of an attempt that has ended; `requested` is what its run requests now."""
    account = attempt.account
    cpus, gpus = attempt.cpus, attempt.gpus
    if cpus is None or gpus is None:  # recorded by an earlier version
        cpus, gpus = requested.cpus, requested.gpus
    legs = account.legs
    measured = [leg for leg in legs if leg.cpu is not None]
    cpu_time = slot if len(measured) == len(legs) else min(slot, sum(leg.logged for leg in measured))
    with_gpu = [leg for leg in legs if leg.gpu is not None] if gpus else []
    gpu_time = slot if len(with_gpu) == len(legs) else min(slot, sum(leg.logged for leg in with_gpu))
    weights = sum(leg.logged for leg in with_gpu)
    busy = sum((leg.gpu or 0.0) * leg.logged for leg in with_gpu) / weights if weights else 0.0
    return ResourceUse(
        queue=account.queue,
        cpu_allocated=cpus * slot,
        gpu_allocated=gpus * slot,
        cpu_measured=cpus * cpu_time,
        cpu_used=min(sum(leg.cpu or 0.0 for leg in measured), cpus * cpu_time) if measured else 0.0,
        gpu_measured=gpus * gpu_time if weights else 0.0,
        gpu_used=gpus * gpu_time * busy,
        memory=max((leg.resident or 0 for leg in legs), default=0) or account.memory or 0,
        memory_requested=attempt.memory or requested.memory,
    )


def total(uses: Iterable[ResourceUse]) -> ResourceUse:
    """Return the sums; the memory is that of the attempt that used the most of what it had requested."""
    queue = cpu_allocated = gpu_allocated = cpu_measured = cpu_used = gpu_measured = gpu_used = 0.0
    largest, memory, requested = -1.0, 0, 0
    for use in uses:
        queue += use.queue
        cpu_allocated += use.cpu_allocated
        gpu_allocated += use.gpu_allocated
        cpu_measured += use.cpu_measured
        cpu_used += use.cpu_used
        gpu_measured += use.gpu_measured
        gpu_used += use.gpu_used
        share = use.memory_efficiency
        if share is not None and share > largest:
            largest, memory, requested = share, use.memory, use.memory_requested
    return ResourceUse(
        queue,
        cpu_allocated,
        gpu_allocated,
        cpu_measured,
        cpu_used,
        gpu_measured,
        gpu_used,
        memory,
        requested,
    )

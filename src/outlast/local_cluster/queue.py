"""The queue of jobs: first come, first served, without starvation of large jobs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from outlast.local_cluster.hosts import Need, Slots
from outlast.local_cluster.job import JobState, LocalJob

#: After this time a job that others overtook reserves the hosts on which it could run.
PASSED_OVER_SECONDS = 60.0


class JobQueue:
    """One queue per kind of need, so that finding the next job does not scan all of them.

    A job that ends while it waits stays in its queue and is dropped when it reaches the front.
    """

    def __init__(self) -> None:
        self._queues: dict[Need, deque[LocalJob]] = {}

    def add(self, job: LocalJob) -> None:
        self._queues.setdefault(job.request.need, deque()).append(job)

    def put_back(self, job: LocalJob) -> None:
        self._queues.setdefault(job.request.need, deque()).appendleft(job)

    def __iter__(self) -> Iterator[LocalJob]:
        return (job for queue in self._queues.values() for job in queue if job.phase is JobState.QUEUED)

    def __bool__(self) -> bool:
        return next(iter(self), None) is not None

    def pop_next(self, slots: Slots, now: float) -> tuple[LocalJob, str] | None:
        """Remove and return the next job to start, with its host; None if no queued job fits now."""
        if not slots.any_free:
            return None
        passed: list[LocalJob] = []
        reserved: set[str] = set()
        for job in self._heads():
            host = slots.find(job.request.need, reserved)
            if host is not None:
                for other in passed:
                    other.passed_over = now if other.passed_over is None else other.passed_over
                self._queues[job.request.need].popleft()
                return job, host
            passed.append(job)
            if job.passed_over is not None and now - job.passed_over >= PASSED_OVER_SECONDS:
                reserved.update(slots.hosts_that_fit(job.request.need))
        return None

    def _heads(self) -> list[LocalJob]:
        """Return the first job of each queue, in the order of submission."""
        for need, queue in list(self._queues.items()):
            while queue and queue[0].phase is not JobState.QUEUED:
                queue.popleft()
            if not queue:
                del self._queues[need]
        return sorted((queue[0] for queue in self._queues.values()), key=lambda job: job.id)

"""The jobs that wait, and which of them starts next: first come first served, and no one for ever last."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from outlast.local_cluster.hosts import Need, Slots
from outlast.local_cluster.job import JobState, LocalJob

#: A job passed over for this long keeps later ones from the hosts it could run on.
PASSED_OVER_SECONDS = 60.0


class JobQueue:
    """One line for each kind of need, so that finding the next job costs no look at all the others.

    A job that ends while it waits stays in its line and is dropped when it comes to the front.
    """

    def __init__(self) -> None:
        self._lines: dict[Need, deque[LocalJob]] = {}

    def add(self, job: LocalJob) -> None:
        self._lines.setdefault(job.request.need, deque()).append(job)

    def put_back(self, job: LocalJob) -> None:
        self._lines.setdefault(job.request.need, deque()).appendleft(job)

    def __iter__(self) -> Iterator[LocalJob]:
        return (job for line in self._lines.values() for job in line if job.phase is JobState.QUEUED)

    def __bool__(self) -> bool:
        return next(iter(self), None) is not None

    def take_next(self, slots: Slots, now: float) -> tuple[LocalJob, str] | None:
        """The next job to start and its host; None if nothing that waits fits now."""
        if not slots.any_free:
            return None
        passed: list[LocalJob] = []
        reserved: set[str] = set()
        for job in self._heads():
            host = slots.find(job.request.need, reserved)
            if host is not None:
                for other in passed:
                    other.passed_over = now if other.passed_over is None else other.passed_over
                self._lines[job.request.need].popleft()
                return job, host
            passed.append(job)
            if job.passed_over is not None and now - job.passed_over >= PASSED_OVER_SECONDS:
                reserved.update(slots.could_ever_hold(job.request.need))
        return None

    def _heads(self) -> list[LocalJob]:
        """The first of each line, in the order of submission."""
        for need, line in list(self._lines.items()):
            while line and line[0].phase is not JobState.QUEUED:
                line.popleft()
            if not line:
                del self._lines[need]
        return sorted((line[0] for line in self._lines.values()), key=lambda job: job.id)

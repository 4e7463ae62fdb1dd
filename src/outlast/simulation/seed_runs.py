"""Runs of many seeds, in several processes."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from outlast.simulation.schedule import simulate

#: Seeds per task of a process.
CHUNK = 50


@dataclass(frozen=True)
class SeedFailure:
    """A seed that broke a promise."""

    seed: int
    text: str

    def __str__(self) -> str:
        return "seed %d: %s\n    rerun: %s" % (self.seed, self.text, rerun_line(self.seed))


@dataclass(frozen=True)
class SeedRuns:
    """The result of running a range of seeds."""

    first: int
    #: The seed after the last one.
    end: int
    seconds: float
    failures: tuple[SeedFailure, ...]

    def __str__(self) -> str:
        count = self.end - self.first
        rate = count / self.seconds if self.seconds else float("inf")
        return "seeds %d:%d: %d schedules in %.1f s (%.0f a second), %d failed" % (
            self.first,
            self.end,
            count,
            self.seconds,
            rate,
            len(self.failures),
        )


def rerun_line(seed: int) -> str:
    """Return the command that runs one seed with a trace."""
    return "python -m outlast.simulation --seed %d -v" % seed


def run_seeds(
    first: int, end: int, jobs: int = 1, found: Callable[[SeedFailure], None] = lambda failure: None
) -> SeedRuns:
    """Simulate the seeds from `first` to `end` - 1; `found` is called with each failure."""
    began = time.monotonic()
    chunks = [(begin, min(begin + CHUNK, end)) for begin in range(first, end, CHUNK)]
    failures: list[SeedFailure] = []
    for chunk_failures in _failures_of(chunks, jobs):
        for failure in chunk_failures:
            failures.append(failure)
            found(failure)
    failures.sort(key=lambda failure: failure.seed)
    return SeedRuns(first, end, time.monotonic() - began, tuple(failures))


def _failures_of(chunks: list[tuple[int, int]], jobs: int) -> Iterator[list[SeedFailure]]:
    if jobs <= 1:
        yield from map(_run_chunk, chunks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(_run_chunk, chunks)


def _run_chunk(chunk: tuple[int, int]) -> list[SeedFailure]:
    return [
        SeedFailure(seed, str(violation))
        for seed in range(*chunk)
        for violation in simulate(seed)[:1]  # later ones often follow from the first
    ]

"""The processes of one training run (torchrun, several ranks), and how they agree.

All processes make each of these calls at the same place of the script. They use a process group of their own
on the CPU, so nothing mixes with the messages of the training or waits for a device.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager, suppress
from typing import Any, Callable, Iterator, TypeVar

from outlast.training.checkpoints.durable_files import open_descriptor
from outlast.training.checkpoints.file_format import part_name
from outlast.training.errors import CheckpointError

T = TypeVar("T")


class Ranks:
    """A single process; also the interface for several."""

    rank = 0
    world = 1

    def broadcast(self, make: Callable[[], T]) -> T:
        """Return what `make` returns in the first process, in all of them; raise what it raises there."""
        return make()

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, in order of rank."""
        return [value]

    def any_rank(self, *flags: bool) -> tuple[bool, ...]:
        """Return for each flag whether it is set in any process."""
        return flags

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """Raise in all processes what the body of the `with` raises in any of them.

        A process whose own body has not failed raises CheckpointError. The body must make no other call of
        this class: a process that has failed would not take part in it.
        """
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            failure = error
        reasons = self.gather(None if failure is None else "%s: %s" % (type(failure).__name__, failure))
        if failure is not None:
            raise failure
        for rank, reason in enumerate(reasons):
            if reason is not None:
                raise CheckpointError("process %d of %d has failed: %s" % (rank, self.world, reason))


class DistributedRanks(Ranks):
    """The processes of torch.distributed, with a gloo group of their own."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._dist = torch.distributed
        self.rank, self.world = self._dist.get_rank(), self._dist.get_world_size()
        self._group = self._dist.new_group(backend="gloo")

    def broadcast(self, make: Callable[[], T]) -> T:
        shared: list[Any] = [None]
        if self.rank == 0:
            try:
                shared = [(make(), None)]
            except Exception as error:
                shared = [(None, error)]
        self._dist.broadcast_object_list(shared, src=0, group=self._group)
        value, failure = shared[0]
        if failure is not None:
            raise failure
        return value  # type: ignore[no-any-return]

    def gather(self, value: T) -> list[T]:
        shared: list[Any] = [None] * self.world
        self._dist.all_gather_object(shared, value, group=self._group)
        return shared

    def any_rank(self, *flags: bool) -> tuple[bool, ...]:
        counts = self._torch.tensor([int(flag) for flag in flags])
        self._dist.all_reduce(counts, group=self._group)
        return tuple(bool(count) for count in counts.tolist())


def detect_ranks() -> Ranks:
    """Return the processes of torch.distributed, as initialized by now."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return Ranks()
    return DistributedRanks(torch) if distributed.get_world_size() > 1 else Ranks()


# The parts of a checkpoint are combined through files alone, because the process group belongs to the
# training, which continues meanwhile. If a process fails, the others give up; nothing counts until the
# directory has its final name.
#: Seconds to wait for the part of another process. A part is written within minutes.
_TIMEOUT = 1800.0
#: Suffix of a marker file: the process could not write its part.
_FAILED = ".failed"
_PAUSES = (0.001, 0.01, 0.05, 0.2)


def await_parts(directory: str, world: int, check: Callable[[], None]) -> None:
    """Wait until all parts are written. Raises OSError, and what `check` raises."""
    missing = [os.path.join(directory, part_name(rank, world)) for rank in range(world)]

    def are_all_there() -> bool:
        if not os.path.isdir(directory):
            raise FileNotFoundError("%s was removed" % directory)
        for path in missing:
            if os.path.exists(path + _FAILED):
                raise OSError("another process could not write its part, %s" % os.path.basename(path))
        missing[:] = [path for path in missing if not os.path.exists(path)]
        return not missing

    _poll(are_all_there, check, lambda: "%s was not written by its process" % missing[0])


def mark_part_failed(part: str) -> None:
    """Create the marker that tells the first process not to wait for this part; ignore errors."""
    with suppress(OSError), open_descriptor(part + _FAILED, os.O_WRONLY | os.O_CREAT):
        return


def await_commit(temporary: str, final: str) -> None:
    """Wait until the first process has given the checkpoint its final name. Raises OSError."""

    def check_not_discarded() -> None:
        # Checked in this order, because the first is renamed to the second.
        if not os.path.exists(temporary) and not os.path.exists(final):
            raise OSError("the first process has discarded this checkpoint")

    _poll(
        lambda: os.path.exists(final),
        check_not_discarded,
        lambda: "the first process did not finish %s" % final,
    )


def _poll(
    happened: Callable[[], bool], check: Callable[[], None], timeout_message: Callable[[], str]
) -> None:
    """Poll until `happened` returns True; call `check` every 20 polls. Raises OSError at the timeout."""
    until = time.monotonic() + _TIMEOUT
    polls = 0
    while not happened():
        if time.monotonic() > until:
            raise OSError(timeout_message())
        pause = _PAUSES[min(polls // 20, len(_PAUSES) - 1)]
        if polls % 20 == 19:
            check()
        polls += 1
        time.sleep(pause)

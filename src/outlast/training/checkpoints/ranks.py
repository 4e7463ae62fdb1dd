"""The processes of one training (torchrun, several ranks), and how they come to one mind.

Every call here is one that all of them make at the same place of the script. They talk over a group of their
own on the CPU, so that nothing mixes with the training's own messages or waits for a device.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import Any, Callable, TypeVar

from outlast.training.checkpoints.durable_files import descriptor
from outlast.training.checkpoints.file_format import part_name

T = TypeVar("T")


class Ranks:
    """One process alone."""

    rank = 0
    world = 1

    def share(self, make: Callable[[], T]) -> T:
        """What the first process makes of it, for all: its value, or what it raises."""
        return make()

    def gather(self, value: T) -> list[T]:
        """Everybody's value, in order."""
        return [value]

    def any_of(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag whether any process has it set."""
        return flags


class Group(Ranks):
    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._dist = torch.distributed
        self.rank, self.world = self._dist.get_rank(), self._dist.get_world_size()
        self._group = self._dist.new_group(backend="gloo")

    def share(self, make: Callable[[], T]) -> T:
        told: list[Any] = [None]
        if self.rank == 0:
            try:
                told = [(make(), None)]
            except Exception as error:
                told = [(None, error)]
        self._dist.broadcast_object_list(told, src=0, group=self._group)
        value, failure = told[0]
        if failure is not None:
            raise failure
        return value  # type: ignore[no-any-return]

    def gather(self, value: T) -> list[T]:
        told: list[Any] = [None] * self.world
        self._dist.all_gather_object(told, value, group=self._group)
        return told

    def any_of(self, *flags: bool) -> tuple[bool, ...]:
        counts = self._torch.tensor([int(flag) for flag in flags])
        self._dist.all_reduce(counts, group=self._group)
        return tuple(bool(count) for count in counts.tolist())


def find() -> Ranks:
    """The processes that torch.distributed has brought together by now."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return Ranks()
    return Group(torch) if distributed.get_world_size() > 1 else Ranks()


# How the parts of one checkpoint, written by several processes, become one: by files alone.
#
# Messages between the processes belong to the training, which goes on meanwhile. Who finds that another has
# died gives up; nothing counts until the directory has its name.
#: Seconds after which a process that has not written its part is given up. A part is written in minutes.
_PATIENCE = 1800.0
#: Beside the name of a part: its process could not write it.
_FAILED = ".failed"
_PAUSES = (0.001, 0.01, 0.05, 0.2)


def await_parts(directory: str, world: int, check: Callable[[], None]) -> None:
    """Until all parts are there and durable. Raises OSError, and what `check` raises."""
    missing = [os.path.join(directory, part_name(rank, world)) for rank in range(world)]

    def there() -> bool:
        if not os.path.isdir(directory):
            raise FileNotFoundError("%s was removed" % directory)
        for path in missing:
            if os.path.exists(path + _FAILED):
                raise OSError("another process could not write its part, %s" % os.path.basename(path))
        missing[:] = [path for path in missing if not os.path.exists(path)]
        return not missing

    _until(there, check, lambda: "%s is not written by its process" % missing[0])


def give_up(part: str) -> None:
    """Tell the first process not to wait for this part; where not even that can be written, it waits."""
    with suppress(OSError), descriptor(part + _FAILED, os.O_WRONLY | os.O_CREAT):
        return


def await_commit(temporary: str, final: str) -> None:
    """Until the first process has given the whole its name. Raises OSError."""

    def gone() -> None:
        # Looked for in this order: it is renamed from the one to the other.
        if not os.path.exists(temporary) and not os.path.exists(final):
            raise OSError("the first process has given up this checkpoint")

    _until(lambda: os.path.exists(final), gone, lambda: "%s is not finished by the first process" % final)


def _until(happened: Callable[[], bool], check: Callable[[], None], complaint: Callable[[], str]) -> None:
    until = time.monotonic() + _PATIENCE
    looks = 0
    while not happened():
        if time.monotonic() > until:
            raise OSError(complaint())
        pause = _PAUSES[min(looks // 20, len(_PAUSES) - 1)]
        if looks % 20 == 19:
            check()
        looks += 1
        time.sleep(pause)

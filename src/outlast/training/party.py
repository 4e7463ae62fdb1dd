"""The processes of one training (torchrun, several ranks), and how they come to one mind.

Every call here is one that all of them make at the same place of the script. They talk over a group of their
own on the CPU, so that nothing mixes with the training's own messages or waits for a device.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, TypeVar

T = TypeVar("T")


class Party:
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


class Group(Party):
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


def find() -> Party:
    """The processes that torch.distributed has brought together by now."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return Party()
    return Group(torch) if distributed.get_world_size() > 1 else Party()

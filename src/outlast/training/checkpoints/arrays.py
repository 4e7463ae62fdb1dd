"""Arrays of any library as nodes of a tree and buffers.

Those that share memory are kept in one buffer, so that they share it again after loading.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import Any, Callable, Iterable, NamedTuple, Tuple, Union

from outlast.training.errors import CheckpointError, Damaged

_MAX_DIMENSIONS = 64


@dataclass(frozen=True)
class Buffer:
    """Bytes that have to be put in order on their way into a checkpoint."""

    nbytes: int
    fill: Callable[[memoryview], None]


class RawMemory(NamedTuple):
    """Bytes that lie at an address, in this order, for as long as there is their owner."""

    nbytes: int
    address: int
    owner: Any


class ArraySource:
    """Where buffers come from when a state is put together."""

    #: Whether the machine that wrote them has the other order of bytes.
    is_swapped = False

    def memory(self, offset: int, nbytes: int) -> memoryview:
        """The buffer where it lies, writable and nobody else's. Raises Damaged unless it is there."""
        raise NotImplementedError

    def copy(self, offset: int, nbytes: int) -> bytearray:
        """A copy of it. Raises Damaged when copies of more than there is are asked for."""
        raise NotImplementedError

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` returns, made once for each key."""
        raise NotImplementedError


Place = Callable[[Union[Buffer, RawMemory]], int]
#: The kind of memory, and where it begins and ends.
Span = Tuple[str, int, int]


class Leaf:
    """An array on its way into a checkpoint."""

    #: Where it lies; None for one that has no memory of its own or whose memory does not tell all of it.
    span: Span | None = None

    def dense(self, place: Place) -> list[Any]:
        """Its node, with its elements in a buffer of its own."""
        raise NotImplementedError

    def view(self, start: int, nbytes: int, offset: int) -> list[Any]:
        """Its node, with its elements in a buffer that holds the memory from address `start` on."""
        raise NotImplementedError

    def memory(self, start: int, nbytes: int) -> Buffer | RawMemory:
        """That buffer."""
        raise NotImplementedError


def settle(leaves: Iterable[tuple[Leaf, list[Any]]], place: Place) -> None:
    """Fill in the node of each leaf, once all of them, and so all that share memory, are known."""
    found = list(leaves)
    together = _clusters([one.span for one, _ in found if one.span is not None])
    offsets: dict[Span, int] = {}
    for one, node in found:
        cluster = together.get(one.span) if one.span is not None else None
        if cluster is None:
            node[:] = one.dense(place)
            continue
        _, start, end = cluster
        if cluster not in offsets:
            offsets[cluster] = place(one.memory(start, end - start))
        node[:] = one.view(start, end - start, offsets[cluster])


def _clusters(spans: list[Span]) -> dict[Span, Span]:
    """For each span that overlaps another (or is there twice): what they cover together."""
    found: dict[Span, Span] = {}
    members: list[Span] = []

    def close() -> None:
        if len(members) > 1:
            covered = (members[0][0], members[0][1], max(end for _, _, end in members))
            found.update((member, covered) for member in members)

    reach = 0
    for span in sorted(spans):
        if not members or span[0] != members[0][0] or span[1] >= reach:
            close()
            members = []
            reach = span[2]
        members.append(span)
        reach = max(reach, span[2])
    close()
    return found


def shape_of(lengths: Any) -> tuple[int, ...]:
    if type(lengths) is not list or len(lengths) > _MAX_DIMENSIONS:
        raise Damaged("an array in it has no proper shape")
    if any(type(length) is not int or not 0 <= length < 2**62 for length in lengths):
        raise Damaged("an array in it has no proper shape")
    return tuple(lengths)


def count(shape: Iterable[int]) -> int:
    total = 1
    for length in shape:
        total *= length
    return total


def reach(shape: Iterable[int], strides: Iterable[int]) -> tuple[int, int]:
    """How far before and behind its first element an array with elements has others."""
    steps = [(length - 1) * stride for length, stride in zip(shape, strides)]
    return sum(step for step in steps if step < 0), sum(step for step in steps if step > 0)


def library(name: str, what: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise CheckpointError(
            "a checkpoint holds %s, but %s cannot be imported by %s (%s); install it there"
            % (what, name, sys.executable, error)
        ) from error

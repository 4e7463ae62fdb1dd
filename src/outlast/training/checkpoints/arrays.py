"""Arrays of any library as nodes of a tree and buffers.

Arrays that share memory are stored in one buffer, so that they share it again after loading.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import Any, Callable, Iterable, NamedTuple, Tuple, Union

from outlast.training.errors import CheckpointError, Damaged

_MAX_DIMENSIONS = 64
#: Arrays that share memory may show the bytes of a file this many times in all, and always a gigabyte: an
#: expanded tensor needs little memory, but a copy of it may need more than there is.
_MAX_REPEATS = 1000
_ALWAYS_SHOWN = 2**30


@dataclass(frozen=True)
class Buffer:
    """Bytes that have to be put in order when they are copied into a checkpoint."""

    nbytes: int
    fill: Callable[[memoryview], None]


class RawMemory(NamedTuple):
    """Bytes at an address, already in order; valid while `owner` exists."""

    nbytes: int
    address: int
    owner: Any


class ArraySource:
    """The buffers of a checkpoint that is being loaded."""

    #: True if the machine that wrote them has the other byte order.
    is_swapped = False

    def shared(self, offset: int, nbytes: int, shown: int) -> memoryview:
        """Return a buffer that several arrays share, as private writable memory, not copied.

        `shown` is the number of bytes that a copy of the array has. Raises Damaged if the buffer is out of
        range, or if all arrays show more than `max_shown`.
        """
        raise NotImplementedError

    def own(self, offset: int, nbytes: int) -> memoryview:
        """Return the buffer of a single value, as private writable memory, not copied.

        Raises Damaged if it is out of range, or if these buffers exceed the size of the file in total.
        """
        raise NotImplementedError

    def cached(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return what `make` returns, calling it once per key."""
        raise NotImplementedError


PlaceBuffer = Callable[[Union[Buffer, RawMemory]], int]
#: Kind of memory, first address, end address.
Span = Tuple[str, int, int]


class Leaf:
    """An array that is being saved."""

    #: The bytes of a copy.
    nbytes = 0
    #: The memory of the array; None if it has none of its own or if the memory alone does not determine it.
    span: Span | None = None

    def dense(self, place: PlaceBuffer) -> list[Any]:
        """Return its node, with the elements in a buffer of its own."""
        raise NotImplementedError

    def view(self, start: int, nbytes: int, offset: int) -> list[Any]:
        """Return its node, with the elements in a buffer that holds the memory from address `start` on."""
        raise NotImplementedError

    def memory(self, start: int, nbytes: int) -> Buffer | RawMemory:
        """Return the buffer with the memory from address `start` on."""
        raise NotImplementedError


def fill_nodes(leaves: Iterable[tuple[Leaf, list[Any]]], place: PlaceBuffer) -> int:
    """Fill in the node of each leaf; return the bytes that those with shared memory show.

    All leaves must be known, so that shared memory is found.
    """
    found = list(leaves)
    shown = 0
    clusters = _clusters([one.span for one, _ in found if one.span is not None])
    offsets: dict[Span, int] = {}
    for one, node in found:
        cluster = clusters.get(one.span) if one.span is not None else None
        if cluster is None:
            node[:] = one.dense(place)
            continue
        _, start, end = cluster
        if cluster not in offsets:
            offsets[cluster] = place(one.memory(start, end - start))
        node[:] = one.view(start, end - start, offsets[cluster])
        shown += one.nbytes
    return shown


def max_shown(size: int) -> int:
    """Return how many bytes arrays with shared memory may show in all, in a file of `size` bytes."""
    return max(_ALWAYS_SHOWN, _MAX_REPEATS * size)


def _clusters(spans: list[Span]) -> dict[Span, Span]:
    """Map each span that overlaps another (or occurs twice) to the span that covers all of them."""
    found: dict[Span, Span] = {}
    members: list[Span] = []

    def close() -> None:
        if len(members) > 1:
            covered = (members[0][0], members[0][1], max(end for _, _, end in members))
            found.update((member, covered) for member in members)

    extent = 0
    for span in sorted(spans):
        if not members or span[0] != members[0][0] or span[1] >= extent:
            close()
            members = []
            extent = span[2]
        members.append(span)
        extent = max(extent, span[2])
    close()
    return found


def parse_shape(lengths: Any) -> tuple[int, ...]:
    """Return a saved shape as a tuple. Raises Damaged if it is not a list of sizes."""
    if type(lengths) is not list or len(lengths) > _MAX_DIMENSIONS:
        raise Damaged("an array has an invalid shape")
    if any(type(length) is not int or not 0 <= length < 2**62 for length in lengths):
        raise Damaged("an array has an invalid shape")
    return tuple(lengths)


def element_count(shape: Iterable[int]) -> int:
    """Return the number of elements of an array with this shape."""
    total = 1
    for length in shape:
        total *= length
    return total


def extent(shape: Iterable[int], strides: Iterable[int]) -> tuple[int, int]:
    """Return how far the elements of a non-empty array reach before and after its first element."""
    steps = [(length - 1) * stride for length, stride in zip(shape, strides)]
    return sum(step for step in steps if step < 0), sum(step for step in steps if step > 0)


def import_library(name: str, what: str) -> Any:
    """Import a library that a checkpoint needs. Raises CheckpointError if it is not installed."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # also of a library that lacks one of its own
        raise CheckpointError(
            "a checkpoint holds %s, but %s cannot be imported by %s (%s); install it there"
            % (what, name, sys.executable, error)
        ) from error

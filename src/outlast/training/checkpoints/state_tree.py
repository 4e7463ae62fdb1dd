"""A training's state as a tree of JSON values and a list of buffers, and back.

Every container becomes a JSON array whose first element says what it was; plain scalars stay themselves.
Arrays, tensors, bytes and files of others are named by their place among the buffers. Reading builds only
the types listed here, whatever the file says: there is no way from a checkpoint to running code.
"""

from __future__ import annotations

import gc
import math
import re
import struct
import sys
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Any, Callable, Tuple

from outlast.training.checkpoints import arrays, numpy_arrays, torch_tensors
from outlast.training.checkpoints.arrays import ArraySource, Buffer, Leaf, RawMemory
from outlast.training.checkpoints.kept_files import File
from outlast.training.errors import Damaged

#: Deeper than any real state; a bound on recursion for states that are built wrongly or maliciously.
MAX_DEPTH = 100
#: Buffers start at multiples of this, so that a reader may map them as arrays of any type.
ALIGNMENT = 64
_HOLDS = (
    "None, bool, int, float, complex, str, bytes, list, tuple, dict, set, NumPy arrays and scalars, "
    "torch tensors and outlast.File"
)
_KEYS = "None, bool, int, float, str, and tuples of these"
_HEX_INT = re.compile(r"-?0x[0-9a-f]+\Z")
_SEQUENCES: dict[type, str] = {list: "list", tuple: "tuple"}
_SETS: dict[type, str] = {set: "set", frozenset: "frozenset"}
_MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "ordered", Counter: "counter"}
_BYTES: dict[type, str] = {bytes: "bytes", bytearray: "bytearray"}

Path = Tuple[Any, ...]


def aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Image:
    """A state taken apart: a tree for the header, and the buffers that it names."""

    #: Of the state, and of the files that are kept with it.
    tree: Any
    files: Any
    #: Each with its offset, in the order of the file.
    buffers: tuple[tuple[int, Buffer | RawMemory], ...]
    size: int


def take_apart(state: Any, files: Any = None) -> Image:
    """Raises TypeError, naming the place, for anything a checkpoint cannot hold."""
    taker = _Taker()
    collects = gc.isenabled()
    # So many new objects would make it walk through all that a training has, while the training waits.
    gc.disable()
    try:
        tree = taker.node(state, ())
        kept = taker.node(files or {}, ("files",))
        taker.settle()
    finally:
        if collects:
            gc.enable()
    return Image(tree, kept, tuple(taker.buffers), taker.size)


def put_together(tree: Any, source: ArraySource) -> Any:
    """The state; raises Damaged if the tree is not one that `take_apart` makes."""
    try:
        return _Maker(source).value(tree, 0)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, AttributeError) as error:
        raise Damaged("its tree cannot be read: %s" % error) from error


def _where(path: Path) -> str:
    return "state" + "".join("[%.80r]" % (key,) for key in path)


class _Taker:
    def __init__(self) -> None:
        self.buffers: list[tuple[int, Buffer | RawMemory]] = []
        self.size = 0
        self._open: set[int] = set()
        #: Arrays, whose nodes are filled in when all that share their memory are known.
        self._leaves: list[tuple[Leaf, list[Any], Path]] = []

    def settle(self) -> None:
        try:
            arrays.settle([(leaf, node) for leaf, node, _ in self._leaves], self.place)
        except TypeError as error:
            path = next(path for _, node, path in self._leaves if not node)
            raise TypeError("%s %s" % (_where(path), error)) from None

    def place(self, buffer: Buffer | RawMemory) -> int:
        offset = aligned(self.size)
        self.buffers.append((offset, buffer))
        self.size = offset + buffer.nbytes
        return offset

    def node(self, value: Any, path: Path) -> Any:
        kind = type(value)
        if value is None or kind in _SCALARS:
            return _SCALARS[kind](value) if value is not None else None
        if kind in _BYTES:
            return self._bytes(_BYTES[kind], value)
        if kind in _SEQUENCES or kind in _MAPPINGS:
            return self._container(kind, value, path)
        if kind in _SETS:
            return [_SETS[kind]] + [self._hashable(item, path, "in a set") for item in value]
        if kind is File:
            content = value.content()
            return ["file", value.name, *self._bytes("", content)[1:]]
        try:
            leaf = leaf_of(value)
        except TypeError as error:
            raise TypeError("%s %s" % (_where(path), error)) from None
        if leaf is not None:
            node: list[Any] = []
            self._leaves.append((leaf, node, path))
            return node
        hint = "; save its state_dict()" if callable(getattr(value, "state_dict", None)) else ""
        raise TypeError("%s is a %s; a checkpoint holds %s%s" % (_where(path), _name(kind), _HOLDS, hint))

    def _bytes(self, tag: str, value: Any) -> list[Any]:
        view = memoryview(value)

        def fill(target: memoryview) -> None:
            target[:] = view

        return [tag, len(view), self.place(Buffer(len(view), fill))]

    def _container(self, kind: type, value: Any, path: Path) -> Any:
        if id(value) in self._open:
            raise TypeError("%s contains itself; a checkpoint holds a tree" % _where(path))
        if len(path) >= MAX_DEPTH:
            raise TypeError("%s… is nested more than %d deep" % (_where(path[:3]), MAX_DEPTH))
        self._open.add(id(value))
        node: list[Any]
        if kind in _SEQUENCES:
            node = [_SEQUENCES[kind]]
            node += [self.node(item, (*path, index)) for index, item in enumerate(value)]
        else:
            node = [_MAPPINGS[kind]]
            for key, item in value.items():
                node += [self._hashable(key, path, "as a key"), self.node(item, (*path, key))]
        self._open.discard(id(value))
        return node

    def _hashable(self, value: Any, path: Path, role: str, nested: int = 1) -> Any:
        kind = type(value)
        if value is None or kind in _SCALARS:
            return _SCALARS[kind](value) if value is not None else None
        if kind is tuple and len(path) + nested < MAX_DEPTH:
            return ["tuple"] + [self._hashable(item, path, role, nested + 1) for item in value]
        if kind is bytes and role == "in a set":
            return self._bytes("bytes", value)
        raise TypeError(
            "%s has %.80r (a %s) %s; allowed are %s" % (_where(path), value, _name(kind), role, _KEYS)
        )


def _name(kind: type) -> str:
    module = kind.__module__
    return kind.__qualname__ if module in ("builtins", "__main__") else module + "." + kind.__qualname__


def _int_node(value: int) -> Any:
    # Python limits the digits of decimal integers in text, but not of hexadecimal ones.
    return value if -(2**63) <= value < 2**64 else ["int", hex(value)]


def _float_node(value: float) -> Any:
    # The shortest decimal form of a finite float is read back to the same bits; a NaN has bits of its own.
    return value if math.isfinite(value) else ["float", struct.pack(">d", value).hex()]


def _complex_node(value: complex) -> Any:
    return ["complex", struct.pack(">dd", value.real, value.imag).hex()]


def _str_node(value: str) -> Any:
    try:
        value.encode("utf-8")
        return value
    except UnicodeEncodeError:
        # JSON would join two lone surrogates into one character.
        return ["str", value.encode("utf-8", "surrogatepass").hex()]


_SCALARS: dict[type, Callable[[Any], Any]] = {
    bool: lambda value: value,
    int: _int_node,
    float: _float_node,
    complex: _complex_node,
    str: _str_node,
}
_PLAIN: frozenset[type] = frozenset({type(None), bool, int, float, str})


class _Maker:
    def __init__(self, source: ArraySource) -> None:
        self._source = source
        self._revivers = REVIVERS

    def value(self, node: Any, depth: int) -> Any:
        kind = type(node)
        if kind in _PLAIN:
            return node
        if kind is not list or not node or type(node[0]) is not str:
            raise Damaged("its tree has something unknown in it")
        if depth > MAX_DEPTH + 1:
            raise Damaged("its tree is nested too deep")
        tag, rest = node[0], node[1:]
        if tag in ("list", "tuple", "set", "frozenset"):
            items = [self.value(item, depth + 1) for item in rest]
            return {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[tag](items)
        if tag in ("dict", "ordered", "counter"):
            return self._mapping(tag, rest, depth)
        if tag in ("bytes", "bytearray"):
            return self._bytes(tag, *rest)
        if tag == "int" and _HEX_INT.match(rest[0]):
            return int(rest[0], 16)
        if tag == "float":
            return struct.unpack(">d", bytes.fromhex(rest[0]))[0]
        if tag == "complex":
            return complex(*struct.unpack(">dd", bytes.fromhex(rest[0])))
        if tag == "str":
            return bytes.fromhex(rest[0]).decode("utf-8", "surrogatepass")
        if tag in self._revivers:
            return self._revivers[tag](rest, self._source)
        if tag == "file":
            name, length, offset = rest
            return File.of(name, self._source.memory(offset, length))
        raise Damaged("its tree has an unknown kind of value, %.40r" % tag)

    def _mapping(self, tag: str, rest: list[Any], depth: int) -> Any:
        if len(rest) % 2:
            raise Damaged("its tree has a key without a value")
        result: Any = {"dict": dict, "ordered": OrderedDict, "counter": Counter}[tag]()
        for key, item in zip(rest[::2], rest[1::2]):
            revived = self.value(key, depth + 1)
            result[revived] = self.value(item, depth + 1)
        return result

    def _bytes(self, tag: str, length: int, offset: int) -> Any:
        content = self._source.copy(offset, length)
        return content if tag == "bytearray" else bytes(content)


# Which library an array belongs to.
#
# Neither is imported by saving: an object of theirs can only be there if its library is. Reading imports the
# one that a checkpoint needs.
#: What makes an array of its node again, by the node's first word.
REVIVERS = {**numpy_arrays.REVIVERS, **torch_tensors.REVIVERS}


def leaf_of(value: Any) -> Leaf | None:
    """The leaf of an array, a NumPy scalar or a tensor; None for anything else.

    Raises TypeError with the rest of a sentence ("is …") for arrays that cannot be kept.
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "ndarray"):
        found = numpy_arrays.leaf(numpy, value)
        if found is not None:
            return found
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "Tensor"):
        return torch_tensors.leaf(torch, value)
    return None

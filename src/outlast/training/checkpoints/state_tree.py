"""The state of a training run as a tree of JSON values and a list of buffers, and back.

Every container becomes a JSON array whose first element is its type; plain scalars stay as they are. Arrays,
tensors, bytes and files are represented by their offset among the buffers. Loading builds only the types
listed here, whatever the file contains: a checkpoint cannot execute code.
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
from outlast.training.errors import CheckpointError, Damaged

#: Maximum depth, more than any real state has; limits recursion for invalid or malicious states.
MAX_DEPTH = 100
#: Buffers start at multiples of this, so that they can be mapped as arrays of any type.
ALIGNMENT = 64
_ALLOWED = (
    "None, bool, int, float, complex, str, bytes, list, tuple, dict, set, NumPy arrays and scalars, "
    "torch tensors and outlast.File"
)
_ALLOWED_KEYS = "None, bool, int, float, str, and tuples of these"
_HEX_INT = re.compile(r"-?0x[0-9a-f]+\Z")
_SEQUENCES: dict[type, str] = {list: "list", tuple: "tuple"}
_SETS: dict[type, str] = {set: "set", frozenset: "frozenset"}
_MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "ordered", Counter: "counter"}
_BYTES: dict[type, str] = {bytes: "bytes", bytearray: "bytearray"}

Path = Tuple[Any, ...]


def align(offset: int) -> int:
    """Return the first multiple of ALIGNMENT from `offset` on."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class FlatState:
    """A flattened state: a tree for the header, and its buffers."""

    #: The trees of the state and of the kept files.
    tree: Any
    files: Any
    #: Offset and content of each buffer, in the order of the file.
    buffers: tuple[tuple[int, Buffer | RawMemory], ...]
    size: int


def flatten(state: Any, files: Any = None) -> FlatState:
    """Return a state and its kept files as trees and buffers.

    Raises TypeError, naming the place, for anything that a checkpoint cannot hold.
    """
    flattener = _Flattener()
    collects = gc.isenabled()
    # The many new objects would trigger a collection of everything the training has, while it waits.
    gc.disable()
    try:
        tree = flattener.node(state, ())
        kept = flattener.node(files or {}, ("files",))
        flattener.place_arrays()
    finally:
        if collects:
            gc.enable()
    return FlatState(tree, kept, tuple(flattener.buffers), flattener.size)


def unflatten(tree: Any, source: ArraySource) -> Any:
    """Return the state. Raises Damaged if the tree is not one that `flatten` makes.

    Raises CheckpointError for a library or a device that is missing here, and MemoryError.
    """
    try:
        return _Unflattener(source).value(tree, 0)
    except (Damaged, CheckpointError, MemoryError, OSError):
        raise
    except Exception as error:
        # The libraries raise many kinds for values that no array has.
        raise Damaged("its tree cannot be read: %s" % error) from error


def _format_path(path: Path) -> str:
    return "state" + "".join("[%.80r]" % (key,) for key in path)


class _Flattener:
    """Builds the tree of a state and collects its buffers."""

    def __init__(self) -> None:
        self.buffers: list[tuple[int, Buffer | RawMemory]] = []
        self.size = 0
        self._ancestors: set[int] = set()
        #: Arrays with their nodes, which are filled in when all that share memory are known.
        self._leaves: list[tuple[Leaf, list[Any], Path]] = []

    def place_arrays(self) -> None:
        try:
            shown = arrays.fill_nodes([(leaf, node) for leaf, node, _ in self._leaves], self.place)
        except TypeError as error:
            path = next(path for _, node, path in self._leaves if not node)
            raise TypeError("%s %s" % (_format_path(path), error)) from None
        if shown > arrays.max_shown(self.size):
            raise TypeError(
                "arrays in the state that share memory show %d bytes of it, more than a thousand times what "
                "they hold; save them as they were before they were expanded" % shown
            )

    def place(self, buffer: Buffer | RawMemory) -> int:
        offset = align(self.size)
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
            leaf = make_leaf(value)
        except TypeError as error:
            raise TypeError("%s %s" % (_format_path(path), error)) from None
        if leaf is not None:
            node: list[Any] = []
            self._leaves.append((leaf, node, path))
            return node
        hint = "; save its state_dict()" if callable(getattr(value, "state_dict", None)) else ""
        raise TypeError(
            "%s is a %s; a checkpoint holds %s%s" % (_format_path(path), _type_name(kind), _ALLOWED, hint)
        )

    def _bytes(self, tag: str, value: Any) -> list[Any]:
        view = memoryview(value)

        def fill(target: memoryview) -> None:
            target[:] = view

        return [tag, len(view), self.place(Buffer(len(view), fill))]

    def _container(self, kind: type, value: Any, path: Path) -> Any:
        if id(value) in self._ancestors:
            raise TypeError("%s contains itself; a checkpoint holds a tree" % _format_path(path))
        if len(path) >= MAX_DEPTH:
            raise TypeError("%s… is nested more than %d levels deep" % (_format_path(path[:3]), MAX_DEPTH))
        self._ancestors.add(id(value))
        node: list[Any]
        if kind in _SEQUENCES:
            node = [_SEQUENCES[kind]]
            node += [self.node(item, (*path, index)) for index, item in enumerate(value)]
        else:
            node = [_MAPPINGS[kind]]
            for key, item in value.items():
                node += [self._hashable(key, path, "as a key"), self.node(item, (*path, key))]
        self._ancestors.discard(id(value))
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
            "%s has %.80r (a %s) %s; allowed are %s"
            % (_format_path(path), value, _type_name(kind), role, _ALLOWED_KEYS)
        )


def _type_name(kind: type) -> str:
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


class _Unflattener:
    """Builds a state from its tree."""

    def __init__(self, source: ArraySource) -> None:
        self._source = source
        self._revivers = REVIVERS

    def value(self, node: Any, depth: int) -> Any:
        kind = type(node)
        if kind in _PLAIN:
            return node
        if kind is not list or not node or type(node[0]) is not str:
            raise Damaged("its tree has an unknown node")
        if depth > MAX_DEPTH + 1:
            raise Damaged("its tree is nested too deeply")
        tag, rest = node[0], node[1:]
        if tag in ("list", "tuple"):
            items = [self.value(item, depth + 1) for item in rest]
            return items if tag == "list" else tuple(items)
        if tag in ("set", "frozenset"):
            return self._set(tag, rest, depth)
        if tag in ("dict", "ordered", "counter"):
            return self._mapping(tag, rest, depth)
        if tag in ("bytes", "bytearray"):
            return self._bytes(tag, *rest)
        if tag in self._revivers:
            return self._revivers[tag](rest, self._source)
        if tag == "file":
            name, length, offset = rest
            return File.of(name, self._source.own(offset, length))
        if tag in _TEXTS:
            (text,) = rest
            return _TEXTS[tag](text)
        raise Damaged("its tree has an unknown type of value, %.40r" % tag)

    def _set(self, tag: str, rest: list[Any], depth: int) -> Any:
        items = [self.value(item, depth + 1) for item in rest]
        result = set(items) if tag == "set" else frozenset(items)
        if len(result) != len(items) or not all(_is_key(item, bytes) for item in items):
            raise Damaged("its tree has an invalid set")
        return result

    def _mapping(self, tag: str, rest: list[Any], depth: int) -> Any:
        if len(rest) % 2:
            raise Damaged("its tree has a key without a value")
        result: Any = {"dict": dict, "ordered": OrderedDict, "counter": Counter}[tag]()
        for key, item in zip(rest[::2], rest[1::2]):
            built = self.value(key, depth + 1)
            if not _is_key(built) or built in result:
                raise Damaged("its tree has an invalid key, or one that occurs twice")
            result[built] = self.value(item, depth + 1)
        return result

    def _bytes(self, tag: str, length: int, offset: int) -> Any:
        content = self._source.own(offset, length)
        return bytearray(content) if tag == "bytearray" else bytes(content)


def _is_key(value: Any, *also: type) -> bool:
    """Return True if `flatten` allows the value as a key, or if it has a type that is allowed here, too."""
    if type(value) is tuple:
        return all(_is_key(item, *also) for item in value)
    return value is None or type(value) in _SCALARS or type(value) in also


def _read_hex_int(text: str) -> int:
    if not _HEX_INT.match(text):
        raise ValueError("an integer is not in hexadecimal form")
    return int(text, 16)


def _read_float(text: str) -> float:
    return float(struct.unpack(">d", bytes.fromhex(text))[0])


#: Functions that read a scalar, by the tag of its node.
_TEXTS: dict[str, Callable[[str], Any]] = {
    "int": _read_hex_int,
    "float": _read_float,
    "complex": lambda text: complex(*struct.unpack(">dd", bytes.fromhex(text))),
    "str": lambda text: bytes.fromhex(text).decode("utf-8", "surrogatepass"),
}


# Saving imports no library: an object of NumPy or torch exists only if its library is imported. Loading
# imports the one that a checkpoint needs.
#: Functions that build an array from its node, by the node's tag.
REVIVERS = {**numpy_arrays.REVIVERS, **torch_tensors.REVIVERS}


def make_leaf(value: Any) -> Leaf | None:
    """Return the leaf of an array, a NumPy scalar or a tensor; None for anything else.

    Raises TypeError with the rest of a sentence ("is …") for arrays that cannot be saved.
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "ndarray"):
        found = numpy_arrays.make_leaf(numpy, value)
        if found is not None:
            return found
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "Tensor"):
        return torch_tensors.make_leaf(torch, value)
    return None

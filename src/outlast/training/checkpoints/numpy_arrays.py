"""NumPy arrays and scalars in checkpoints. Types are stored as strings; shapes and sizes are checked."""

from __future__ import annotations

import re
from typing import Any

from outlast.training.checkpoints.arrays import (
    ArraySource,
    Buffer,
    Leaf,
    PlaceBuffer,
    RawMemory,
    element_count,
    extent,
    import_library,
    parse_shape,
)
from outlast.training.errors import Damaged

_MAX_DTYPE_DEPTH = 16
_SIMPLE_DTYPE = re.compile(r"[<>|=]?[biufcmMSUV][0-9]{0,12}(\[[0-9a-zA-Zμ]{1,24}\])?\Z")


def make_leaf(numpy: Any, value: Any) -> Leaf | None:
    """Return the leaf of a NumPy array or scalar; None for anything else.

    Raises TypeError with the rest of a sentence ("is …") for a subclass of ndarray.
    """
    if type(value) is numpy.ndarray:
        return _NumpyArray(numpy, value)
    if isinstance(value, numpy.generic):
        return _NumpyScalar(numpy, value)
    if isinstance(value, numpy.ndarray):
        raise TypeError(
            "is a %s, which is more than an array; save numpy.asarray(…) of it" % type(value).__name__
        )
    return None


class _NumpyScalar(Leaf):
    def __init__(self, numpy: Any, value: Any) -> None:
        # `tobytes` of an empty string returns four bytes, but its type has a size of 0.
        content = value.tobytes()[: value.dtype.itemsize]
        self._node = ["numpy-scalar", _dtype_name(numpy, value.dtype), content.hex()]

    def dense(self, place: PlaceBuffer) -> list[Any]:
        return self._node


class _NumpyArray(Leaf):
    def __init__(self, numpy: Any, array: Any) -> None:
        self._numpy = numpy
        self._array = array
        self._name = _dtype_name(numpy, array.dtype)
        if array.size and not array.itemsize:
            raise TypeError("has elements without a size")
        self.nbytes = array.nbytes
        self._address = array.__array_interface__["data"][0]
        if array.nbytes:
            before, behind = extent(array.shape, array.strides)
            self.span = ("numpy", self._address + before, self._address + behind + array.itemsize)

    def dense(self, place: PlaceBuffer) -> list[Any]:
        array = self._array
        fortran = array.flags.f_contiguous and not array.flags.c_contiguous

        def fill(target: memoryview) -> None:
            if array.dtype.names:
                # Copied as bytes, with the padding between the fields of a structure.
                rows = self._numpy.ascontiguousarray(array)
                target[:] = memoryview(rows.reshape(-1).view(self._numpy.uint8))
            else:
                self._numpy.ndarray(array.shape, array.dtype, target)[...] = array

        if array.flags.forc:
            offset = place(RawMemory(array.nbytes, self._address, array))
        else:
            offset = place(Buffer(array.nbytes, fill))
        return ["numpy", self._name, "F" if fortran else "C", list(array.shape), array.nbytes, offset]

    def view(self, start: int, nbytes: int, offset: int) -> list[Any]:
        array = self._array
        first = self._address - start
        return ["numpy-view", self._name, list(array.shape), list(array.strides), first, nbytes, offset]

    def memory(self, start: int, nbytes: int) -> RawMemory:
        return RawMemory(nbytes, start, self._array)


def _dtype_name(numpy: Any, dtype: Any) -> Any:
    """Return the JSON form of a dtype. Raises TypeError if it cannot be restored from it."""
    name = None if dtype.hasobject else _dtype_node(dtype)
    try:
        kept = name is not None and _dtype(numpy, name, 0) == dtype
    except (Damaged, TypeError, ValueError):
        kept = False
    if not kept:
        raise TypeError(
            "has the dtype %s, which cannot be saved in a checkpoint; convert it to a plain NumPy type"
            % dtype
        )
    return name


def _dtype_node(dtype: Any) -> Any:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return ["sub", _dtype_node(base), list(shape)]
    if dtype.names is not None:
        fields = []
        for name in dtype.names:
            field, offset, *title = dtype.fields[name]
            fields.append([name, _dtype_node(field), offset, title[0] if title else None])
        return ["struct", fields, dtype.itemsize]
    return dtype.str


def _dtype(numpy: Any, node: Any, depth: int) -> Any:
    if isinstance(node, str):
        if not _SIMPLE_DTYPE.match(node):
            raise Damaged("an array has an unknown element type: %.40r" % node)
        return numpy.dtype(node)
    if depth > _MAX_DTYPE_DEPTH:
        raise Damaged("an element type is nested too deeply")
    if node[0] == "sub":
        return numpy.dtype((_dtype(numpy, node[1], depth + 1), parse_shape(node[2])))
    if node[0] != "struct":
        raise Damaged("an array has an unknown element type")
    names, fields, offsets, titles = zip(*node[1]) if node[1] else ((), (), (), ())
    if not all(type(title) in (str, type(None)) for title in titles):
        raise Damaged("an array has an unknown element type")
    formats = [_dtype(numpy, field, depth + 1) for field in fields]
    columns = {"names": names, "formats": formats, "offsets": offsets, "titles": titles}
    return numpy.dtype({**{key: list(column) for key, column in columns.items()}, "itemsize": node[2]})


def _revive_array(node: list[Any], source: ArraySource) -> Any:
    numpy = import_library("numpy", "NumPy arrays")
    name, order, lengths, nbytes, offset = node
    dtype, shape = _dtype(numpy, name, 0), parse_shape(lengths)
    if nbytes != element_count(shape) * dtype.itemsize or order not in ("C", "F"):
        raise Damaged("an array does not have the size of its shape")
    if element_count(shape) and not nbytes:
        raise Damaged("an array has an element type without a size")
    memory = source.own(offset, nbytes)
    # Without memory, NumPy allocates one element for an empty array, and an element may have a gigabyte.
    return numpy.ndarray(shape, dtype, memory if nbytes else bytearray(1), order=order)


def _revive_view(node: list[Any], source: ArraySource) -> Any:
    numpy = import_library("numpy", "NumPy arrays")
    name, lengths, strides, first, nbytes, offset = node
    dtype, shape = _dtype(numpy, name, 0), parse_shape(lengths)
    whole = [first, *strides]
    if len(strides) != len(shape) or any(type(n) is not int or abs(n) >= 2**62 for n in whole):
        raise Damaged("an array has invalid strides")
    before, behind = extent(shape, strides)
    if not element_count(shape) or not dtype.itemsize or first + before < 0:
        raise Damaged("an array is out of the range of its buffer")
    if first + behind + dtype.itemsize > nbytes:
        raise Damaged("an array is out of the range of its buffer")
    memory = source.shared(offset, nbytes, element_count(shape) * dtype.itemsize)
    return numpy.ndarray(shape, dtype, memory, first, strides)


def _revive_scalar(node: list[Any], source: ArraySource) -> Any:
    numpy = import_library("numpy", "NumPy scalars")
    name, text = node
    dtype, content = _dtype(numpy, name, 0), bytes.fromhex(text)
    if dtype.itemsize != len(content):
        raise Damaged("a scalar does not have the size of its type")
    return numpy.frombuffer(bytearray(content), dtype)[0] if content else numpy.zeros((), dtype)[()]


REVIVERS = {"numpy": _revive_array, "numpy-view": _revive_view, "numpy-scalar": _revive_scalar}

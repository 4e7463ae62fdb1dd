"""NumPy arrays and torch tensors as nodes of a tree and buffers.

Neither library is imported by saving: an object of theirs can only be there if its library is. Reading
imports the one that a checkpoint needs. Types are named by plain strings and checked by shape and size
before memory is asked for.
"""

from __future__ import annotations

import ctypes
import importlib
import re
import sys
from dataclasses import dataclass
from typing import Any, Callable

from outlast.training.errors import CheckpointError, Damaged

_MAX_DIMENSIONS = 64
_MAX_DTYPE_DEPTH = 16
_SIMPLE_DTYPE = re.compile(r"[<>|=]?[biufcmMSUV][0-9]{0,12}(\[[0-9a-zA-Zμ]{1,24}\])?\Z")
_TORCH_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}\Z")


@dataclass(frozen=True)
class Buffer:
    """Bytes that are fetched when they are written: a copy from a device lives no longer than that."""

    nbytes: int
    fetch: Callable[[], memoryview]


class Source:
    """Where buffers come from when a state is put together."""

    def expect(self, offset: int, nbytes: int) -> None:
        """Raise Damaged unless the next buffer is there and whole; to be asked before memory is."""
        raise NotImplementedError

    def take(self, offset: int, target: memoryview) -> None:
        """Fill `target` with the next buffer."""
        raise NotImplementedError


Place = Callable[[Buffer], int]


def describe(value: Any, place: Place) -> list[Any] | None:
    """The node of an array, a NumPy scalar or a tensor; None for anything else.

    Raises TypeError with the rest of a sentence ("is …") for arrays that cannot be kept.
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "ndarray"):
        if type(value) is numpy.ndarray:
            return _describe_array(numpy, value, place)
        if isinstance(value, numpy.generic):
            # An empty string has four bytes to tell but a type of none.
            content = value.tobytes()[: value.dtype.itemsize]
            return ["numpy-scalar", _dtype_name(numpy, value.dtype), content.hex()]
        if isinstance(value, numpy.ndarray):
            raise TypeError(
                "is a %s, which is more than an array; save numpy.asarray(…) of it" % type(value).__name__
            )
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "Tensor"):
        if isinstance(value, torch.Size):
            return ["tuple", *(int(length) for length in value)]
        if isinstance(value, torch.Tensor):
            return _describe_tensor(torch, value, place)
    return None


def _describe_array(numpy: Any, array: Any, place: Place) -> list[Any]:
    name = _dtype_name(numpy, array.dtype)
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous

    def fetch() -> memoryview:
        if not array.nbytes:
            return memoryview(b"")
        rows = array.T if fortran else numpy.ascontiguousarray(array)
        return memoryview(rows.reshape(-1).view(numpy.uint8))

    offset = place(Buffer(array.nbytes, fetch))
    return ["numpy", name, "F" if fortran else "C", list(array.shape), array.nbytes, offset]


def _dtype_name(numpy: Any, dtype: Any) -> Any:
    name = None if dtype.hasobject else _dtype_node(dtype)
    try:
        kept = name is not None and _dtype(numpy, name, 0) == dtype
    except (Damaged, TypeError, ValueError):
        kept = False
    if not kept:
        raise TypeError(
            "has the dtype %s, which cannot be kept in a checkpoint; convert it to a plain NumPy type" % dtype
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
            raise Damaged("it names no element type: %.40r" % node)
        return numpy.dtype(node)
    if depth > _MAX_DTYPE_DEPTH:
        raise Damaged("an element type in it is nested too deep")
    if node[0] == "sub":
        return numpy.dtype((_dtype(numpy, node[1], depth + 1), _shape(node[2])))
    if node[0] != "struct":
        raise Damaged("it names no element type")
    names, fields, offsets, titles = zip(*node[1]) if node[1] else ((), (), (), ())
    if not all(type(title) in (str, type(None)) for title in titles):
        raise Damaged("it names no element type")
    formats = [_dtype(numpy, field, depth + 1) for field in fields]
    columns = {"names": names, "formats": formats, "offsets": offsets, "titles": titles}
    return numpy.dtype({**{key: list(column) for key, column in columns.items()}, "itemsize": node[2]})


def _shape(lengths: Any) -> tuple[int, ...]:
    if type(lengths) is not list or len(lengths) > _MAX_DIMENSIONS:
        raise Damaged("an array in it has no proper shape")
    if any(type(length) is not int or not 0 <= length < 2**62 for length in lengths):
        raise Damaged("an array in it has no proper shape")
    return tuple(lengths)


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def _revive_array(node: list[Any], source: Source) -> Any:
    numpy = _library("numpy", "NumPy arrays")
    name, order, lengths, nbytes, offset = node
    dtype, shape = _dtype(numpy, name, 0), _shape(lengths)
    if nbytes != _count(shape) * dtype.itemsize or order not in ("C", "F"):
        raise Damaged("an array in it does not have the size of its shape")
    source.expect(offset, nbytes)
    array = numpy.empty(shape, dtype, order=order)
    if array.nbytes != nbytes:
        raise Damaged("an array in it has an element type without a size")
    flat = (array.T if order == "F" else array).reshape(-1)
    source.take(offset, memoryview(flat.view(numpy.uint8)) if nbytes else memoryview(b""))
    return array


def _revive_scalar(node: list[Any], source: Source) -> Any:
    numpy = _library("numpy", "NumPy scalars")
    dtype, content = _dtype(numpy, node[0], 0), bytes.fromhex(node[1])
    if dtype.itemsize != len(content):
        raise Damaged("a scalar in it does not have the size of its type")
    return numpy.frombuffer(bytearray(content), dtype)[0] if content else numpy.zeros((), dtype)[()]


def _describe_tensor(torch: Any, tensor: Any, place: Place) -> list[Any]:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise TypeError(
            "is a %s, a special kind of tensor; save a plain torch.Tensor" % type(tensor).__name__
        )
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise TypeError(
            "is a tensor of layout %s on %s; save a plain dense one" % (tensor.layout, tensor.device.type)
        )
    nbytes = tensor.numel() * tensor.element_size()

    def fetch() -> memoryview:
        dense = tensor.detach().resolve_conj().resolve_neg().to("cpu").contiguous()
        return _tensor_memory(dense, nbytes)

    return [
        "torch",
        str(tensor.dtype)[len("torch.") :],
        list(tensor.shape),
        nbytes,
        place(Buffer(nbytes, fetch)),
    ]


def _tensor_memory(tensor: Any, nbytes: int) -> memoryview:
    """A tensor's memory for every dtype, also where torch was installed without NumPy."""
    if not nbytes:
        return memoryview(b"")
    memory = (ctypes.c_ubyte * nbytes).from_address(tensor.data_ptr())
    # The memory belongs to the tensor, which must live as long as any view of it.
    memory.owner = tensor  # type: ignore[attr-defined]
    return memoryview(memory).cast("B")


def _revive_tensor(node: list[Any], source: Source) -> Any:
    torch = _library("torch", "torch tensors")
    name, lengths, nbytes, offset = node
    shape = _shape(lengths)
    dtype = getattr(torch, name, None) if _TORCH_NAME.match(name) else None
    if not isinstance(dtype, torch.dtype):
        raise CheckpointError(
            "a checkpoint holds a tensor of type %.40r, which torch %s does not know; use the torch it was "
            "written with" % (name, torch.__version__)
        )
    if nbytes != _count(shape) * torch.empty(0, dtype=dtype).element_size():
        raise Damaged("a tensor in it does not have the size of its shape")
    source.expect(offset, nbytes)
    tensor = torch.empty(shape, dtype=dtype)
    source.take(offset, _tensor_memory(tensor, nbytes))
    return tensor


def _library(name: str, what: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise CheckpointError(
            "a checkpoint holds %s, but %s cannot be imported by %s (%s); install it there"
            % (what, name, sys.executable, error)
        ) from error


REVIVERS: dict[str, Callable[[list[Any], Source], Any]] = {
    "numpy": _revive_array,
    "numpy-scalar": _revive_scalar,
    "torch": _revive_tensor,
}

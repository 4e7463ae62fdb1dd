"""Torch tensors in checkpoints: copied from any device, and restored on the device they had."""

from __future__ import annotations

import array
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
from outlast.training.errors import CheckpointError, Damaged
from outlast.training.progress_log import warn

#: The names of element types, also of a later torch.
_NAME = re.compile(r"(bool|(q?u?int|bfloat|float|complex|bits)[0-9][0-9a-z_]{0,40})\Z")
_DEVICE = re.compile(r"[a-z]{1,20}(:[0-9]{1,4})?\Z")
_WORDS = {2: "H", 4: "I", 8: "Q"}


def make_leaf(torch: Any, value: Any) -> Leaf | None:
    """Return the leaf of a tensor or torch.Size; None for anything else.

    Raises TypeError with the rest of a sentence ("is …") for a tensor that cannot be saved.
    """
    kind = type(value)
    if kind is not torch.Tensor and kind is not torch.nn.Parameter:
        if isinstance(value, torch.Size):
            return _Size(value)
        if not isinstance(value, torch.Tensor):
            return None
        raise TypeError("is a %s, a special kind of tensor; save a plain torch.Tensor" % kind.__name__)
    device = str(value.device)
    if value.layout != torch.strided or value.is_quantized or device.startswith("meta"):
        raise TypeError("is a tensor of layout %s on %s; save a plain dense one" % (value.layout, device))
    return _Tensor(torch, value, device)


class _Size(Leaf):
    def __init__(self, size: Any) -> None:
        self._node = ["tuple", *(int(length) for length in size)]

    def dense(self, place: PlaceBuffer) -> list[Any]:
        return self._node


class _Tensor(Leaf):
    def __init__(self, torch: Any, tensor: Any, device: str) -> None:
        self._torch = torch
        self._tensor = tensor
        self._device = device
        self._size = tensor.element_size()
        elements = tensor.numel()
        self.nbytes = elements * self._size
        self._is_contiguous = tensor.is_contiguous()
        if elements and not tensor.is_conj() and not tensor.is_neg():
            if not self._is_contiguous:
                elements = extent(tensor.shape, tensor.stride())[1] + 1
            address = tensor.data_ptr()
            self.span = (device, address, address + elements * self._size)

    def _dtype_and_shape(self) -> tuple[str, list[int]]:
        return str(self._tensor.dtype)[len("torch.") :], list(self._tensor.shape)

    def _device_node(self) -> list[str]:
        return [] if self._device == "cpu" else [self._device]

    def dense(self, place: PlaceBuffer) -> list[Any]:
        if self.span is not None and self._is_contiguous and self._device == "cpu":
            offset = place(RawMemory(self.nbytes, self.span[1], self._tensor))
        else:
            offset = place(Buffer(self.nbytes, self._fill))
        return ["torch", *self._dtype_and_shape(), self.nbytes, offset, *self._device_node()]

    def _fill(self, target: memoryview) -> None:
        tensor = self._tensor
        if self.nbytes:
            room = self._torch.frombuffer(target, dtype=tensor.dtype).view(tensor.shape)
            room.copy_(tensor.detach())

    def view(self, start: int, nbytes: int, offset: int) -> list[Any]:
        first = (self._tensor.data_ptr() - start) // self._size
        if (self._tensor.data_ptr() - start) % self._size:
            raise TypeError("shares memory, unaligned, with a tensor of a wider type; save a clone()")
        strides = list(self._tensor.stride())
        return ["torch-view", *self._dtype_and_shape(), strides, first, nbytes, offset, *self._device_node()]

    def memory(self, start: int, nbytes: int) -> Buffer | RawMemory:
        if self._device == "cpu":
            return RawMemory(nbytes, start, self._tensor)
        storage = self._tensor.untyped_storage()
        raw = self._torch.empty(0, dtype=self._torch.uint8, device=self._tensor.device)
        raw.set_(storage, start - storage.data_ptr(), (nbytes,))
        return Buffer(
            nbytes, lambda target: self._torch.frombuffer(target, dtype=self._torch.uint8).copy_(raw)
        )


def _dtype(torch: Any, name: Any) -> Any:
    if not _NAME.match(name):
        raise Damaged("a tensor has an unknown element type: %.40r" % name)
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise CheckpointError(
            "a checkpoint holds a tensor of type %.40r, which torch %s does not know; use the torch it was "
            "written with" % (name, torch.__version__)
        )
    return dtype


def _revive_tensor(node: list[Any], source: ArraySource) -> Any:
    torch = import_library("torch", "torch tensors")
    name, lengths, nbytes, offset, *device = node
    dtype, shape = _dtype(torch, name), parse_shape(lengths)
    if nbytes != element_count(shape) * _size(torch, dtype):
        raise Damaged("a tensor does not have the size of its shape")
    memory = source.own(offset, nbytes)
    if not nbytes:
        return _to_device(torch, torch.empty(shape, dtype=dtype), device, source)
    memory = swapped(memory, _unit(torch, dtype)) if source.is_swapped else memory
    return _to_device(torch, torch.frombuffer(memory, dtype=dtype).view(shape), device, source)


def _revive_view(node: list[Any], source: ArraySource) -> Any:
    torch = import_library("torch", "torch tensors")
    name, lengths, strides, first, nbytes, offset, *device = node
    dtype, shape = _dtype(torch, name), parse_shape(lengths)
    size = _size(torch, dtype)
    whole = [first, *strides]
    if len(strides) != len(shape) or any(type(n) is not int or not 0 <= n < 2**62 for n in whole):
        raise Damaged("a tensor has invalid strides")
    if not element_count(shape) or (first + extent(shape, strides)[1] + 1) * size > nbytes:
        raise Damaged("a tensor is out of the range of its buffer")

    # If bytes are swapped, each view of the memory with another element size gets memory of its own.
    unit = _unit(torch, dtype) if source.is_swapped else 0
    memory = source.shared(offset, nbytes, element_count(shape) * size)

    def base() -> Any:
        ordered = swapped(memory[: nbytes // unit * unit], unit) if unit else memory
        return _to_device(torch, torch.frombuffer(ordered, dtype=torch.uint8), device, source)

    shared = source.cached((offset, tuple(device), unit), base)
    return shared[: len(shared) // size * size].view(dtype).as_strided(shape, strides, first)


def _size(torch: Any, dtype: Any) -> int:
    """Return the bytes of an element; older versions of torch have no `dtype.itemsize`."""
    return int(torch.empty(0, dtype=dtype).element_size())


def _unit(torch: Any, dtype: Any) -> int:
    """Return the bytes of a number; a complex element has two numbers."""
    return _size(torch, dtype) // (2 if dtype.is_complex else 1)


def swapped(memory: memoryview, size: int) -> memoryview:
    """Return a copy with the bytes of each element of `size` bytes reversed."""
    if size not in _WORDS:
        return memory
    words = array.array(_WORDS[size])
    words.frombytes(memory)
    words.byteswap()
    return memoryview(words).cast("B")


def _to_device(torch: Any, tensor: Any, device: list[Any], source: ArraySource) -> Any:
    """Return the tensor on the device it had, on another of the same type, or on the CPU."""
    if not device:
        return tensor
    if len(device) > 1 or not _DEVICE.match(device[0]) or device[0].startswith("meta"):
        raise Damaged("a tensor has an invalid device")
    place = source.cached(("device", device[0]), lambda: _find_device(torch, device[0]))
    try:
        return tensor.to(place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        # Such as memory of the device that another process still uses: the checkpoint is not at fault.
        raise CheckpointError("a checkpoint's tensors cannot be loaded on %s: %s" % (place, error)) from error


def _find_device(torch: Any, name: str) -> Any:
    """Return the named device or the default one of its type; warn and return the CPU if there is none."""
    for candidate in (name, name.partition(":")[0]):
        try:
            torch.empty(1, device=candidate)
            return torch.device(candidate)
        except (RuntimeError, AssertionError, NotImplementedError, ImportError):
            continue
    warn("the checkpoint's tensors were on %s, which does not exist here; they are loaded on the CPU" % name)
    return torch.device("cpu")


REVIVERS = {"torch": _revive_tensor, "torch-view": _revive_view}

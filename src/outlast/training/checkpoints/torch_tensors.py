"""Torch tensors: copied out of any device in one go, and given back on the device they had."""

from __future__ import annotations

import array
import re
from typing import Any

from outlast.training.checkpoints.arrays import (
    ArraySource,
    Buffer,
    Leaf,
    Place,
    RawMemory,
    count,
    library,
    reach,
    shape_of,
)
from outlast.training.errors import CheckpointError, Damaged
from outlast.training.progress_log import warn

_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}\Z")
_DEVICE = re.compile(r"[a-z]{1,20}(:[0-9]{1,4})?\Z")
_WORDS = {2: "H", 4: "I", 8: "Q"}


def leaf(torch: Any, value: Any) -> Leaf | None:
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

    def dense(self, place: Place) -> list[Any]:
        return self._node


class _Tensor(Leaf):
    def __init__(self, torch: Any, tensor: Any, device: str) -> None:
        self._torch = torch
        self._tensor = tensor
        self._device = device
        self._size = tensor.element_size()
        elements = tensor.numel()
        self._nbytes = elements * self._size
        self._is_contiguous = tensor.is_contiguous()
        if elements and not tensor.is_conj() and not tensor.is_neg():
            if not self._is_contiguous:
                elements = reach(tensor.shape, tensor.stride())[1] + 1
            address = tensor.data_ptr()
            self.span = (device, address, address + elements * self._size)

    def _named(self) -> tuple[str, list[int]]:
        return str(self._tensor.dtype)[len("torch.") :], list(self._tensor.shape)

    def _elsewhere(self) -> list[str]:
        return [] if self._device == "cpu" else [self._device]

    def dense(self, place: Place) -> list[Any]:
        if self.span is not None and self._is_contiguous and self._device == "cpu":
            offset = place(RawMemory(self._nbytes, self.span[1], self._tensor))
        else:
            offset = place(Buffer(self._nbytes, self._fill))
        return ["torch", *self._named(), self._nbytes, offset, *self._elsewhere()]

    def _fill(self, target: memoryview) -> None:
        tensor = self._tensor
        if self._nbytes:
            room = self._torch.frombuffer(target, dtype=tensor.dtype).view(tensor.shape)
            room.copy_(tensor.detach())

    def view(self, start: int, nbytes: int, offset: int) -> list[Any]:
        first = (self._tensor.data_ptr() - start) // self._size
        if (self._tensor.data_ptr() - start) % self._size:
            raise TypeError("shares memory with another one of a wider type in an odd place; save a clone()")
        strides = list(self._tensor.stride())
        return ["torch-view", *self._named(), strides, first, nbytes, offset, *self._elsewhere()]

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
    dtype = getattr(torch, name, None) if _NAME.match(name) else None
    if not isinstance(dtype, torch.dtype):
        raise CheckpointError(
            "a checkpoint holds a tensor of type %.40r, which torch %s does not know; use the torch it was "
            "written with" % (name, torch.__version__)
        )
    return dtype


def _revive_tensor(node: list[Any], source: ArraySource) -> Any:
    torch = library("torch", "torch tensors")
    name, lengths, nbytes, offset, *device = node
    dtype, shape = _dtype(torch, name), shape_of(lengths)
    if nbytes != count(shape) * _size(torch, dtype):
        raise Damaged("a tensor in it does not have the size of its shape")
    memory = source.memory(offset, nbytes)
    if not nbytes:
        return _on(torch, torch.empty(shape, dtype=dtype), device, source)
    memory = swapped(memory, _unit(torch, dtype)) if source.is_swapped else memory
    return _on(torch, torch.frombuffer(memory, dtype=dtype).view(shape), device, source)


def _revive_view(node: list[Any], source: ArraySource) -> Any:
    torch = library("torch", "torch tensors")
    name, lengths, strides, first, nbytes, offset, *device = node
    dtype, shape = _dtype(torch, name), shape_of(lengths)
    size = _size(torch, dtype)
    whole = [first, *strides]
    if len(strides) != len(shape) or any(type(n) is not int or not 0 <= n < 2**62 for n in whole):
        raise Damaged("a tensor in it has no proper strides")
    if not count(shape) or (first + reach(shape, strides)[1] + 1) * size > nbytes:
        raise Damaged("a tensor in it is not where it should be")

    # Where bytes are swapped, those who see the memory as another type get a memory of their own.
    unit = _unit(torch, dtype) if source.is_swapped else 0

    def base() -> Any:
        memory = source.memory(offset, nbytes)
        memory = swapped(memory[: nbytes // unit * unit], unit) if unit else memory
        return _on(torch, torch.frombuffer(memory, dtype=torch.uint8), device, source)

    shared = source.once((offset, tuple(device), unit), base)
    return shared[: len(shared) // size * size].view(dtype).as_strided(shape, strides, first)


def _size(torch: Any, dtype: Any) -> int:
    """Bytes of an element. (`dtype.itemsize` is younger than many a cluster's torch.)"""
    return int(torch.empty(0, dtype=dtype).element_size())


def _unit(torch: Any, dtype: Any) -> int:
    """Bytes of a number; a complex element has two."""
    return _size(torch, dtype) // (2 if dtype.is_complex else 1)


def swapped(memory: memoryview, size: int) -> memoryview:
    """A copy whose elements of `size` bytes have the other order."""
    if size not in _WORDS:
        return memory
    words = array.array(_WORDS[size])
    words.frombytes(memory)
    words.byteswap()
    return memoryview(words).cast("B")


def _on(torch: Any, tensor: Any, device: list[Any], source: ArraySource) -> Any:
    """On the device it had, on another of its kind, or, where there is none here, on the CPU."""
    if not device:
        return tensor
    if len(device) > 1 or not isinstance(device[0], str) or not _DEVICE.match(device[0]):
        raise Damaged("a tensor in it has no proper device")
    place = source.once(("device", device[0]), lambda: _device_like(torch, device[0]))
    return tensor.to(place)


def _device_like(torch: Any, name: str) -> Any:
    for candidate in (name, name.partition(":")[0]):
        try:
            torch.empty(1, device=candidate)
            return torch.device(candidate)
        except (RuntimeError, AssertionError, NotImplementedError, ImportError):
            continue
    warn("the checkpoint's tensors were on %s, which is not here: they are given on the CPU" % name)
    return torch.device("cpu")


REVIVERS = {"torch": _revive_tensor, "torch-view": _revive_view}

"""Copying with several threads: every byte is copied to its place, and no thread copies after the end."""

from __future__ import annotations

import ctypes
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from outlast.training.checkpoints import copy_buffer
from outlast.training.checkpoints.copy_buffer import address_of, copy

#: More than the minimum for threads, and not a multiple of the chunk size.
SIZE = (40 << 20) + 12_345


def memory(size: int) -> memoryview:
    return memoryview(bytearray(size))


@pytest.mark.parametrize("cuts", [0, 1, 7, 300])
def test_every_byte_is_copied_to_its_place(cuts: int) -> None:
    chance = random.Random(cuts)
    source, target = memoryview(bytearray(chance.randbytes(SIZE))), memory(SIZE)
    ends = [*sorted(chance.randrange(SIZE) for _ in range(cuts)), SIZE]
    begins = [0, *ends[:-1]]
    came, went = address_of(source), address_of(target)
    copy([(went + begin, came + begin, end - begin) for begin, end in zip(begins, ends, strict=True)])
    assert target == source


def test_copying_works_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_buffer, "start_thread", lambda work: None)
    source, target = memoryview(bytearray(b"\1" * SIZE)), memory(SIZE)
    copy([(address_of(target), address_of(source), SIZE)])
    assert target == source


def test_no_thread_copies_after_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., Any] = ctypes.memmove
    main = threading.get_ident()

    def interrupted(*piece: int) -> None:
        if threading.get_ident() == main:
            raise KeyboardInterrupt
        real(*piece)

    monkeypatch.setattr(ctypes, "memmove", interrupted)
    source, target = memory(SIZE), memory(SIZE)
    with pytest.raises(KeyboardInterrupt):
        copy([(address_of(target), address_of(source), SIZE)])
    assert [thread for thread in threading.enumerate() if thread.name == "outlast"] == []


def test_an_empty_list_of_pieces_copies_nothing() -> None:
    copy([])

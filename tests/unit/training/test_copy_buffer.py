"""The copy buffer: preallocated before it is needed, reused, and never written to once it is handed out."""

from __future__ import annotations

import ctypes
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from outlast.training.checkpoints import copy_buffer
from outlast.training.checkpoints.copy_buffer import CopyBuffer, address_of
from outlast.training.training_session import SessionSettings
from support.checkpoints import Waiting

SIZE = 64 << 20


def wait_for_threads() -> None:
    """Wait for all threads of outlast."""
    for thread in threading.enumerate():
        if thread.name == "outlast":
            thread.join()


def faults_of_writing(memory: memoryview) -> int:
    """Return the number of page faults while the memory is written to."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    ctypes.memset(address_of(memory), 1, len(memory))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_preallocated_memory_exists_when_it_is_needed() -> None:
    buffer = CopyBuffer()
    buffer.preallocate(SIZE)
    wait_for_threads()
    prepared = faults_of_writing(buffer.get(SIZE))
    fresh = faults_of_writing(CopyBuffer().get(SIZE))
    assert fresh >= SIZE // (2 << 20)
    assert prepared <= fresh // 4


def test_a_state_that_has_grown_a_little_gets_the_same_memory() -> None:
    buffer = CopyBuffer()
    buffer.preallocate(SIZE)
    first = address_of(buffer.get(SIZE))
    assert address_of(buffer.get(SIZE + SIZE // 20)) == first
    assert len(buffer.get(SIZE * 2)) == SIZE * 2


def test_no_thread_writes_to_a_buffer_that_was_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    real, began, touched = copy_buffer.prefault, threading.Event(), []

    def slow(address: int, nbytes: int) -> None:
        began.set()
        time.sleep(0.1)
        real(address, nbytes)
        touched.append(address)

    monkeypatch.setattr(copy_buffer, "prefault", slow)
    buffer = CopyBuffer()
    buffer.preallocate(SIZE)
    assert began.wait(10)
    memory = buffer.get(SIZE)
    assert len(touched) < SIZE // (2 << 20), "`get` waited until all pages were touched"
    memory[:] = b"\1" * SIZE
    wait_for_threads()
    assert memory == b"\1" * SIZE


def test_memory_that_cannot_be_allocated_is_an_error_where_it_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none(size: int) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(copy_buffer, "_map_memory", none)
    buffer = CopyBuffer()
    buffer.preallocate(SIZE)
    with pytest.raises(OSError, match="Cannot allocate"):
        buffer.get(SIZE)


def test_without_a_thread_memory_is_allocated_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_buffer, "start_thread", lambda work: None)
    buffer = CopyBuffer()
    buffer.preallocate(SIZE)
    assert len(buffer.get(SIZE)) == SIZE


@pytest.mark.parametrize("ask", ["should_stop", "should_save", "stop_or_save"])
def test_memory_for_the_next_save_is_allocated_only_if_the_script_continues_training(
    tmp_path: Path, ask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SessionSettings(directory=str(tmp_path))
    size = 1 << 20
    Waiting(settings).save({"weights": bytes(size)}, 1)
    made: list[int] = []
    monkeypatch.setattr(CopyBuffer, "preallocate", lambda self, size: made.append(size))
    session = Waiting(settings)
    getattr(session, ask)()
    assert made == []
    assert session.load() is not None
    assert made == []
    getattr(session, ask)()
    getattr(session, ask)()
    assert len(made) == 1 and size <= made[0] < size + 4096


def test_the_end_of_the_script_does_not_wait_for_preallocation() -> None:
    script = """
import time
from outlast.training.checkpoints import copy_buffer
copy_buffer.prefault = lambda address, nbytes: time.sleep(0.1)
copy_buffer.CopyBuffer().preallocate(4 << 30)
"""
    # With 2048 pages and a tenth of a second for each, waiting would take minutes.
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)

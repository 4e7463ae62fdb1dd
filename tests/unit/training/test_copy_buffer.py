"""Memory that is made before it is needed: the same one, never written to once it is lent."""

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


def wait_for_making() -> None:
    for thread in threading.enumerate():
        if thread.name == "outlast":
            thread.join()


def faults_of_writing(memory: memoryview) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    ctypes.memset(address_of(memory), 1, len(memory))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_what_was_prepared_is_there_when_it_is_lent() -> None:
    stage = CopyBuffer()
    stage.prepare(SIZE)
    wait_for_making()
    prepared = faults_of_writing(stage.lend(SIZE))
    fresh = faults_of_writing(CopyBuffer().lend(SIZE))
    assert fresh >= SIZE // (2 << 20)
    assert prepared <= fresh // 4


def test_a_state_that_has_grown_a_little_is_lent_the_same_memory() -> None:
    stage = CopyBuffer()
    stage.prepare(SIZE)
    first = address_of(stage.lend(SIZE))
    assert address_of(stage.lend(SIZE + SIZE // 20)) == first
    assert len(stage.lend(SIZE * 2)) == SIZE * 2


def test_what_is_lent_is_touched_by_nobody_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    real, began, touched = copy_buffer.touch, threading.Event(), []

    def slow(address: int, nbytes: int) -> None:
        began.set()
        time.sleep(0.1)
        real(address, nbytes)
        touched.append(address)

    monkeypatch.setattr(copy_buffer, "touch", slow)
    stage = CopyBuffer()
    stage.prepare(SIZE)
    assert began.wait(10)
    memory = stage.lend(SIZE)
    assert len(touched) < SIZE // (2 << 20), "nobody waits until all of it is made"
    memory[:] = b"\1" * SIZE
    wait_for_making()
    assert memory == b"\1" * SIZE


def test_what_cannot_be_had_is_heard_of_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(size: int) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(copy_buffer, "_mapped", none)
    stage = CopyBuffer()
    stage.prepare(SIZE)
    with pytest.raises(OSError, match="Cannot allocate"):
        stage.lend(SIZE)


def test_without_a_thread_it_is_made_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_buffer, "start", lambda work: None)
    stage = CopyBuffer()
    stage.prepare(SIZE)
    assert len(stage.lend(SIZE)) == SIZE


@pytest.mark.parametrize("ask", ["should_stop", "should_save", "stop_or_save"])
def test_only_a_training_that_goes_on_has_memory_made_for_its_next_save(
    tmp_path: Path, ask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SessionSettings(directory=str(tmp_path))
    size = 1 << 20
    Waiting(settings).save({"weights": bytes(size)}, 1)
    made: list[int] = []
    monkeypatch.setattr(CopyBuffer, "prepare", lambda self, size: made.append(size))
    session = Waiting(settings)
    getattr(session, ask)()
    assert made == []
    assert session.load() is not None
    assert made == []
    getattr(session, ask)()
    getattr(session, ask)()
    assert len(made) == 1 and size <= made[0] < size + 4096


def test_nobody_waits_for_it_at_the_end_of_the_script() -> None:
    script = """
import time
from outlast.training.checkpoints import copy_buffer
copy_buffer.touch = lambda address, nbytes: time.sleep(0.1)
copy_buffer.CopyBuffer().prepare(4 << 30)
"""
    # Of 2048 pages with a tenth of a second each it would wait for minutes.
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)

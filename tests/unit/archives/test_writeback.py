"""Unpacked files are synced before they are declared complete, and most of them earlier."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import pytest

from outlast.node.archives import writeback
from outlast.node.archives.unpacking import UnpackingSink
from outlast.node.archives.writeback import WriteBack
from support.archives import tar_of

#: Longer than anything may take on a busy machine (seconds).
TIMEOUT = 60.0


def test_finish_waits_for_the_sync_and_calls_the_pulse_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulsed, done = threading.Event(), threading.Event()

    def slow(descriptor: int, path: str) -> None:
        assert pulsed.wait(TIMEOUT)
        done.set()

    monkeypatch.setattr(writeback, "sync_file_system", slow)
    with contextlib.closing(WriteBack(str(tmp_path))) as write_back:
        write_back.finish(pulsed.set)
    assert done.is_set()


def test_arrived_bytes_are_synced_while_more_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync_started = threading.Event()
    monkeypatch.setattr(writeback, "sync_file_system", lambda descriptor, path: sync_started.set())
    monkeypatch.setattr(writeback, "SYNC_INTERVAL", 1000)
    sink = UnpackingSink(str(tmp_path / "target"), "it.tar")
    content = tar_of({"a": bytes(5000)})
    with contextlib.closing(sink):
        sink.resume("it", lambda block: None)
        sink.write(content[:2000])
        assert sync_started.wait(TIMEOUT)
        sink.write(content[2000:])
        sink.finish()
    assert (tmp_path / "target/a").read_bytes() == bytes(5000)


def test_a_small_rest_is_synced_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(writeback, "sync_file_system", lambda descriptor, path: calls.append(path))
    with contextlib.closing(WriteBack(str(tmp_path))) as write_back:
        write_back.add(writeback.SYNC_INTERVAL - 1)
        assert not calls
        write_back.finish()
    assert calls == [str(tmp_path)]


def test_an_error_of_an_early_sync_is_raised_by_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()

    def failing_once(descriptor: int, path: str) -> None:
        if not failed.is_set():
            failed.set()
            raise OSError(5, "broken disk")

    monkeypatch.setattr(writeback, "sync_file_system", failing_once)
    with contextlib.closing(WriteBack(str(tmp_path))) as write_back:
        write_back.add(writeback.SYNC_INTERVAL)
        assert failed.wait(TIMEOUT)
        with pytest.raises(OSError, match="broken disk"):
            write_back.finish()


def test_the_real_system_call_is_made_and_its_error_is_raised(tmp_path: Path) -> None:
    with contextlib.closing(WriteBack(str(tmp_path))) as write_back:
        write_back.finish()
    with pytest.raises(OSError, match="somewhere"):
        writeback.sync_file_system(-1, "somewhere")


def test_closing_during_a_sync_leaks_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed, synced = threading.Event(), threading.Event()
    same_directory: list[bool] = []

    def slow(descriptor: int, path: str) -> None:
        assert closed.wait(TIMEOUT)
        same_directory.append(os.path.samestat(os.fstat(descriptor), tmp_path.stat()))
        synced.set()

    monkeypatch.setattr(writeback, "sync_file_system", slow)
    write_back = WriteBack(str(tmp_path))
    write_back.add(writeback.SYNC_INTERVAL)
    thread = next(thread for thread in threading.enumerate() if thread.name == "sync")
    write_back.close()
    closed.set()
    assert synced.wait(TIMEOUT)
    thread.join(TIMEOUT)
    assert same_directory == [True]
    assert tmp_path not in [Path(os.path.realpath(link)) for link in Path("/proc/self/fd").iterdir()]

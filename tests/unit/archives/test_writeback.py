"""What is unpacked is on disk when it is called whole, and most of it was before."""

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

PATIENCE = 60.0


def test_the_end_waits_for_the_disk_and_is_heard_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard, done = threading.Event(), threading.Event()

    def slow(descriptor: int, path: str) -> None:
        assert heard.wait(PATIENCE)
        done.set()

    monkeypatch.setattr(writeback, "sync_file_system", slow)
    with contextlib.closing(WriteBack(str(tmp_path))) as disk:
        disk.finish(heard.set)
    assert done.is_set()


def test_what_arrives_goes_to_disk_while_more_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()
    monkeypatch.setattr(writeback, "sync_file_system", lambda descriptor, path: begun.set())
    monkeypatch.setattr(writeback, "EVERY", 1000)
    sink = UnpackingSink(str(tmp_path / "target"), "it.tar")
    content = tar_of({"a": bytes(5000)})
    with contextlib.closing(sink):
        sink.resume("it", lambda block: None)
        sink.write(content[:2000])
        assert begun.wait(PATIENCE)
        sink.write(content[2000:])
        sink.finish()
    assert (tmp_path / "target/a").read_bytes() == bytes(5000)


def test_little_is_left_for_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(writeback, "sync_file_system", lambda descriptor, path: calls.append(path))
    with contextlib.closing(WriteBack(str(tmp_path))) as disk:
        disk.wrote(writeback.EVERY - 1)
        assert not calls
        disk.finish()
    assert calls == [str(tmp_path)]


def test_what_could_not_be_written_early_is_told_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()

    def failing_once(descriptor: int, path: str) -> None:
        if not failed.is_set():
            failed.set()
            raise OSError(5, "broken disk")

    monkeypatch.setattr(writeback, "sync_file_system", failing_once)
    with contextlib.closing(WriteBack(str(tmp_path))) as disk:
        disk.wrote(writeback.EVERY)
        assert failed.wait(PATIENCE)
        with pytest.raises(OSError, match="broken disk"):
            disk.finish()


def test_the_real_system_call_is_made_and_its_failure_is_told(tmp_path: Path) -> None:
    with contextlib.closing(WriteBack(str(tmp_path))) as disk:
        disk.finish()
    with pytest.raises(OSError, match="somewhere"):
        writeback.sync_file_system(-1, "somewhere")


def test_a_sink_that_is_closed_meanwhile_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, seen = threading.Event(), threading.Event()
    usable: list[bool] = []

    def slow(descriptor: int, path: str) -> None:
        assert closed.wait(PATIENCE)
        usable.append(os.path.samestat(os.fstat(descriptor), tmp_path.stat()))
        seen.set()

    monkeypatch.setattr(writeback, "sync_file_system", slow)
    disk = WriteBack(str(tmp_path))
    disk.wrote(writeback.EVERY)
    thread = next(thread for thread in threading.enumerate() if thread.name == "sync")
    disk.close()
    closed.set()
    assert seen.wait(PATIENCE)
    thread.join(PATIENCE)
    assert usable == [True]
    assert tmp_path not in [Path(os.path.realpath(link)) for link in Path("/proc/self/fd").iterdir()]

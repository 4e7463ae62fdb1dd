"""Atomic and durable writes, also on file systems that cannot sync directories."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from outlast import filesystem
from outlast.filesystem import describe_error, is_gone, sync_directory, write_durably
from outlast.local_cluster.job_log import JobLog, JobLogState


def is_directory(descriptor: int) -> bool:
    return stat.S_ISDIR(os.fstat(descriptor).st_mode)


def refuse_to_sync_directories(patch: pytest.MonkeyPatch, code: int) -> None:
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if is_directory(descriptor):
            raise OSError(code, os.strerror(code))
        real(descriptor)

    patch.setattr(os, "fsync", fsync)


def test_a_durable_write_syncs_the_file_before_the_rename_and_the_directory_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    synced: list[tuple[str, bytes]] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        kind = "directory" if is_directory(descriptor) else "file"
        if kind == "file":
            assert Path("/proc/self/fd/%d" % descriptor).read_bytes() == b"new"
        synced.append((kind, path.read_bytes()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write_durably(path, b"new")
    assert synced == [("file", b"old"), ("directory", b"new")]
    assert [left.name for left in tmp_path.iterdir()] == ["file"]


class NoSpace:
    """A file on a disk that is full after half of a write."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __enter__(self) -> NoSpace:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, content: bytes) -> None:
        self._file.write(content[: len(content) // 2])
        self._file.flush()
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("before", [None, b"old"])
@pytest.mark.parametrize("failing", ["open", "write", "fsync", "replace", "interrupt"])
def test_a_failed_durable_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, before: bytes | None
) -> None:
    path = tmp_path / "file"
    if before is not None:
        path.write_bytes(before)
    real = filesystem.create_file

    def fail(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt if failing == "interrupt" else OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        if failing == "write":
            patch.setattr(filesystem, "create_file", lambda *args: NoSpace(real(*args)))
        elif failing == "open":
            patch.setattr(filesystem, "create_file", fail)
        elif failing == "replace":
            patch.setattr(Path, failing, fail)
        else:
            patch.setattr(os, "fsync", fail)
        with pytest.raises((OSError, KeyboardInterrupt)):
            write_durably(path, b"new content")
    assert [left.name for left in tmp_path.iterdir()] == (["file"] if before else [])
    assert before is None or path.read_bytes() == before
    write_durably(path, b"new content")
    assert path.read_bytes() == b"new content"


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.EBADF], ids=errno.errorcode.get)
def test_a_file_system_that_cannot_sync_directories_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    refuse_to_sync_directories(monkeypatch, code)
    sync_directory(tmp_path)
    write_durably(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    log = JobLog(tmp_path / "jobs.jsonl")
    log.rewrite(JobLogState(next_id=7))
    log.close()
    assert JobLog(log.path).load().next_id == 7


def test_a_failed_sync_of_a_directory_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_to_sync_directories(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        write_durably(tmp_path / "file", b"new")
    with pytest.raises(OSError, match="Input/output"):
        JobLog(tmp_path / "jobs.jsonl").rewrite(JobLogState())


def test_a_directory_is_gone_if_it_or_one_above_it_is_missing_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "file").touch()
    assert not is_gone(tmp_path / "a" / "b")
    for path in ("c", "a/c", "c/d/e", "file", "file/a", "file/a/b"):
        assert is_gone(tmp_path / path), path


def test_a_directory_behind_a_link_or_an_error_is_not_known_to_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "not mounted")
    assert not is_gone(tmp_path / "link") and not is_gone(tmp_path / "link" / "a" / "b")

    def scandir(path: Path) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "scandir", scandir)
    assert not is_gone(tmp_path / "missing")


def test_an_error_is_described_by_its_path_and_cause() -> None:
    assert (
        describe_error(PermissionError(errno.EACCES, "Permission denied", "/a/b"))
        == "/a/b: Permission denied"
    )
    renaming = IsADirectoryError(errno.EISDIR, "Is a directory", "/a", None, "/b")
    assert describe_error(renaming) == "/a -> /b: Is a directory"
    assert describe_error(OSError("unforeseen")) == "unforeseen"


def test_a_link_at_the_temporary_name_is_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / (".note.%d.tmp" % os.getpid())).symlink_to(victim)
    write_durably(tmp_path / "note", b"new")
    assert victim.read_text() == "mine"
    assert (tmp_path / "note").read_text() == "new" and not (tmp_path / "note").is_symlink()

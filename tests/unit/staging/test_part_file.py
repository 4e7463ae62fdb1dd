"""A part file survives its process, belongs to one process at a time, and follows no links."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from outlast.node.staging.fetch.part_file import PartFile, PartInUse


def _ignore(block: object) -> None:
    pass


def _part(folder: Path) -> Path:
    return folder / ".a.part"


def _leave_part(folder: Path, identity: str, content: bytes) -> None:
    sink = PartFile(str(folder), "a")
    sink.resume(identity, _ignore)
    sink.write(content)
    sink.close()


def _resumed(folder: Path, identity: str) -> bytes:
    """Return the bytes that a resumed part file replays."""
    sink, seen = PartFile(str(folder), "a"), bytearray()
    try:
        assert sink.resume(identity, seen.extend) == len(seen)
    finally:
        sink.close()
    return bytes(seen)


def test_written_bytes_are_replayed_to_the_next_process_which_continues_after_them(tmp_path: Path) -> None:
    _leave_part(tmp_path, "one", b"abc")
    sink, seen = PartFile(str(tmp_path), "a"), bytearray()
    assert sink.resume("one", seen.extend) == 3
    assert seen == b"abc"
    sink.write(memoryview(b"def"))
    assert sink.needs(10) == 4
    assert not (tmp_path / "a").exists()
    sink.finish()
    assert (tmp_path / "a").read_bytes() == b"abcdef"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_bytes_left_for_another_file_are_discarded(tmp_path: Path) -> None:
    _leave_part(tmp_path, "one", b"abc")
    assert _resumed(tmp_path, "two") == b""
    assert _resumed(tmp_path, "one") == b""


def test_a_restart_discards_all_bytes(tmp_path: Path) -> None:
    sink = PartFile(str(tmp_path), "a")
    sink.resume("one", _ignore)
    sink.write(b"abc")
    sink.restart()
    sink.write(b"x")
    sink.close()
    assert _resumed(tmp_path, "one") == b"x"


@pytest.mark.parametrize("note", ["", "{", "[]", '{"identity": 7}', json.dumps({"identity": "two"})])
def test_a_note_of_another_identity_or_without_one_discards_the_bytes(tmp_path: Path, note: str) -> None:
    _leave_part(tmp_path, "one", b"abc")
    (tmp_path / ".a.part.json").write_text(note)
    assert _resumed(tmp_path, "one") == b""


def test_two_processes_cannot_write_the_same_part(tmp_path: Path) -> None:
    first, second = PartFile(str(tmp_path), "a"), PartFile(str(tmp_path), "a")
    first.resume("one", _ignore)
    first.write(b"abc")
    with pytest.raises(PartInUse, match="another process is fetching this file"):
        second.resume("two", _ignore)
    second.close()
    first.finish()
    # The part's name is free again, and the finished file is not touched.
    second.resume("two", _ignore)
    second.write(b"x")
    second.close()
    assert (tmp_path / "a").read_bytes() == b"abc"


@pytest.mark.parametrize("next_one", [False, True], ids=["finished", "finished and started again"])
def test_a_part_that_gets_its_name_while_it_is_opened_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, next_one: bool
) -> None:
    first, second = PartFile(str(tmp_path), "a"), PartFile(str(tmp_path), "a")
    first.resume("one", _ignore)
    first.write(b"abc")
    open_file, opened = os.open, []

    def finish_after(path: str, flags: int, *arguments: int, **options: int) -> int:
        descriptor = open_file(path, flags, *arguments, **options)
        if path == ".a.part" and not opened:
            opened.append(descriptor)
            first.finish()
            if next_one:
                _part(tmp_path).touch()
        return descriptor

    monkeypatch.setattr(os, "open", finish_after)
    second.resume("one", _ignore)
    second.write(b"x")
    second.close()
    assert (tmp_path / "a").read_bytes() == b"abc"


def test_a_link_in_its_way_is_removed_and_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "data"
    folder.mkdir()
    _part(folder).symlink_to(victim)
    (folder / ".a.part.json").symlink_to(victim)
    _leave_part(folder, "one", b"abc")
    _part(folder).unlink()
    os.link(victim, _part(folder))
    _leave_part(folder, "one", b"abc")
    _part(folder).unlink()
    os.mkfifo(_part(folder))
    _leave_part(folder, "one", b"abc")
    assert victim.read_text() == "precious"
    assert _resumed(folder, "one") == b"abc"


def test_a_directory_in_its_way_is_an_error_and_stays(tmp_path: Path) -> None:
    _part(tmp_path).mkdir()
    with pytest.raises(IsADirectoryError):
        _leave_part(tmp_path, "one", b"abc")
    assert _part(tmp_path).is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file away")
def test_a_file_of_another_user_is_replaced(tmp_path: Path) -> None:
    _leave_part(tmp_path, "one", b"abc")
    os.chown(_part(tmp_path), 12345, 12345)
    assert _resumed(tmp_path, "one") == b""
    assert _part(tmp_path).stat().st_uid == 0


def test_a_full_disk_leaves_a_part_that_can_be_resumed(tmp_path: Path) -> None:
    sink = PartFile(str(tmp_path), "a")
    sink.resume("one", _ignore)
    sink.write(b"abc")
    write = os.write
    with pytest.MonkeyPatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(os, "write", lambda descriptor, data: _then_full(write, descriptor, data))
        sink.write(b"defghi")
    sink.close()
    assert _resumed(tmp_path, "one") == b"abcdef"


def _then_full(write: object, descriptor: int, data: memoryview) -> int:
    if len(data) <= 3:
        raise OSError(28, "No space left on device")
    return write(descriptor, data[:3])  # type: ignore[operator, no-any-return]

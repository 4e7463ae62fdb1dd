"""Outputs are carried over and delivered whole and durable; scratch is removed; checkpoints are watched."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from outlast.node import files
from outlast.node.diagnosis import oom
from outlast.node.outputs import delivery
from outlast.node.scratch import Scratch
from outlast.node.snapshots.checkpoint_watch import CheckpointWatch
from outlast.untrusted_files import remove_tree


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _tree(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def output(tmp_path: Path) -> Path:
    output = tmp_path / "scratch" / "output"
    (output / "deep").mkdir(parents=True)
    (output / "a").write_text("one")
    (output / "deep" / "b").write_text("two")
    (tmp_path / "exchange").mkdir()
    return output


EXPECTED = {"a": "one", "deep/b": "two"}


def _check(manifest: delivery.Manifest, target: Path) -> None:
    assert _tree(target) == EXPECTED
    assert manifest == {
        name: {"size": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}
        for name, text in EXPECTED.items()
    }
    assert _names(target.parent) == ["output"]


def test_outputs_are_delivered_with_their_sizes_and_checksums(output: Path, tmp_path: Path) -> None:
    target = tmp_path / "exchange" / "output"
    _check(delivery.deliver(str(output), str(target)), target)
    assert not output.exists()


def test_outputs_are_delivered_to_another_file_system_and_still_appear_at_once(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "exchange" / "output"
    rename = os.rename

    def across(source: str, goal: str) -> None:
        if source == str(output):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        rename(source, goal)

    monkeypatch.setattr(os, "rename", across)
    _check(delivery.deliver(str(output), str(target)), target)
    assert _tree(output) == EXPECTED


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_delivery_that_fails_leaves_nothing_behind(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space"):
        delivery.deliver(str(output), str(tmp_path / "exchange" / "output"))
    assert _names(tmp_path / "exchange") == []
    assert _tree(output) == EXPECTED


def test_every_file_is_durable_before_the_name_appears(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, rename = os.fsync, os.rename

    def note_sync(descriptor: int) -> None:
        done.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def note_rename(source: str, goal: str) -> None:
        done.append("rename")
        rename(source, goal)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "rename", note_rename)
    delivery.deliver(str(output), str(tmp_path / "exchange" / "output"))
    assert sorted(done[: done.index("rename")]) == ["a", "b", "deep", "output"]
    assert done[-1] == "exchange"


@pytest.mark.parametrize("number", [errno.EPERM, errno.EXDEV, errno.EMLINK])
def test_a_file_that_cannot_be_linked_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(source: str, target: str, **_: object) -> None:
        raise OSError(number, os.strerror(number))

    (tmp_path / "a").write_text("one")
    files.link_or_copy(str(tmp_path / "a"), str(tmp_path / "linked"))
    assert (tmp_path / "linked").samefile(tmp_path / "a")
    monkeypatch.setattr(os, "link", refuse)
    files.link_or_copy(str(tmp_path / "a"), str(tmp_path / "copied"))
    assert not (tmp_path / "copied").samefile(tmp_path / "a")
    assert (tmp_path / "copied").read_text() == "one"


def test_another_error_of_a_link_is_raised(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one")
    (tmp_path / "b").write_text("two")
    with pytest.raises(FileExistsError):
        files.link_or_copy(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (tmp_path / "b").read_text() == "two"


def _later() -> float:
    return time.monotonic() + 60


def test_unfinished_outputs_are_carried_over_and_the_old_scratch_is_removed(
    tmp_path: Path, output: Path
) -> None:
    (output / "latest").symlink_to("a")
    scratch = Scratch(str(tmp_path / "next"))
    scratch.prepare(str(output.parent))
    scratch.carry_over(str(output.parent))
    assert _tree(tmp_path / "next" / "output") == {**EXPECTED, "latest": "one"}
    assert (tmp_path / "next" / "output" / "latest").readlink() == Path("a")
    assert not output.parent.exists()


def test_outputs_survive_an_attempt_that_was_killed_while_it_copied_them(
    tmp_path: Path, output: Path
) -> None:
    class Killed(BaseException):
        pass

    def die() -> None:
        if (tmp_path / "middle" / ".output.tmp" / "a").exists():
            raise Killed

    middle = Scratch(str(tmp_path / "middle"))
    middle.prepare(str(output.parent))
    with pytest.raises(Killed):
        middle.carry_over(str(output.parent), pulse=die)
    last = Scratch(str(tmp_path / "last"))
    last.prepare(middle.top)
    last.carry_over(middle.top)
    assert _tree(tmp_path / "last" / "output") == EXPECTED
    assert not (tmp_path / "middle").exists()
    assert not output.parent.exists()


def test_outputs_survive_an_attempt_that_was_stopped_before_it_copied_them(
    tmp_path: Path, output: Path
) -> None:
    middle = Scratch(str(tmp_path / "middle"))
    middle.prepare(str(output.parent))
    assert middle.clear(keep_output=True, until=_later())
    last = Scratch(str(tmp_path / "last"))
    last.prepare(middle.top)
    last.carry_over(middle.top)
    assert _tree(tmp_path / "last" / "output") == EXPECTED


@pytest.mark.parametrize("previous", [None, "/nowhere/at/all"])
def test_without_earlier_outputs_the_output_directory_is_empty(tmp_path: Path, previous: str | None) -> None:
    scratch = Scratch(str(tmp_path / "s"))
    scratch.prepare(previous)
    scratch.carry_over(previous)
    assert _names(Path(scratch.output)) == []
    assert _names(Path(scratch.top)) == ["code.json", "data", "job", "output"]


def test_scratch_is_removed_except_outputs_that_are_still_needed(tmp_path: Path, output: Path) -> None:
    scratch = Scratch(str(output.parent))
    scratch.prepare(None)
    (output.parent / "job" / "deep").mkdir()
    (output.parent / "job" / "deep" / "x").write_text("x")
    assert scratch.clear(keep_output=True, until=_later())
    assert _names(output.parent) == ["output"]
    assert _tree(output) == EXPECTED
    assert scratch.clear(keep_output=False, until=_later())
    assert not output.parent.exists()


def test_cleanup_ends_in_time_even_if_it_is_not_complete(output: Path) -> None:
    assert not Scratch(str(output.parent)).clear(keep_output=False, until=time.monotonic() - 1)
    assert _tree(output) == EXPECTED


def test_new_and_rewritten_checkpoints_are_progress_and_removed_or_temporary_ones_are_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "old").write_text("1")
    watch = CheckpointWatch(str(tmp_path))
    assert not watch.changed()
    (tmp_path / ".step-2.tmp").mkdir()
    (tmp_path / ".step-2.tmp" / "state").write_text("half")
    assert not watch.changed()
    (tmp_path / ".step-2.tmp").rename(tmp_path / "step-2")
    assert watch.changed()
    assert not watch.changed()
    (tmp_path / "step-2" / "state").write_text("longer")
    assert watch.changed()
    shutil.rmtree(tmp_path / "step-2")
    assert not watch.changed()
    assert not watch.progressed
    os.utime(tmp_path / "old", (5, 5))
    assert watch.changed()
    assert watch.progressed


def test_a_missing_checkpoint_directory_shows_no_progress(tmp_path: Path) -> None:
    watch = CheckpointWatch(str(tmp_path / "none"))
    assert not watch.changed()
    assert not watch.progressed


@pytest.mark.parametrize(
    ("own", "counter"),
    [
        ("0::/job\n", "job/memory.events"),
        ("0::/hidden\n", "memory.events"),
        ("4:cpu:/a\n5:memory:/job\n", "memory/job/memory.oom_control"),
    ],
)
def test_the_kernels_counter_of_memory_kills_is_read(tmp_path: Path, own: str, counter: str) -> None:
    (tmp_path / "own").write_text(own)
    file = tmp_path / "fs" / counter
    file.parent.mkdir(parents=True)
    file.write_text("oom 5\noom_kill 3\n")
    assert oom.oom_kills(str(tmp_path / "fs"), str(tmp_path / "own")) == 3


def test_a_missing_counter_of_memory_kills_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("garbage\n\n0::/x\n")
    assert oom.oom_kills(str(tmp_path / "fs"), str(tmp_path / "own")) is None
    assert oom.oom_kills(str(tmp_path / "fs"), str(tmp_path / "gone")) is None


def test_a_tree_is_removed_however_deep_it_is_and_links_are_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    top = tmp_path / "tree/top"
    top.mkdir(parents=True)
    for number in range(2500):  # more bytes than a path can have
        (top / "file").write_text("x")
        (top / "link").symlink_to(kept)
        if number % 100 == 0:
            (top / "empty").mkdir(mode=0)
        outer = tmp_path / "tree/outer"
        outer.mkdir()
        top.rename(outer / "d")
        outer.rename(top)
    remove_tree(str(tmp_path / "tree"))
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (kept / "file").exists()

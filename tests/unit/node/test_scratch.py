"""The next attempt on a node removes what a killed attempt has left there, and nothing else."""

from __future__ import annotations

import math
import os
import stat
import time
from pathlib import Path

import pytest

from outlast.node.outputs.made_files import NO_CODE
from outlast.node.scratch import Scratch, node_directory_name


def prepare_scratch(tmp_path: Path, token: str) -> Scratch:
    scratch = Scratch(str(tmp_path / "shared" / token), str(tmp_path / "node" / node_directory_name(token)))
    scratch.prepare(None)
    return scratch


def names(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "node").iterdir()}


def test_the_directory_of_a_killed_attempt_is_removed(tmp_path: Path) -> None:
    killed, ours = prepare_scratch(tmp_path, "killed-1"), prepare_scratch(tmp_path, "ours-1")
    descriptor = killed.mark_in_use()
    assert descriptor is not None
    (tmp_path / "node" / node_directory_name("killed-1") / "data" / "large").write_bytes(b"x" * 1000)
    ours.remove_abandoned(math.inf)
    assert names(tmp_path) == {"outlast-killed-1", "outlast-ours-1"}
    os.close(descriptor)  # as the kernel does when a process is killed
    ours.remove_abandoned(math.inf)
    assert names(tmp_path) == {"outlast-ours-1"}


def test_a_new_directory_without_a_lock_is_kept(tmp_path: Path) -> None:
    prepare_scratch(tmp_path, "young-1")
    old = Path(prepare_scratch(tmp_path, "old-1").on_node or "")
    ours = prepare_scratch(tmp_path, "ours-1")
    long_ago = time.time() - 3 * 86400
    os.utime(old, (long_ago, long_ago))
    ours.remove_abandoned(math.inf)
    assert names(tmp_path) == {"outlast-young-1", "outlast-ours-1"}


@pytest.mark.parametrize("kind", ["link", "other name", "file"])
def test_other_files_and_directories_are_kept(tmp_path: Path, kind: str) -> None:
    ours = prepare_scratch(tmp_path, "ours-1")
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("precious")
    if kind == "link":
        (tmp_path / "node" / "outlast-link").symlink_to(precious)
    elif kind == "file":
        (tmp_path / "node" / "outlast-file").write_text("file")
    else:
        precious.rename(tmp_path / "node" / "precious")
    before = names(tmp_path)
    ours.remove_abandoned(math.inf)
    assert names(tmp_path) == before
    assert any(path.read_text() == "precious" for path in tmp_path.rglob("file"))


def test_links_to_data_are_removed_and_the_data_is_kept(tmp_path: Path) -> None:
    killed, ours = prepare_scratch(tmp_path, "killed-1"), prepare_scratch(tmp_path, "ours-1")
    store = tmp_path / "store"
    store.mkdir()
    (store / "file").write_text("kept")
    (Path(killed.data) / "train").symlink_to(store)
    descriptor = killed.mark_in_use()
    assert descriptor is not None
    os.close(descriptor)
    ours.remove_abandoned(math.inf)
    assert names(tmp_path) == {"outlast-ours-1"}
    assert (store / "file").read_text() == "kept"


@pytest.mark.parametrize("on_node", [True, False])
def test_files_that_came_with_a_job_are_in_its_working_directory_and_leave_with_it(
    tmp_path: Path, on_node: bool
) -> None:
    """Without a shared file system, there is no earlier scratch: the archive is in the new one."""
    first = Scratch(str(tmp_path / "first"), str(tmp_path / "node-1") if on_node else None, True)
    first.prepare(None)
    assert first.carry_over(None) == []
    Path(first.working, ".best.pt").write_text("best")
    assert first.stash(NO_CODE, 10, []) == []
    assert first.clear(keep_output=True, until=math.inf)
    assert not os.path.lexists(first.working), "transferred twice"
    second = Scratch(str(tmp_path / "second"), str(tmp_path / "node-2") if on_node else None, True)
    second.prepare(None)
    Path(first.made).rename(second.made)
    assert second.carry_over(None) == []
    assert Path(second.working, ".best.pt").read_text() == "best"
    # It was not changed, and leaves again.
    assert second.stash(NO_CODE, 10, []) == [] and Path(second.made).is_file()


def test_the_directory_on_a_node_is_for_this_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        ours = Path(prepare_scratch(tmp_path, "ours-1").on_node or "")
    finally:
        os.umask(before)
    assert stat.S_IMODE(ours.stat().st_mode) == 0o700
    ours.chmod(0o777)  # as an earlier version made it
    prepare_scratch(tmp_path, "ours-1")
    assert stat.S_IMODE(ours.stat().st_mode) == 0o700


def test_a_directory_on_a_node_that_another_user_made_before_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = tmp_path / "node" / node_directory_name("ours-1")
    planted.mkdir(parents=True)
    another = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: another)
    with pytest.raises(PermissionError, match="belongs to another user"):
        prepare_scratch(tmp_path, "ours-1")
    assert list(planted.iterdir()) == []

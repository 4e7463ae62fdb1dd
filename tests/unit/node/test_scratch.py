"""What a killed attempt has left on a node is removed by the next one that comes there, and nothing else."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import pytest

from outlast.node.scratch import Scratch, node_directory_name


def at_work(tmp_path: Path, token: str) -> Scratch:
    scratch = Scratch(str(tmp_path / "shared" / token), str(tmp_path / "node" / node_directory_name(token)))
    scratch.prepare(None)
    return scratch


def names(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "node").iterdir()}


def test_what_a_killed_attempt_left_is_swept_up(tmp_path: Path) -> None:
    killed, ours = at_work(tmp_path, "killed-1"), at_work(tmp_path, "ours-1")
    descriptor = killed.occupy()
    assert descriptor is not None
    (tmp_path / "node" / node_directory_name("killed-1") / "data" / "large").write_bytes(b"x" * 1000)
    ours.sweep_up(math.inf)
    assert names(tmp_path) == {"outlast-killed-1", "outlast-ours-1"}
    os.close(descriptor)  # as the kernel does when a process is killed
    ours.sweep_up(math.inf)
    assert names(tmp_path) == {"outlast-ours-1"}


def test_one_that_has_just_begun_and_has_no_lock_yet_is_left_alone(tmp_path: Path) -> None:
    at_work(tmp_path, "young-1")
    old = Path(at_work(tmp_path, "old-1").on_node or "")
    ours = at_work(tmp_path, "ours-1")
    long_ago = time.time() - 3 * 86400
    os.utime(old, (long_ago, long_ago))
    ours.sweep_up(math.inf)
    assert names(tmp_path) == {"outlast-young-1", "outlast-ours-1"}


@pytest.mark.parametrize("kind", ["link", "other name", "file"])
def test_what_is_not_an_attempts_directory_is_left_alone(tmp_path: Path, kind: str) -> None:
    ours = at_work(tmp_path, "ours-1")
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
    ours.sweep_up(math.inf)
    assert names(tmp_path) == before
    assert any(path.read_text() == "precious" for path in tmp_path.rglob("file"))


def test_the_links_to_data_go_and_the_data_stays(tmp_path: Path) -> None:
    killed, ours = at_work(tmp_path, "killed-1"), at_work(tmp_path, "ours-1")
    store = tmp_path / "store"
    store.mkdir()
    (store / "file").write_text("kept")
    (Path(killed.data) / "train").symlink_to(store)
    descriptor = killed.occupy()
    assert descriptor is not None
    os.close(descriptor)
    ours.sweep_up(math.inf)
    assert names(tmp_path) == {"outlast-ours-1"}
    assert (store / "file").read_text() == "kept"

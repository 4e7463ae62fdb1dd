"""The directory of the local cluster."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outlast.errors import BadInput, NotWritable
from outlast.local_cluster.directory import _root_without_home, cluster_directory, find_root


def test_the_environment_variable_sets_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLAST_LOCAL_ROOT", str(tmp_path / "mine"))
    assert cluster_directory("local") == tmp_path / "mine" / "local"


def test_by_default_it_is_in_the_state_directory_under_the_machines_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OUTLAST_LOCAL_ROOT", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert find_root() == tmp_path / "outlast" / ("local-" + os.uname().nodename)
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert find_root().parent == tmp_path / "home" / ".local" / "state" / "outlast"


def test_a_new_directory_is_for_its_owner_only(tmp_path: Path) -> None:
    assert cluster_directory("local", tmp_path / "root").stat().st_mode & 0o777 == 0o700


def test_in_a_world_writable_place_the_directory_is_for_its_owner_only(tmp_path: Path) -> None:
    root = _root_without_home(tmp_path)
    assert root.stat().st_mode & 0o777 == 0o700
    assert _root_without_home(tmp_path) == root


def test_in_a_world_writable_place_a_directory_open_to_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / ("outlast-%d" % os.getuid())).mkdir(mode=0o755)
    with pytest.raises(NotWritable, match="OUTLAST_LOCAL_ROOT"):
        _root_without_home(tmp_path)


def test_in_a_world_writable_place_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / ("outlast-%d" % os.getuid())).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotWritable):
        _root_without_home(tmp_path)


def test_a_directory_that_cannot_be_created_is_named_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritable, match=r"file.*OUTLAST_LOCAL_ROOT"):
        cluster_directory("local", tmp_path / "file")


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
@pytest.mark.parametrize("place", ["root", "root/local"])
def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path, place: str, mode: int) -> None:
    (tmp_path / "root" / "local").mkdir(parents=True)
    (tmp_path / place).chmod(mode)
    with pytest.raises(NotWritable, match=r"chmod go-w .*%s`" % place):
        cluster_directory("local", tmp_path / "root")
    (tmp_path / place).chmod(mode & ~0o022)
    assert cluster_directory("local", tmp_path / "root").is_dir()


def test_a_shared_directory_in_which_nobody_can_replace_ours_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root").chmod(0o1777)
    assert cluster_directory("local", tmp_path / "root").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("place", ["root", "root/local"])
def test_a_directory_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "root" / "local").mkdir(parents=True)
    if os.geteuid() == 0:
        os.chown(tmp_path / place, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(NotWritable, match=r"not a directory of yours.*OUTLAST_LOCAL_ROOT"):
        cluster_directory("local", tmp_path / "root")


def test_a_link_in_the_place_of_the_clusters_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "local").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotWritable, match="not a directory of yours"):
        cluster_directory("local", tmp_path / "root")


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "a b", "x" * 200])
def test_a_name_that_is_not_a_plain_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match="name"):
        cluster_directory(name, tmp_path)

"""A cache directory that users share: nobody can put data of theirs in the place of another user's."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from outlast.node.staging.cache import content_state, user_directory
from outlast.node.staging.cache.data_cache import DataCache
from outlast.node.staging.cache.entry import write_entry
from outlast.node.staging.cache.user_directory import UnsafeCache

forked = multiprocessing.get_context("fork")
#: A user that is not this one: root tests with it, other users only pretend.
OTHER = 65534
MINE = f"of-{os.geteuid()}"
RIGHT, POISON = b"right", b"worse"


def fill(place: str, pulse: Callable[[], None]) -> None:
    Path(place, "content").write_bytes(RIGHT)
    write_entry(place, len(RIGHT), "https://example.org/data")


def as_other_user(act: Callable[[int], None], directory: Path) -> None:
    """Let another user act in a directory, given as a descriptor; without root, this user plays the role."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)

    def run() -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(OTHER)
            os.setuid(OTHER)
        os.umask(0)
        act(descriptor)

    process = forked.Process(target=run)
    process.start()
    process.join(30)
    os.close(descriptor)
    assert process.exitcode == 0


def swap(root: int) -> None:
    """Put a directory with poisoned entries, complete in all respects, in the place of the user's."""
    os.rename(MINE, "aside", src_dir_fd=root, dst_dir_fd=root)
    os.mkdir(MINE, 0o755, dir_fd=root)
    os.fchdir(root)
    os.chdir(MINE)
    for name in ("objects/key", "arriving/key", "turns", "doomed", "notes"):
        Path(name).mkdir(parents=True)
    for place in ("objects/key", "arriving/key"):
        Path(place, "content").write_bytes(POISON)
        write_entry(place, len(POISON), "https://example.org/data")


def writable_by(tmp_path: Path, mode: int) -> Path:
    root = tmp_path / "cache"
    root.mkdir()
    if os.geteuid() == 0:
        os.chown(root, 0, OTHER)
    root.chmod(mode)
    return root


def test_a_cache_directory_in_which_everybody_can_exchange_data_is_refused_with_what_to_type(
    tmp_path: Path,
) -> None:
    root = writable_by(tmp_path, 0o777)
    with pytest.raises(UnsafeCache, match=rf"chmod \+t {root}"):
        DataCache(str(root))
    assert list(root.iterdir()) == []
    root.chmod(0o1777)
    DataCache(str(root)).obtain("key", fill)


def test_a_cache_directory_of_a_group_works_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_directory, "_is_own_group", lambda status: False)
    root, warnings = writable_by(tmp_path, 0o770), list[str]()
    held = DataCache(str(root), warn=warnings.append).obtain("key", fill)
    assert Path(held.content).read_bytes() == RIGHT
    (warning,) = warnings
    assert "group" in warning and f"chmod +t {root}" in warning
    root.chmod(0o1770)
    DataCache(str(root), warn=pytest.fail)


def test_the_group_that_has_only_this_user_gives_no_warning(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    root.mkdir()
    os.chown(root, -1, os.getegid())
    root.chmod(0o770)
    warnings: list[str] = []
    DataCache(str(root), warn=warnings.append)
    assert bool(warnings) != user_directory._is_own_group(root.stat())


def test_a_directory_above_the_cache_that_everybody_can_write_to_gives_a_warning(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    warnings: list[str] = []
    DataCache(str(tmp_path / "open" / "deep" / "cache"), warn=warnings.append)
    assert [str(tmp_path / "open") in text for text in warnings] == [True]


def test_a_cache_directory_that_outlast_makes_is_writable_only_for_its_owner(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        DataCache(str(tmp_path / "cache"), warn=pytest.fail)
    finally:
        os.umask(before)
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o755


def test_a_directory_that_was_exchanged_during_the_fetch_is_not_used(tmp_path: Path) -> None:
    root = writable_by(tmp_path, 0o770)

    def exchanged(place: str, pulse: Callable[[], None]) -> None:
        fill(place, pulse)
        as_other_user(swap, root)

    with pytest.raises(UnsafeCache, match="replaced"):
        DataCache(str(root)).obtain("key", exchanged)


def test_a_directory_that_was_exchanged_before_a_lookup_is_not_used(tmp_path: Path) -> None:
    root = writable_by(tmp_path, 0o770)
    cache = DataCache(str(root))
    cache.obtain("key", fill).release()
    as_other_user(swap, root)
    with pytest.raises(UnsafeCache, match="replaced"):
        cache.find("key")


def test_a_directory_that_was_exchanged_after_the_lookup_is_noticed_when_the_link_is_made(
    tmp_path: Path,
) -> None:
    root = writable_by(tmp_path, 0o770)
    held = DataCache(str(root)).obtain("key", fill)
    held.verify()
    as_other_user(swap, root)
    with pytest.raises(UnsafeCache, match="replaced"):
        held.verify()
    with held.open() as entry, open(os.open("content", os.O_RDONLY, dir_fd=entry), "rb") as file:
        assert file.read() == RIGHT


def test_what_was_fetched_into_an_exchanged_directory_is_not_added_after_it_was_put_back(
    tmp_path: Path,
) -> None:
    root = writable_by(tmp_path, 0o770)

    def put_back(descriptor: int) -> None:
        os.rename(MINE, "theirs", src_dir_fd=descriptor, dst_dir_fd=descriptor)
        os.rename("aside", MINE, src_dir_fd=descriptor, dst_dir_fd=descriptor)

    def exchanged(place: str, pulse: Callable[[], None]) -> None:
        as_other_user(swap, root)
        as_other_user(put_back, root)

    cache = DataCache(str(root))
    with pytest.raises(UnsafeCache, match="not there"):
        cache.obtain("key", exchanged)
    assert cache.entries() == []


def test_content_that_belongs_to_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = DataCache(str(tmp_path))
    held = cache.obtain("key", fill)
    held.release()
    entry = Path(held.content).with_name("entry.json")
    if os.geteuid() == 0:
        os.chown(held.content, OTHER, OTHER)
        # Even if the record is made to fit.
        record = json.loads(entry.read_bytes())
        record["state"]["changed"] = 10**19
        entry.write_text(json.dumps(record))
    else:
        monkeypatch.setattr(content_state, "_is_trusted", lambda owner: False)
    assert cache.find("key") is None


def test_a_directory_of_another_user_in_the_place_of_the_users_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, name = writable_by(tmp_path, 0o1777), MINE
    if os.geteuid() != 0:
        name = f"of-{OTHER}"
        monkeypatch.setattr(user_directory.os, "geteuid", lambda: OTHER)
    as_other_user(lambda directory: os.mkdir(name, 0o755, dir_fd=directory), root)
    with pytest.raises(UnsafeCache, match="belongs to another user"):
        DataCache(str(root))


def test_nothing_is_made_through_a_link_in_the_place_of_the_users_directory(tmp_path: Path) -> None:
    root, elsewhere = writable_by(tmp_path, 0o1777), tmp_path / "elsewhere"
    elsewhere.mkdir()
    as_other_user(lambda directory: os.symlink(elsewhere, MINE, dir_fd=directory), root)
    with pytest.raises(UnsafeCache):
        DataCache(str(root))
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("name", ["objects", "arriving", "turns", "doomed", "notes"])
def test_nothing_is_made_through_a_link_below_the_users_directory(tmp_path: Path, name: str) -> None:
    root, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    elsewhere.mkdir()
    DataCache(str(root))
    (root / MINE / name).rmdir()
    (root / MINE / name).symlink_to(elsewhere)
    with pytest.raises(UnsafeCache):
        DataCache(str(root))
    assert list(elsewhere.iterdir()) == []


def test_the_place_of_an_unfinished_entry_is_no_link(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    elsewhere.mkdir()
    cache = DataCache(str(root))
    Path(cache.root, "arriving", "key").symlink_to(elsewhere)
    with pytest.raises(OSError, match="key"):
        cache.obtain("key", fill)
    assert list(elsewhere.iterdir()) == []


def test_a_link_of_another_user_on_the_way_to_the_cache_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, elsewhere = tmp_path / "shared", tmp_path / "elsewhere"
    for place in (shared, elsewhere):
        place.mkdir()
    shared.chmod(0o1777)
    as_other_user(lambda directory: os.symlink(elsewhere, "planted", dir_fd=directory), shared)
    if os.geteuid() != 0:
        monkeypatch.setattr(user_directory.os, "geteuid", lambda: OTHER)
    with pytest.raises(UnsafeCache, match="link that another user"):
        DataCache(str(shared / "planted" / "cache"))
    assert list(elsewhere.iterdir()) == []


def test_a_link_of_this_user_on_the_way_to_the_cache_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    held = DataCache(str(tmp_path / "link" / "cache")).obtain("key", fill)
    held.verify()
    assert (tmp_path / "real" / "cache" / MINE / "objects" / "key" / "content").read_bytes() == RIGHT


def test_a_copy_of_another_user_is_not_read_through_a_link(tmp_path: Path) -> None:
    cache = DataCache(str(tmp_path / "cache"))
    real = tmp_path / "real" / "key"
    real.mkdir(parents=True)
    (real / "content").write_bytes(RIGHT)
    theirs = tmp_path / "cache" / "of-99999"
    theirs.mkdir()
    (theirs / "objects").symlink_to(tmp_path / "real")
    assert cache.copies_of_other_users("key") == []

"""Records that anything could have written to are read within limits, and a strange one counts as absent."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from outlast.node.archives.unpacking import UnpackingSink
from outlast.node.staging import plugin_receipt
from outlast.node.staging.cache import given_up, in_place
from outlast.node.staging.cache.data_cache import DataCache
from outlast.node.staging.cache.entry import read_json
from outlast.node.staging.cache.fetch_lock import FetchLock, LockHolder
from outlast.node.staging.errors import SourceError
from outlast.node.staging.fetch.part_file import PartFile
from outlast.node.staging.sources.tokens import Tokens
from support.archives import tar

STRANGE = {
    "empty": b"",
    "torn": b'{"identity": "x',
    "a list": b"[1, 2]",
    "a number": b"17",
    "text": b'"text"',
    "null": b"null",
    "nested": b"[" * 60_000,
    "digits": b'{"count": ' + b"9" * 5000 + b', "pid": 1}',
    "binary": bytes(range(256)),
    "other types": b'{"identity": [1], "host": {}, "pid": "x", "mark": 1, "moving": [{"a": 1}]}',
    "infinite": b'{"host": "h", "pid": 1e999, "mark": "m", "count": 1e999}',
    "large": b" " * (65 << 20) + b"{}",
}


def strange_files(path: Path) -> list[Callable[[], object]]:
    """Return functions that put something strange in the place of a file."""

    def link() -> None:
        path.symlink_to("/dev/zero")

    contents = [lambda content=content: path.write_bytes(content) for content in STRANGE.values()]
    return [*contents, lambda: os.mkfifo(path), link, path.mkdir]


def each(path: Path, check: Callable[[], object]) -> None:
    """Call `check` with each strange thing in the place of `path`."""
    for make in strange_files(path):
        make()
        check()
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        elif os.path.lexists(path):
            path.unlink()


def test_a_strange_lock_names_no_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    each(path, lambda: _assert_equal(FetchLock(str(path)).holder(), LockHolder()))


def _assert_equal(one: object, other: object) -> None:
    assert one == other


def test_a_strange_record_of_the_cache_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "entry.json"

    def check() -> None:
        assert "size" not in read_json(str(path))

    each(path, check)


def test_a_strange_note_about_a_shared_file_only_costs_a_verification(tmp_path: Path) -> None:
    path = tmp_path / "record"

    def check() -> None:
        found = in_place._read(str(path))
        assert not isinstance(found, list) or found in ([1, 2], [])

    each(path, check)


def test_a_strange_note_of_a_part_discards_the_part(tmp_path: Path) -> None:
    def check() -> None:
        (tmp_path / ".a.bin.part").write_bytes(b"bytes of something")
        part = PartFile(str(tmp_path), "a.bin")
        try:
            assert part.resume("identity", lambda block: None) == 0
        finally:
            part.close()

    note = tmp_path / ".a.bin.part.json"
    for make in strange_files(note):
        make()
        if note.is_dir():
            note.rmdir()
            continue  # a note cannot replace it
        check()
        note.unlink()


def test_a_strange_receipt_is_empty(tmp_path: Path) -> None:
    receipt = tmp_path / ".data.tar.receipt"
    each(receipt, lambda: _assert_equal(plugin_receipt.read(str(tmp_path / "data.tar")), {}))


@pytest.mark.parametrize("name", [name for name in STRANGE if name != "large"])
def test_a_strange_state_of_an_unpacked_archive_is_ignored(tmp_path: Path, name: str) -> None:
    archive = tar({"a.txt": b"a"})
    sink = UnpackingSink(str(tmp_path / "tree"), "a.tar")
    Path(sink._workspace.path).mkdir()
    Path(sink._workspace._state).write_bytes(STRANGE[name])
    assert not sink.recover("x")
    assert sink.resume("x", lambda block: None) == 0
    sink.write(archive)
    sink.finish()
    assert (tmp_path / "tree" / "a.txt").read_bytes() == b"a"


@pytest.mark.parametrize(
    "move",
    [
        {"number": 1, "parent": 0, "path": "../../outside", "kept": ""},
        {"number": 1, "parent": 0, "path": "HOME/outside", "kept": ""},
        {"number": 1, "parent": 0, "path": "inside", "kept": "HOME/diary"},
        {"number": "1", "parent": 0, "path": "inside", "kept": ""},
        {"number": 1, "parent": 0, "path": "inside", "kept": "", "more": 1},
    ],
)
def test_a_move_that_leads_out_of_the_tree_is_not_made(tmp_path: Path, move: dict[str, object]) -> None:
    sink = UnpackingSink(str(tmp_path / "tree"), "a.tar")
    workspace = Path(sink._workspace.path)
    (workspace / "tree").mkdir(parents=True)
    (workspace / "late" / "1").mkdir(parents=True)
    home = tmp_path / "home"
    home.mkdir()
    (home / "diary").write_text("mine")
    state = json.dumps({"identity": "x", "moving": [move]}).replace("HOME", str(home))
    Path(sink._workspace._state).write_text(state)
    assert not sink.recover("x")
    sink.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([workspace.name, "home"])
    assert [path.name for path in home.iterdir()] == ["diary"]


@pytest.mark.parametrize("content", [b"[" * 60_000, b'{"access_token": [1]}', b'{"access_token"', b"{}"])
def test_a_strange_token_file_is_an_error_with_a_message(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token.use"
    path.write_bytes(b"{" + content if content.startswith(b"[") else content)
    path.chmod(0o600)
    with pytest.raises(SourceError, match="no token for"):
        Tokens(("example.org",), str(path)).token_for("example.org", 443)


def test_a_strange_record_of_a_process_that_gave_up_is_ignored(tmp_path: Path) -> None:
    cache = DataCache(str(tmp_path))
    path = Path(cache.root, "turns", "key.gave-up")
    each(path, lambda: given_up.raise_if_recorded(os.path.join(cache.root, "turns"), "key", "mark"))
    path.write_text('{"mark": "mark", "kind": "of a newer version", "detail": ""}')
    given_up.raise_if_recorded(os.path.join(cache.root, "turns"), "key", "mark")

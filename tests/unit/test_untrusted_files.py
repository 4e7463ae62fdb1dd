"""Files that somebody else could have changed are opened without following links, as files, within a size."""

from __future__ import annotations

import errno
import math
import os
import shutil
from pathlib import Path

import pytest

from outlast import untrusted_files
from outlast.untrusted_files import (
    create_file,
    created_below,
    directory_below,
    is_plain_name,
    open_below,
    open_directory,
    open_file,
    parse_json,
    read_below,
    read_file,
    remove,
    walk,
)


@pytest.fixture
def top(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"secret")
    top = tmp_path / "top"
    (top / "a" / "b").mkdir(parents=True)
    (top / "a" / "b" / "file").write_bytes(b"content")
    return top


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_link(path: Path) -> None:
    path.symlink_to(path.parents[2] / "outside" / "secret")


def make_socket(path: Path) -> None:
    os.mknod(path, 0o140600)


KINDS = {"pipe": make_pipe, "link": make_link, "socket": make_socket, "directory": Path.mkdir}


def test_a_file_below_is_read(top: Path) -> None:
    assert read_below(top, "a/b/file", 7) == b"content"
    with open_below(top, "a/b/file") as file:
        assert file.read() == b"content"


@pytest.mark.parametrize("kind", KINDS)
def test_anything_but_a_regular_file_is_refused_without_waiting(top: Path, kind: str) -> None:
    path = top / "a" / "odd"
    KINDS[kind](path)
    for read in (lambda: read_below(top, "a/odd", 100), lambda: open_file(path)):
        with pytest.raises(OSError):
            read()


def test_a_link_in_the_middle_of_a_path_is_refused(top: Path) -> None:
    (top / "link").symlink_to(top.parent / "outside")
    for read in (
        lambda: read_below(top, "link/secret", 100),
        lambda: open_below(top, "link/secret").__enter__(),
        lambda: directory_below(top, "link").__enter__(),
        lambda: os.close(open_directory(top / "link")),
    ):
        with pytest.raises(OSError) as caught:
            read()
        assert caught.value.errno in (errno.ENOTDIR, errno.ELOOP)


@pytest.mark.parametrize(
    "name", ["../outside/secret", "/etc/passwd", "a//b/file", "a/./b/file", "a/b/", "..", "a\0b"]
)
def test_a_name_that_leads_out_or_is_not_in_its_shortest_form_is_refused(top: Path, name: str) -> None:
    assert not is_plain_name(name)
    with pytest.raises(OSError) as caught:
        read_below(top, name, 100)
    assert caught.value.errno == errno.EINVAL


def test_a_created_file_replaces_a_link_or_a_pipe_and_writes_nothing_through_it(top: Path) -> None:
    for kind in ("link", "pipe", "socket"):
        path = top / "a" / "new"
        KINDS[kind](path)
        with untrusted_files.create_file(path) as file:
            file.write(b"ours")
        assert path.is_file() and not path.is_symlink() and path.read_bytes() == b"ours"
        path.unlink()
    assert (top.parent / "outside" / "secret").read_bytes() == b"secret"


def test_a_file_over_the_size_is_refused_and_one_that_grows_is_not_read_for_ever(top: Path) -> None:
    with pytest.raises(OSError) as caught:
        read_below(top, "a/b/file", 6)
    assert caught.value.errno == errno.EFBIG
    with pytest.raises(OSError):
        read_file("/dev/zero", 10)


@pytest.mark.parametrize(
    "text",
    ["[" * 60_000, '{"a":' * 60_000, "9" * 400, "-" + "9" * 41, "1." + "0" * 1000, "{", "", "nul"],
    ids=lambda text: text[:10],
)
def test_json_that_cannot_be_used_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        parse_json(text)


def test_an_infinite_number_takes_the_place_of_one_that_is_too_long_if_wanted() -> None:
    long = "9" * 400
    assert parse_json('{"a": %s, "b": 1.%s, "c": 1}' % (long, long), too_long=math.inf) == {
        "a": math.inf,
        "b": math.inf,
        "c": 1,
    }


def test_ordinary_json_is_parsed() -> None:
    parsed = parse_json(b'{"a": [1, -2.5e300, true, null, 18446744073709551616], "b": "\\u00e9"}')
    assert parsed == {"a": [1, -2.5e300, True, None, 2**64], "b": "é"}
    assert parse_json("NaN") != parse_json("NaN")


def test_a_walk_yields_links_and_never_follows_them(top: Path) -> None:
    (top / "a" / "up").symlink_to("..")
    (top / "z").symlink_to(top.parent / "outside")
    with directory_below(top) as descriptor:
        found = {entry.path: (entry.is_directory, entry.is_file, entry.is_link) for entry in walk(descriptor)}
    assert found == {
        "a": (True, False, False),
        "a/b": (True, False, False),
        "a/b/file": (False, True, False),
        "a/up": (False, False, True),
        "z": (False, False, True),
    }


def test_a_directory_that_becomes_a_link_during_a_walk_is_not_entered(top: Path) -> None:
    seen = []
    with directory_below(top) as descriptor:
        for entry in walk(descriptor):
            seen.append(entry.path)
            if entry.path == "a/b":
                (top / "a" / "b").rename(top / "moved")
                (top / "a" / "b").symlink_to(top.parent / "outside")
    assert "a/b/secret" not in seen


def test_a_walk_ends_with_an_error_where_directories_are_too_deep(
    top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(untrusted_files, "DEEPEST", 1)
    with directory_below(top) as descriptor, pytest.raises(OSError) as caught:
        list(walk(descriptor))
    assert caught.value.errno == errno.ELOOP


def test_no_descriptor_is_left_open(top: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    test_a_link_in_the_middle_of_a_path_is_refused(top)
    for kind, make in KINDS.items():
        make(top / "a" / kind)
        with pytest.raises(OSError):
            read_below(top, "a/" + kind, 100)
    with directory_below(top) as descriptor:
        list(walk(descriptor))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_removal_follows_no_link_and_ends_at_no_depth(top: Path) -> None:
    outside = top.parent / "outside"
    (top / "a" / "b" / "link").symlink_to(outside)
    (top / "link").symlink_to(outside)
    nest(top / "deep", 1200)
    descriptor = open_directory(top)
    try:
        for name in ("a", "link", "missing", "deep"):
            remove(name, descriptor)
    finally:
        os.close(descriptor)
    assert list(top.iterdir()) == [] and (outside / "secret").exists()


def nest(directory: Path, levels: int) -> None:
    """Create directories nested deeper than the interpreter can recurse, and than a path can name."""
    for _ in range(levels):
        above = directory.with_name("above")
        above.mkdir()
        if directory.exists():
            directory.rename(above / "d")
        above.rename(directory)


def test_what_another_process_removes_at_once_is_removed(top: Path) -> None:
    calls = 0

    def interfere() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            shutil.rmtree(top / "tree" / "a")
        if calls == 4:
            (top / "tree" / "late").mkdir()
        if calls == 7:
            shutil.rmtree(top / "tree")

    for name in "abc":
        (top / "tree" / name / "inner").mkdir(parents=True)
        (top / "tree" / name / "inner" / "file").touch()
    remove(top / "tree", check=interfere)
    assert not (top / "tree").exists()
    assert calls > 3


def test_a_directory_is_created_below_and_nothing_through_a_link(tmp_path: Path) -> None:
    top, outside = tmp_path / "top", tmp_path / "outside"
    top.mkdir()
    outside.mkdir()
    with created_below(top, "a/b") as inner, create_file("file", inner) as file:
        file.write(b"content")
    with created_below(top, "a/b") as inner:
        assert read_file("file", 100, inner) == b"content"
    (top / "a" / "link").symlink_to(outside)
    for relative in ("a/link", "a/link/c", "../outside/c"):
        with pytest.raises(OSError), created_below(top, relative):
            pass
    assert list(outside.iterdir()) == []

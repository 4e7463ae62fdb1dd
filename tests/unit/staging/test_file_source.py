"""Files as sources: the same promises as for servers, and regular files only."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.node.staging.sources.base import Body
from outlast.node.staging.sources.file_source import FileSource, path_of


def read_all(body: Body, step: int = 3) -> bytes:
    buffer, content = bytearray(step), b""
    while count := body.read_into(memoryview(buffer)):
        content += buffer[:count]
    body.close()
    return content


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data.bin"
    path.write_bytes(b"0123456789")
    return path


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [(0, None, b"0123456789"), (4, None, b"456789"), (4, 6, b"45"), (4, 99, b"456789"), (10, None, b"")],
)
def test_a_range_of_a_file_has_the_requested_bytes(
    file: Path, start: int, stop: int | None, expected: bytes
) -> None:
    body = FileSource(str(file)).open(start, stop)
    assert body.start == start
    assert body.version.size == 10
    assert read_all(body) == expected


def test_the_version_of_a_file_has_its_size_and_modification_time(file: Path) -> None:
    before = FileSource(str(file)).version()
    assert before.size == 10
    os.utime(file, ns=(1, 1))
    assert FileSource(str(file)).version().modified != before.modified


def test_anything_but_a_regular_file_is_refused_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(SourceError) as caught:
            FileSource(str(path)).open(0)
        assert caught.value.kind is ErrorKind.NONSENSE


@pytest.mark.parametrize("name", ["absent", "data.bin/below", "nul\0"])
def test_a_file_that_does_not_exist_is_missing(file: Path, name: str) -> None:
    with pytest.raises(SourceError) as caught:
        FileSource(str(file.parent / name)).open(0)
    assert caught.value.kind is ErrorKind.MISSING


def test_a_file_that_shrinks_while_it_is_read_is_truncated(file: Path) -> None:
    body = FileSource(str(file)).open(0)
    buffer = memoryview(bytearray(4))
    assert body.read_into(buffer) == 4
    os.truncate(file, 4)
    with pytest.raises(SourceError) as caught:
        body.read_into(buffer)
    assert caught.value.kind is ErrorKind.TRUNCATED


def test_a_file_that_is_shorter_than_the_bytes_already_read_has_changed(file: Path) -> None:
    with pytest.raises(SourceError) as caught:
        FileSource(str(file)).open(11)
    assert caught.value.kind is ErrorKind.CHANGED


def test_no_descriptor_leaks_however_often_a_body_is_closed(file: Path) -> None:
    before = count_descriptors()
    body = FileSource(str(file)).open(0)
    body.close()
    body.close()
    with pytest.raises(SourceError):
        body.read_into(memoryview(bytearray(1)))
    with pytest.raises(SourceError):
        FileSource(str(file)).open(11)
    FileSource(str(file)).version()
    assert count_descriptors() == before


def test_file_urls_and_paths_name_the_same_file() -> None:
    for url in ("/a/b c", "file:///a/b%20c", "file:/a/b%20c", "file://localhost/a/b%20c"):
        assert path_of(url) == "/a/b c"
    with pytest.raises(ValueError, match="file:///PATH"):
        path_of("file://elsewhere/a")

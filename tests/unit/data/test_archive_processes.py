"""An archive in several processes: forked, spawned, and on an old Python with only the zipapp."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
from pathlib import Path
from typing import Any

import pytest

from outlast.data import Archive, BadArchive, Dataset
from outlast.exchange import zipapp
from support.archives import Files, put, tar
from support.interpreters import interpreters

FILES: Files = {
    "cat.tar": {str(k): b"cat %d" % k for k in range(40)},
    "dog.tar": {str(k): b"dog %d" % k for k in range(40)},
}


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(put(tmp_path / "a.tar", tar(FILES)))


def read_all(archive: Any) -> list[Any]:
    return list(archive)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_the_same_items_as_the_parent(method: str, archive: Archive) -> None:
    expected = list(archive)
    context = multiprocessing.get_context(method)
    with context.Pool(3) as pool:
        parts = pool.map_async(read_all, [archive, archive[::2], Dataset(archive[:4])], chunksize=1)
        whole, half, labelled = parts.get(timeout=120)
    assert whole == expected
    assert half == expected[::2]
    assert labelled == [(content, 0) for content in expected[:4]]


def test_a_forked_child_reads_from_the_inherited_mapping(archive: Archive, tmp_path: Path) -> None:
    """It does so even if the file was deleted, because nothing is opened again."""
    Path(archive.path).unlink()
    child = os.fork()
    if child == 0:
        os._exit(0 if archive[41] == b"dog 1" and bytes(archive.view(0)) == b"cat 0" else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert archive[0] == b"cat 0"


def test_a_pickled_archive_has_the_path_and_not_the_content(archive: Archive, tmp_path: Path) -> None:
    assert len(pickle.dumps(archive)) < 2000
    chosen = Archive(archive.path, classes=["dog"])[1:3]
    back = pickle.loads(pickle.dumps(chosen))
    assert list(back) == [b"dog 1", b"dog 2"]
    assert back.classes == ("dog",)
    assert list(back.labels) == [0, 0]


def test_a_pickled_relative_path_works_from_another_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "a.tar", tar(FILES))
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps(Archive("a.tar"))
    monkeypatch.chdir("/")
    assert pickle.loads(pickled)[0] == b"cat 0"


def test_an_archive_that_changed_since_it_was_pickled_is_refused(archive: Archive) -> None:
    pickled = pickle.dumps(archive)
    put(Path(archive.path), tar({"x": b"another"}))
    with pytest.raises(BadArchive, match="has changed"):
        pickle.loads(pickled)[0]


@pytest.mark.parametrize("python", interpreters())
def test_a_training_script_can_read_archives_with_only_the_zipapp(
    python: str, archive: Archive, tmp_path: Path
) -> None:
    zipapp.build(tmp_path / "node.pyz")
    code = (
        "import sys; from outlast.data import Archive, Dataset; a = Archive(sys.argv[1]);"
        "print(a[1], a.classes, a.name(-1), a.open(0).read(), Dataset(a)[-1], list(a[:2]));"
        "print([m for m in sys.modules if m.split('.')[0] in ('numpy', 'torch')])"
    )
    environment = {
        "PYTHONPATH": str(tmp_path / "node.pyz"),
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
    }
    command = [python, "-S", "-c", code, archive.path]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "b'cat 1' ('cat', 'dog') dog.tar/39 b'cat 0' (b'dog 39', 1) [b'cat 0', b'cat 1']",
        "[]",
    ]

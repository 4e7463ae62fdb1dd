"""A running daemon notices every edit of the code that its jobs would run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import outlast

PACKAGE = Path(outlast.__file__).parent
IMPORTED = """
import json, pkgutil, sys
import outlast.local_cluster.daemon_main, outlast.node
for module in pkgutil.walk_packages(outlast.node.__path__, "outlast.node."):
    __import__(module.name)
names = [name for name in sys.modules if name.partition(".")[0] == "outlast"]
print(json.dumps([sys.modules[name].__file__ for name in names]))
"""
FINGERPRINTS = """
import sys
from outlast.local_cluster.fingerprint import code_fingerprint
print(code_fingerprint(), flush=True)
for line in sys.stdin:
    print(code_fingerprint(), flush=True)
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package that may be edited."""
    shutil.copytree(PACKAGE, tmp_path / "outlast", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "outlast"


def imported_files(copy: Path) -> list[Path]:
    """Return the files that a daemon, or a job forked from it, imports."""
    environment = {**os.environ, "PYTHONPATH": str(copy.parent)}
    environment.pop("OUTLAST_TOKEN", None)
    found = subprocess.run(
        [sys.executable, "-c", IMPORTED], env=environment, check=True, capture_output=True, timeout=60
    )
    return [Path(path) for path in json.loads(found.stdout)]


class Fingerprints:
    """A process that prints the fingerprint of the copy on request."""

    def __init__(self, copy: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(copy.parent)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", FINGERPRINTS],
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.last = self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line
        return line

    def changed(self) -> bool:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        before, self.last = self.last, self._line()
        return self.last != before

    def __enter__(self) -> Fingerprints:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=30)


def test_an_edit_of_any_file_that_the_daemon_or_its_jobs_import_is_noticed(copy: Path) -> None:
    files = imported_files(copy)
    names = {path.relative_to(copy).as_posix() for path in files}
    assert {
        "node/staging/fetch/fetch.py",
        "node/staging/http/body.py",
        "node/archives/tar_parser.py",
        "__init__.py",
    } <= names
    with Fingerprints(copy) as fingerprints:
        assert not fingerprints.changed()
        for path in files:
            os.utime(path, ns=(0, path.stat().st_mtime_ns + 1_000_000_000))
            assert fingerprints.changed(), path
            assert not fingerprints.changed()


def test_a_file_that_is_removed_or_replaced_by_an_older_one_is_noticed(copy: Path) -> None:
    path = copy / "node/staging/fetch/fetch.py"
    with Fingerprints(copy) as fingerprints:
        os.utime(path, ns=(0, 1_000_000_000))
        assert fingerprints.changed()
        path.unlink()
        assert fingerprints.changed()
        path.symlink_to("nowhere")
        assert not fingerprints.changed(), "editors leave such links beside a file that is being edited"


def test_an_edit_of_a_file_that_only_the_command_line_imports_does_not_matter(copy: Path) -> None:
    path = copy / "cli/commands/status.py"
    with Fingerprints(copy) as fingerprints:
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 1_000_000_000))
        assert not fingerprints.changed()

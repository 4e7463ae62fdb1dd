"""The zipapp contains the packages for the compute node, which need nothing that may be missing there."""

from __future__ import annotations

import ast
import hashlib
import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import outlast
from outlast.exchange import zipapp


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


PACKAGE = Path(outlast.__file__).parent
NODE = sorted((PACKAGE / "node").rglob("*.py"))
TRAINING = sorted((PACKAGE / "training").rglob("*.py"))
DATA = sorted((PACKAGE / "data").rglob("*.py"))
FRAMEWORKS = sorted((PACKAGE / "frameworks").rglob("*.py"))
#: Libraries whose arrays a state may contain; imported only if the training script has imported them.
OPTIONAL = {"numpy", "torch"}
#: Modules beside the packages, which need nothing but the standard library.
SHARED = [PACKAGE / "untrusted_files.py"]


def _imported(source: Path) -> set[str]:
    names: set[str] = set()
    tree = ast.parse(source.read_text(), feature_version=(3, 8))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source}: relative imports hide which package they come from"
            module = node.module or ""
            names |= {f"outlast.{a.name}" for a in node.names} if module == "outlast" else {module}
    return names - {f"outlast.{path.stem}" for path in SHARED}


@pytest.mark.parametrize("source", SHARED, ids=lambda path: path.name)
def test_a_shared_module_needs_the_standard_library_only(source: Path) -> None:
    assert {name.split(".")[0] for name in _imported(source)} <= sys.stdlib_module_names


@pytest.mark.parametrize("source", NODE, ids=lambda path: path.name)
def test_the_node_program_needs_the_standard_library_and_itself_only(source: Path) -> None:
    for name in _imported(source):
        top = name.split(".")[0]
        assert top in sys.stdlib_module_names or name.split(".")[:2] == ["outlast", "node"], name


@pytest.mark.parametrize("source", TRAINING, ids=lambda path: path.name)
def test_the_training_package_needs_the_standard_library_and_itself_only(source: Path) -> None:
    for name in _imported(source):
        top = name.split(".")[0]
        known = top in sys.stdlib_module_names or top in OPTIONAL
        assert known or name.split(".")[:2] == ["outlast", "training"], name


@pytest.mark.parametrize("source", DATA, ids=lambda path: path.name)
def test_the_data_package_needs_the_standard_library_itself_and_node_only(source: Path) -> None:
    for name in _imported(source):
        top = name.split(".")[0]
        known = top in sys.stdlib_module_names or top in OPTIONAL
        assert known or name.split(".")[:2] in (["outlast", "data"], ["outlast", "node"]), name


@pytest.mark.parametrize("source", FRAMEWORKS, ids=lambda path: path.name)
def test_an_adapter_needs_the_training_package_and_its_own_framework_only(source: Path) -> None:
    own = {source.stem, "torch"} | ({"pytorch_lightning"} if source.stem == "lightning" else set())
    for name in _imported(source):
        top, *below = name.split(".")
        ours = top == "outlast" and below[:1] in ([], ["frameworks"], ["training"])
        assert top in sys.stdlib_module_names or top in own or ours, name


def test_every_build_of_the_zipapp_has_the_same_bytes(tmp_path: Path) -> None:
    zipapp.build(tmp_path / "a.pyz")
    # In another process, and over a file that a job may be reading.
    code = "import sys, pathlib; from outlast.exchange import zipapp; zipapp.build(pathlib.Path(sys.argv[1]))"
    (tmp_path / "b.pyz").write_text("old")
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "b.pyz")], check=True, timeout=60)
    content = (tmp_path / "a.pyz").read_bytes()
    assert content == (tmp_path / "b.pyz").read_bytes()
    assert hashlib.sha256(content).hexdigest() == zipapp.digest()
    assert content.startswith(b"#!/usr/bin/env python3\n")
    assert (tmp_path / "a.pyz").stat().st_mode & stat.S_IXUSR
    assert _names(tmp_path) == ["a.pyz", "b.pyz"]


def test_the_zipapp_contains_the_four_packages_and_nothing_else(tmp_path: Path) -> None:
    zipapp.build(tmp_path / "a.pyz")
    with zipfile.ZipFile(tmp_path / "a.pyz") as archive:
        assert archive.testzip() is None
        names = archive.namelist()
    sources = [*NODE, *TRAINING, *DATA, *FRAMEWORKS, *SHARED]
    modules = [f"outlast/{path.relative_to(PACKAGE).as_posix()}" for path in sources]
    assert names == sorted(["__main__.py", "outlast/__init__.py", *modules])


def test_a_zipapp_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "a.pyz"
    target.write_text("old")

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        zipapp.build(target)
    assert target.read_text() == "old"
    assert _names(tmp_path) == ["a.pyz"]

"""The code arrives on the node exactly as it was submitted, or the attempt reports that it did not."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest

from outlast.node import code_archive


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "experiment"
    (root / "lib" / "__pycache__").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / ".git" / "HEAD").write_text("ref")
    (root / "train.py").write_text("print(1)\n")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "lib" / "net.py").write_text("x = 1\n")
    (root / "lib" / "empty").mkdir()
    (root / "lib" / "__pycache__" / "net.pyc").write_bytes(b"\0")
    return root


def _unpacked(archive: Path, digest: str | None, target: Path) -> list[str]:
    target.mkdir()
    code_archive.unpack(str(archive), digest, str(target))
    return sorted(str(path.relative_to(target)) for path in target.rglob("*"))


def test_files_and_folders_arrive_with_their_content_and_exec_bit(root: Path, tmp_path: Path) -> None:
    digest = code_archive.pack(root, ["train.py", "run.sh", "lib"], tmp_path / "code.tar")
    assert digest == hashlib.sha256((tmp_path / "code.tar").read_bytes()).hexdigest()
    names = _unpacked(tmp_path / "code.tar", digest, tmp_path / "job")
    assert names == ["lib", "lib/empty", "lib/net.py", "run.sh", "train.py"]
    assert (tmp_path / "job" / "train.py").read_text() == "print(1)\n"
    assert os.access(tmp_path / "job" / "run.sh", os.X_OK)
    assert not (tmp_path / "job" / "train.py").stat().st_mode & 0o111


def test_the_whole_directory_is_packed_without_caches_repositories_and_the_archive_itself(
    root: Path, tmp_path: Path
) -> None:
    code_archive.pack(root, ["."], root / "code.tar")
    code_archive.pack(root, ["."], root / "code.tar")
    names = _unpacked(root / "code.tar", None, tmp_path / "job")
    assert names == ["lib", "lib/empty", "lib/net.py", "run.sh", "train.py"]


def test_the_same_files_give_the_same_bytes_at_any_time_and_in_any_order(root: Path, tmp_path: Path) -> None:
    first = code_archive.pack(root, ["train.py", "lib"], tmp_path / "a.tar")
    os.utime(root / "train.py", (1, 1))
    second = code_archive.pack(root, ["lib/", "./train.py", "lib/net.py"], tmp_path / "b.tar")
    assert first == second


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../other", "leads out"),
        ("/etc/passwd", "leads out"),
        ("lib/../../x", "leads out"),
        ("nix.py", "no such"),
    ],
)
def test_a_name_that_leaves_the_experiment_or_does_not_exist_is_refused(
    root: Path, tmp_path: Path, name: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        code_archive.pack(root, [name], tmp_path / "code.tar")
    assert _names(tmp_path) == ["experiment"]


def test_a_link_inside_is_followed_and_one_that_leads_outside_is_refused(root: Path, tmp_path: Path) -> None:
    (root / "alias.py").symlink_to("lib/net.py")
    digest = code_archive.pack(root, ["alias.py"], tmp_path / "code.tar")
    _unpacked(tmp_path / "code.tar", digest, tmp_path / "job")
    assert (tmp_path / "job" / "alias.py").read_text() == "x = 1\n"
    assert not (tmp_path / "job" / "alias.py").is_symlink()
    (root / "lib" / "secret").symlink_to("/etc/hostname")
    with pytest.raises(ValueError, match="outside"):
        code_archive.pack(root, ["lib"], tmp_path / "code.tar")


def test_a_link_to_its_own_folder_and_a_pipe_are_refused(root: Path, tmp_path: Path) -> None:
    (root / "lib" / "up").symlink_to("..")
    with pytest.raises(ValueError, match="contains it"):
        code_archive.pack(root, ["lib"], tmp_path / "code.tar")
    os.mkfifo(root / "pipe")
    with pytest.raises(ValueError, match="neither"):
        code_archive.pack(root, ["pipe"], tmp_path / "code.tar")


def test_an_archive_with_one_flipped_bit_is_refused_before_anything_is_unpacked(
    root: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "code.tar"
    digest = code_archive.pack(root, ["train.py"], archive)
    data = bytearray(archive.read_bytes())
    data[600] ^= 1
    archive.write_bytes(data)
    with pytest.raises(code_archive.BadCodeArchive, match="SHA-256"):
        _unpacked(archive, digest, tmp_path / "job")
    assert _names(tmp_path / "job") == []


def _hostile(kind: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo({"up": "a/../../x", "root": "/x"}.get(kind, "x"))
    info.type = {"link": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE, "pipe": tarfile.FIFOTYPE}.get(
        kind, tarfile.REGTYPE
    )
    info.linkname = "/etc/passwd"
    return info


@pytest.mark.parametrize("kind", ["up", "root", "link", "hard", "pipe"])
def test_an_archive_with_names_outside_or_links_is_refused(tmp_path: Path, kind: str) -> None:
    with tarfile.open(tmp_path / "code.tar", "w") as archive:
        archive.addfile(_hostile(kind), io.BytesIO())
    with pytest.raises(code_archive.BadCodeArchive):
        _unpacked(tmp_path / "code.tar", None, tmp_path / "job")
    assert _names(tmp_path) == ["code.tar", "job"]


def test_a_file_that_is_not_an_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "code.tar").write_bytes(b"not a tar" * 200)
    with pytest.raises(code_archive.BadCodeArchive, match="not a readable"):
        _unpacked(tmp_path / "code.tar", None, tmp_path / "job")

"""What a training made in its working directory: found, archived, brought back."""

from __future__ import annotations

import os
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from outlast.node.files import lift_deep
from outlast.node.outputs import made_archive
from outlast.node.outputs.made_files import (
    NO_CODE,
    bring_back,
    find_made,
    list_code,
    list_made,
    read_listing,
)


@pytest.fixture
def working(tmp_path: Path) -> Path:
    directory = tmp_path / "job"
    directory.mkdir()
    (directory / "train.py").write_text("code")
    return directory


def _made(working: Path) -> dict[str, str]:
    return {str(path.relative_to(working)): path.read_text() for path in working.rglob("*") if path.is_file()}


def test_new_and_changed_files_are_found_and_code_and_caches_are_not(working: Path) -> None:
    (working / "config.json").write_text("{}")
    code = list_code(str(working), "1")
    (working / "config.json").write_text("{1: 2}")
    (working / "out").mkdir()
    (working / "out" / "best.pt").write_text("best")
    (working / "__pycache__").mkdir()
    (working / "__pycache__" / "train.pyc").write_text("cache")
    assert {path for path, _ in list_made(str(working), code)} == {"config.json", "out/best.pt"}


def test_a_listing_is_read_as_it_was_written_and_a_damaged_one_is_none(working: Path, tmp_path: Path) -> None:
    code = list_code(str(working), "1")
    path = tmp_path / "code.json"
    code.write(str(path))
    assert read_listing(str(path)) == code
    path.write_text('{"files": [1, 2]}')
    assert read_listing(str(path)) is None


@pytest.mark.parametrize("may_share", [True, False])
def test_made_files_are_brought_back_to_their_places(working: Path, tmp_path: Path, may_share: bool) -> None:
    before = list_code(str(working), "1")
    (working / "logs").mkdir()
    (working / "logs" / "log.csv").write_text("1\n")
    (working / "last").symlink_to("logs/log.csv")
    following = tmp_path / "next"
    following.mkdir()
    (following / "train.py").write_text("code")
    code = list_code(str(following), "1")
    assert bring_back(str(working), before, str(following), code, may_share=may_share) == []
    assert _made(following) == {"train.py": "code", "logs/log.csv": "1\n", "last": "1\n"}


def test_an_archive_brings_back_the_same_files(working: Path, tmp_path: Path) -> None:
    code = list_code(str(working), "1")
    (working / "logs").mkdir()
    (working / "logs" / "log.csv").write_text("1\n")
    (working / "train.py").write_text("changed by itself")
    archive = tmp_path / "made.tar"
    assert made_archive.pack(str(working), code, str(archive), None) == []
    following = tmp_path / "next"
    following.mkdir()
    (following / "train.py").write_text("newer code")
    assert made_archive.unpack(str(archive), str(following), list_code(str(following), "2")) == []
    assert _made(following) == {
        "train.py": "newer code",
        "train.py.earlier": "changed by itself",
        "logs/log.csv": "1\n",
    }


def test_named_outputs_come_first_and_what_exceeds_the_limit_is_returned(
    working: Path, tmp_path: Path
) -> None:
    code = list_code(str(working), "1")
    for name, size in (("best.pt", 100), ("small", 5), ("large", 50)):
        (working / name).write_bytes(b"x" * size)
    archive = tmp_path / "made.tar"
    left = made_archive.pack(str(working), code, str(archive), 10, ["best.pt"])
    assert [file.path for file in left] == ["large"]
    with tarfile.open(archive) as packed:
        assert packed.getnames() == ["best.pt", "small"]


def test_no_name_and_no_link_in_an_archive_leads_out_of_the_working_directory(
    working: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    archive = tmp_path / "made.tar"
    with tarfile.open(archive, "w") as packed:
        link = tarfile.TarInfo("way")
        link.type, link.linkname = tarfile.SYMTYPE, str(outside)
        packed.addfile(link)
        for name in ("../escaped", str(outside / "absolute"), "way/through"):
            info = tarfile.TarInfo(name)
            info.size = 1
            packed.addfile(info, BytesIO(b"x"))
    warnings = made_archive.unpack(str(archive), str(working), list_code(str(working), "1"))
    assert warnings
    assert list(outside.iterdir()) == []
    assert not (tmp_path / "escaped").exists()


def _nest(here: int, name: str, levels: int) -> int:
    """Make directories, one in the other; close the descriptor of the first, return one of the last."""
    for _ in range(levels):
        os.mkdir(name, dir_fd=here)
        inner = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    return here


@pytest.mark.parametrize("name, levels", [("d", 1000), ("n" * 250, 40)], ids=["many levels", "long names"])
def test_directories_nested_too_deeply_are_moved_to_the_top_with_all_files(
    working: Path, name: str, levels: int
) -> None:
    (working / "too-deep-1").write_text("taken")
    deepest = _nest(os.open(working, os.O_RDONLY), name, levels)
    with open(os.open("model.pt", os.O_WRONLY | os.O_CREAT, 0o000, dir_fd=deepest), "w") as file:
        file.write("weights")
    os.fchmod(deepest, 0)
    os.close(deepest)
    (warning,) = lift_deep(str(working))
    assert "nested too deeply" in warning and "too-deep-2" in warning
    (found,) = [path for path, _ in list_made(str(working), NO_CODE) if path.endswith("model.pt")]
    assert (working / found).read_text() == "weights"
    assert (working / "too-deep-1").read_text() == "taken"
    assert lift_deep(str(working)) == []


def test_directories_nested_too_deeply_are_left_out_and_are_no_error(working: Path, tmp_path: Path) -> None:
    code = list_code(str(working), "1")
    (working / "log.csv").write_text("1\n")
    here = os.open(working, os.O_RDONLY)
    os.close(_nest(here, "d", 250))
    assert "log.csv" in {entry.path for entry in find_made(str(working), code)}
    archive = tmp_path / "made.tar"
    assert made_archive.pack(str(working), code, str(archive), None) == []
    following = tmp_path / "next"
    following.mkdir()
    made_archive.unpack(str(archive), str(following), list_code(str(following), "1"))
    assert (following / "log.csv").read_text() == "1\n"

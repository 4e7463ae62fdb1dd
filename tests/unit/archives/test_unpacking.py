"""Archives of every format become directories that are complete, with nothing left beside them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from outlast.node.archives import decoders, finalize, writeback, zip_unpacker, zstd
from outlast.node.archives.sink import BadArchive
from outlast.node.archives.unpacking import UnpackingSink, unpack_file
from outlast.node.archives.workspace import PendingMove, Workspace
from support.archives import (
    no_sync,  # noqa: F401
    snapshot,
    tar_of,
    zip_of,
)

pytestmark = pytest.mark.usefixtures("no_sync")

FILES = {
    "a.txt": b"a",
    "empty": b"",
    "folder/b.bin": bytes(range(256)) * 5000,
    "folder/deeper/c.txt": b"c" * 512,
    "folder/ünïcode 🙂.txt": b"u",
    "long/" + "name" * 40: b"l",
}
EXPECTED = {**FILES, "folder": None, "folder/deeper": None, "long": None}


def unpacked(
    tmp_path: Path, archive: bytes, name: str = "it.tar", nested: bool = False
) -> dict[str, bytes | None]:
    """Return the files that the archive becomes; nothing may be left beside them."""
    place = tmp_path / "place"
    place.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(archive)
    unpack_file(str(tmp_path / name), str(place / "target"), nested)
    assert names_in(place) == ["target"]
    return snapshot(place / "target")


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def zstd_of(content: bytes) -> bytes:
    return subprocess.run(
        ["zstd", "-qc"], input=content, stdout=subprocess.PIPE, check=True, timeout=60
    ).stdout


needs_zstd = pytest.mark.skipif(shutil.which("zstd") is None, reason="there is no zstd program")


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tars_of_every_format_become_their_files(format: int, tmp_path: Path) -> None:
    files = {name: data for name, data in FILES.items() if format != tarfile.USTAR_FORMAT or len(name) < 100}
    found = unpacked(tmp_path, tar_of(files, format))
    assert {name: data for name, data in found.items() if data is not None} == files


@pytest.mark.parametrize(
    ("name", "compress"),
    [("it.tar.gz", gzip.compress), ("it.tbz2", bz2.compress), ("it.tar.xz", lzma.compress)],
)
def test_a_compressed_tar_is_recognised_by_its_bytes_not_its_name(
    name: str, compress: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    assert unpacked(tmp_path, compress(tar_of(FILES)), name) == EXPECTED
    assert unpacked(tmp_path, compress(tar_of(FILES)), "it.tar") == EXPECTED


def test_consecutive_streams_and_trailing_zeros_are_one_content(tmp_path: Path) -> None:
    whole = tar_of(FILES)
    for number, compress in enumerate((gzip.compress, bz2.compress, lzma.compress)):
        parts = compress(whole[:5000]) + compress(whole[5000:]) + bytes(1024)
        (tmp_path / str(number)).mkdir()
        assert unpacked(tmp_path / str(number), parts, "it.tar.any") == EXPECTED


def test_one_compressed_file_becomes_that_file(tmp_path: Path) -> None:
    assert unpacked(tmp_path, gzip.compress(b"1,2,3\n"), "table.csv.gz") == {"table.csv": b"1,2,3\n"}


@pytest.mark.parametrize(
    "compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
)
def test_a_zip_becomes_its_files(compression: int, tmp_path: Path) -> None:
    assert unpacked(tmp_path, zip_of(FILES, compression), "it.zip") == EXPECTED


def test_a_zip64_becomes_its_files(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive, archive.open("a", "w", force_zip64=True) as file:
        file.write(b"large")
    assert unpacked(tmp_path, buffer.getvalue(), "it.zip") == {"a": b"large"}


@needs_zstd
def test_zstd_is_decompressed_by_the_program_if_python_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("compression.zstd", "zstandard"):
        monkeypatch.setitem(sys.modules, module, None)
    packed = zstd_of(tar_of(FILES))
    assert unpacked(tmp_path, packed, "it.tar.zst") == EXPECTED
    for damaged in (packed[:-5], packed[:9] + b"evil" + packed[13:], packed + b"evil"):
        with pytest.raises(BadArchive, match="zstd compression is broken or truncated"):
            unpacked(tmp_path, damaged, "bad.tar.zst")


def test_the_error_without_zstd_names_what_could_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    for module in ("compression.zstd", "zstandard"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BadArchive, match="zstandard"):
        zstd.create_decoder()


def test_the_error_without_lzma_names_the_missing_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lzma", None)
    with pytest.raises(BadArchive, match="built without 'lzma'"):
        decoders.create_decoder(decoders.ArchiveFormat.XZ)


def nested_archive() -> bytes:
    """Return a tar with archives of several formats inside, to three levels."""
    inner = tar_of({"x.txt": b"x", "deep.tar": tar_of({"y.txt": b"y"})})
    return tar_of(
        {
            "train/n01.tar": inner,
            "train/n02.tar.gz": gzip.compress(inner),
            "n03.ZIP": zip_of({"z.txt": b"z", "w.tgz": gzip.compress(tar_of({"v": b"v"})), "u.tar": inner}),
            "n04.tar.xz": lzma.compress(tar_of({"t.zip": zip_of({"s": b"s"})})),
        }
    )


def test_archives_inside_become_directories_named_after_them_to_any_depth(tmp_path: Path) -> None:
    found = unpacked(tmp_path, nested_archive(), nested=True)
    assert {name: data for name, data in found.items() if data is not None} == {
        "train/n01/x.txt": b"x",
        "train/n01/deep/y.txt": b"y",
        "train/n02/x.txt": b"x",
        "train/n02/deep/y.txt": b"y",
        "n03/z.txt": b"z",
        "n03/w/v": b"v",
        "n03/u/x.txt": b"x",
        "n03/u/deep/y.txt": b"y",
        "n04/t/s": b"s",
    }


def test_archives_inside_stay_as_they_are_unless_nested_is_set(tmp_path: Path) -> None:
    found = unpacked(tmp_path, nested_archive(), nested=False)
    assert sorted(found) == ["n03.ZIP", "n04.tar.xz", "train", "train/n01.tar", "train/n02.tar.gz"]
    assert found["n03.ZIP"] is not None and zipfile.is_zipfile(io.BytesIO(found["n03.ZIP"]))


def test_files_that_only_resemble_archives_stay_as_they_are(tmp_path: Path) -> None:
    files = {
        "weights.pt": zip_of({"w": b"w"}),
        "scan.nii.gz": gzip.compress(b"scan"),
        "arrays.npz": zip_of({"a.npy": b"a"}),
        "empty.tar": b"",
        "short.tar": b"short",
        "words.tar": b"these are words, not headers " * 100,
        "words.tar.gz": b"these as well " * 100,
        "words.zip": b"and these",
        "folder/.tar": tar_of({"x": b"x"}),
    }
    found = unpacked(tmp_path, tar_of(files), nested=True)
    assert {name: data for name, data in found.items() if data is not None} == files


def test_modes_are_reset_except_for_the_executable_bit(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, mode in (("plain", 0o600), ("program", 0o700), ("suid", 0o6777), ("open", 0o666)):
            member = tarfile.TarInfo(name)
            member.mode = mode
            archive.addfile(member)
    unpacked(tmp_path, buffer.getvalue())
    before = os.umask(0)
    os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "place/target").iterdir()}
    plain, program = 0o644 & ~before, 0o755 & ~before
    assert modes == {"plain": plain, "program": program, "suid": program, "open": plain}


def test_names_that_differ_in_case_are_different_files(tmp_path: Path) -> None:
    assert unpacked(tmp_path, tar_of({"A": b"1", "a": b"2"})) == {"A": b"1", "a": b"2"}


def test_names_that_are_not_unicode_are_kept_as_they_are(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT, encoding="latin-1") as archive:
        archive.addfile(tarfile.TarInfo("fünf"))
    assert unpacked(tmp_path, buffer.getvalue()) == {os.fsdecode("fünf".encode("latin-1")): b""}


def test_files_are_added_to_an_existing_directory(tmp_path: Path) -> None:
    target = tmp_path / "place" / "target"
    (target / "folder").mkdir(parents=True)
    (target / "folder" / "mine").write_bytes(b"mine")
    (target / "a.txt").write_bytes(b"a")
    assert unpacked(tmp_path, tar_of(FILES)) == {**EXPECTED, "folder/mine": b"mine"}


@pytest.mark.parametrize("theirs", ["file", "folder", "link", "link to a folder"])
def test_existing_files_that_differ_are_not_touched(theirs: str, tmp_path: Path) -> None:
    target = tmp_path / "place" / "target"
    (target / "folder").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    match theirs:
        case "file":
            (target / "folder" / "b.bin").write_bytes(b"other")
        case "folder":
            (target / "a.txt").mkdir()
        case "link":
            (target / "a.txt").symlink_to(tmp_path / "elsewhere" / "a.txt")
        case _:
            (target / "folder").rmdir()
            (target / "folder").symlink_to(tmp_path / "elsewhere")
    before = {path: os.lstat(path).st_ino for path in target.rglob("*")}
    with pytest.raises(BadArchive, match="already"):
        unpacked(tmp_path, tar_of(FILES))
    assert {path: os.lstat(path).st_ino for path in target.rglob("*")} == before
    assert names_in(tmp_path / "place") == ["target"]
    assert not names_in(tmp_path / "elsewhere")


def test_the_same_archive_can_be_unpacked_again(tmp_path: Path) -> None:
    assert unpacked(tmp_path, nested_archive(), nested=True) == unpacked(
        tmp_path, nested_archive(), nested=True
    )


def test_two_processes_cannot_unpack_into_the_same_workspace(tmp_path: Path) -> None:
    one, two = (UnpackingSink(str(tmp_path / "target"), "it.tar") for _ in range(2))
    one.resume("it", lambda block: None)
    with pytest.raises(BlockingIOError, match="another process"):
        two.resume("it", lambda block: None)
    one.restart()
    assert two.resume("it", lambda block: None) == 0
    two.restart()
    assert not names_in(tmp_path)


def test_everything_is_synced_before_the_state_is_complete(
    no_sync: list[str],  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []
    monkeypatch.setattr(writeback, "sync_file_system", lambda descriptor, path: events.append("synced"))
    write_state, move_into_place = Workspace.write_state, finalize.move_into_place

    def recording(workspace: Workspace, identity: str, moving: list[PendingMove] | None = None) -> None:
        events.append("begun" if moving is None else "complete")
        write_state(workspace, identity, moving)

    monkeypatch.setattr(Workspace, "write_state", recording)
    monkeypatch.setattr(
        finalize, "move_into_place", lambda *args: (events.append("moved"), move_into_place(*args))
    )
    assert unpacked(tmp_path, tar_of(FILES)) == EXPECTED
    assert events == ["begun", "synced", "complete", "moved"]


@pytest.mark.parametrize("kind", ["link", "file"])
def test_a_link_or_file_in_place_of_the_workspace_is_not_followed(kind: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    place = tmp_path / ".target.it.tar.unpacking"
    if kind == "link":
        place.symlink_to(tmp_path / "elsewhere")
    else:
        place.write_bytes(b"")
    with pytest.raises(OSError, match="in the way"):
        UnpackingSink(str(tmp_path / "target"), "it.tar").resume("it", lambda block: None)
    assert not names_in(tmp_path / "elsewhere")


def _count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_thousand_nested_zips_do_not_need_a_thousand_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "a.tar"
    archive.write_bytes(tar_of({"%d.zip" % number: zip_of({"x": b"x"}) for number in range(1000)}))
    open_counts: list[int] = []
    unpack = zip_unpacker.unpack
    monkeypatch.setattr(
        zip_unpacker, "unpack", lambda *args: (open_counts.append(_count_descriptors()), unpack(*args))
    )
    before = _count_descriptors()
    unpack_file(str(archive), str(tmp_path / "out"), nested=True)
    assert len(open_counts) == len(list((tmp_path / "out").iterdir())) == 1000
    assert max(open_counts) < before + 50

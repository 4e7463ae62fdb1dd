"""`outlast.data`: the items of an archive as a sequence, with names, classes, views and files."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import pytest

from outlast import data
from outlast.data import Archive, BadArchive, Dataset
from support.archives import Files, header, put, tar, zipped

NESTED: Files = {
    "dog.tar": {"d1.JPEG": b"dog one", "d2.txt": b"dog two"},
    "cat.tar": {"c1.JPEG": b"cat one", "empty.jpeg": b"", "c3.JPEG": b"3" * 70_000},
}


@pytest.fixture
def nested(tmp_path: Path) -> Archive:
    return Archive(put(tmp_path / "a.tar", tar(NESTED)))


def archive_of(tmp_path: Path, files: Files, **options: object) -> Archive:
    return Archive(put(tmp_path / "b.tar", tar(files)), **options)  # type: ignore[arg-type]


def test_items_are_bytes_in_the_order_of_the_archive(nested: Archive) -> None:
    assert list(nested) == [b"dog one", b"dog two", b"cat one", b"", b"3" * 70_000]
    assert nested[-1] == nested[4]
    assert len(nested) == 5


def test_an_items_name_includes_the_inner_archives(nested: Archive) -> None:
    assert nested.names[:3] == ["dog.tar/d1.JPEG", "dog.tar/d2.txt", "cat.tar/c1.JPEG"]
    assert nested.name(-1) == "cat.tar/c3.JPEG"


def test_an_inner_archive_is_the_class_of_its_items(nested: Archive) -> None:
    assert nested.classes == ("cat", "dog")
    assert list(nested.labels) == [1, 1, 0, 0, 0]
    assert nested.label(-1) == 0


def test_a_view_and_a_file_have_the_same_bytes_as_the_item(nested: Archive) -> None:
    for item in range(len(nested)):
        assert bytes(nested.view(item)) == nested[item]
        with nested.open(item) as file:
            assert file.read() == nested[item]
    with nested.open(2) as file:
        assert file.seek(-3, 2) == 4
        assert file.read(2) == b"on"
        assert file.tell() == 6
        assert file.name == "cat.tar/c1.JPEG"
    with pytest.raises(TypeError):
        nested.view(0)[0] = 1


def test_a_view_stays_valid_after_the_archive_is_closed(nested: Archive) -> None:
    view = nested.view(0)
    nested.close()
    assert bytes(view) == b"dog one"
    with pytest.raises(ValueError, match="is closed"):
        nested[0]
    assert "is closed" in repr(nested)


def test_slices_and_subsets_are_archives_with_the_same_classes(nested: Archive) -> None:
    part = nested[3:0:-2]
    assert part.names == ["cat.tar/empty.jpeg", "dog.tar/d2.txt"]
    assert part.classes == nested.classes
    assert list(part.labels) == [0, 1]
    assert part[-1:][0] == b"dog two"
    assert nested.subset([4, 4, 0]).names[1] == "cat.tar/c3.JPEG"
    assert len(nested[5:]) == 0


def test_a_missing_item_is_an_index_error_with_both_numbers(nested: Archive) -> None:
    with pytest.raises(IndexError, match=r"no item -6 in .*a\.tar: it has 5"):
        nested[-6]
    with pytest.raises(IndexError, match="no item 5 "):
        nested.label(5)
    with pytest.raises(TypeError):
        nested["dog"]  # type: ignore[call-overload]


def test_suffixes_select_items_in_upper_or_lower_case(nested: Archive, tmp_path: Path) -> None:
    assert nested.filter(suffixes=[".jpeg"]).names == [
        "dog.tar/d1.JPEG",
        "cat.tar/c1.JPEG",
        "cat.tar/empty.jpeg",
        "cat.tar/c3.JPEG",
    ]
    with pytest.raises(ValueError, match=r"ends in '\.png'; names end in '\.JPEG', '\.txt', '\.jpeg'"):
        Archive(tmp_path / "a.tar", suffixes=[".png"])
    with pytest.raises(TypeError, match="must be a list"):
        nested.filter(suffixes=".jpeg")


def test_given_classes_are_numbered_in_the_given_order(nested: Archive) -> None:
    chosen = nested.filter(classes=["emu", "dog"])
    assert chosen.classes == ("emu", "dog")
    assert chosen.names == ["dog.tar/d1.JPEG", "dog.tar/d2.txt"]
    assert list(chosen.labels) == [1, 1]
    with pytest.raises(ValueError, match="there are 'cat', 'dog'"):
        nested.filter(classes=["Dog"])
    with pytest.raises(TypeError, match="list of names"):
        nested.filter(classes="dog")


def test_filters_of_a_part_select_within_the_part(nested: Archive) -> None:
    assert nested[:3].filter(suffixes=[".JPEG"], classes=["dog"]).names == ["dog.tar/d1.JPEG"]


def test_classes_are_the_first_folders_that_not_all_items_share(tmp_path: Path) -> None:
    found = archive_of(tmp_path, {"d/train/cat/1": b"", "d/train/dog/x/2": b"", "./d/train/3": b""})
    assert found.classes == ("", "cat", "dog")
    assert [found.classes[label] for label in found.labels] == ["cat", "dog", ""]
    assert found.name(2) == "d/train/3"


def test_one_folder_is_one_class_and_no_folder_is_the_empty_class(tmp_path: Path) -> None:
    assert archive_of(tmp_path, {"d/cat/1": b"", "d/cat/2": b""}).classes == ("cat",)
    assert archive_of(tmp_path, {"1": b"", "2": b""}).classes == ("",)
    assert archive_of(tmp_path, {"d/": b""}).classes == ()


def test_with_below_classes_are_determined_inside_that_folder_or_inner_archive(tmp_path: Path) -> None:
    inner: Files = {"cat/1": b"", "dog/2": b""}
    files: Files = {"train.tar": inner, "val.tar": inner, "more/emu/3": b"", "moreover/4": b""}
    whole = archive_of(tmp_path, files)
    assert whole.classes == ("more", "moreover", "train", "val")
    assert Archive(whole.path, below="train.tar").classes == ("cat", "dog")
    assert Archive(whole.path, below="more/").names == ["more/emu/3"]
    with pytest.raises(ValueError, match="nothing below 'mor'"):
        Archive(whole.path, below="mor")


def test_macos_metadata_and_directories_are_not_items(tmp_path: Path) -> None:
    files: Files = {
        "__MACOSX/cat/._1": b"x",
        "cat/": b"",
        "cat/._1": b"x",
        "cat/.DS_Store": b"x",
        "cat/1": b"real",
        "cat/.hidden": b"real, too",
        "._dog.tar": b"x",
    }
    assert archive_of(tmp_path, files).names == ["cat/1", "cat/.hidden"]


def test_tars_are_read_at_any_depth_unless_nested_is_false(tmp_path: Path) -> None:
    files: Files = {"a.TAR": {"b.tar": {"c.tar": {"x": b"deep"}, "y": b"less"}}, "notes.tar": b"no archive"}
    found = archive_of(tmp_path, files)
    assert found.names == ["a.TAR/b.tar/c.tar/x", "a.TAR/b.tar/y", "notes.tar"]
    assert [found.classes[label] for label in found.labels] == ["c", "b", ""]
    assert found[0] == b"deep"
    flat = Archive(found.path, nested=False)
    assert flat.names == ["a.TAR", "notes.tar"]
    assert flat[0] == tar({"b.tar": files["a.TAR"]["b.tar"]})  # type: ignore[index]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_and_non_ascii_names_are_read_in_every_tar_format(form: int, tmp_path: Path) -> None:
    names = ["cat/%s/%s.jpg" % ("f" * 80, "n" * 90), "dog/größer 猫.jpg"]
    if form != tarfile.USTAR_FORMAT:
        names.append("cat/%s/%s" % ("/".join(["long" * 30] * 8), "x" * 200))
    found = Archive(put(tmp_path / "a.tar", tar({name: name.encode() for name in names}, form)))
    assert found.names == names
    assert list(found) == [name.encode() for name in names]


def test_a_name_that_is_not_utf8_is_decoded_like_a_file_name(tmp_path: Path) -> None:
    content = tar({"cat/\udce9": b"1"})
    assert b"cat/\xe9" in content
    assert Archive(put(tmp_path / "a.tar", content)).names == ["cat/\udce9"]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_zip_is_read_whether_its_items_are_compressed_or_not(method: int, tmp_path: Path) -> None:
    files = {"cat/1": b"1" * 5000, "cat/": b"", "dog/2": b"", "__MACOSX/dog/._2": b"x"}
    found = Archive(put(tmp_path / "a.zip", zipped(files, method)))
    assert found.names == ["cat/1", "dog/2"]
    assert list(found) == [b"1" * 5000, b""]
    assert found.__getitems__([1, 0]) == [b"", b"1" * 5000]
    assert bytes(found.view(0)) == found.open(0).read() == b"1" * 5000
    assert found.classes == ("cat", "dog")


def test_a_tar_in_a_zip_is_read_if_it_is_not_compressed(tmp_path: Path) -> None:
    inner = {"cat.tar": tar({"1": b"one"})}
    assert Archive(put(tmp_path / "a.zip", zipped(inner, zipfile.ZIP_STORED)))[0] == b"one"
    assert Archive(put(tmp_path / "b.zip", zipped(inner)))[0] == inner["cat.tar"]


def test_a_dataset_has_decoded_and_transformed_items_with_their_labels(nested: Archive) -> None:
    dataset = Dataset(nested, decode=bytes.decode, transform=str.upper)
    assert dataset[0] == ("DOG ONE", 1)
    assert dataset[-2] == ("", 0)
    assert dataset.__getitems__([2, 0]) == [("CAT ONE", 0), ("DOG ONE", 1)]
    assert list(dataset[1:3]) == [("DOG TWO", 1), ("CAT ONE", 0)]
    assert list(dataset.targets) == [1, 1, 0, 0, 0]
    assert dataset.classes == ("cat", "dog")
    assert Dataset(nested)[0] == (b"dog one", 1)


def test_a_relative_path_is_also_looked_up_in_the_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    put(tmp_path / "a.tar", tar(NESTED))
    monkeypatch.delenv("OUTLAST_DATA_DIR", raising=False)
    with pytest.raises(FileNotFoundError, match=r"no a\.tar in .*here, and OUTLAST_DATA_DIR.* not set"):
        Archive("a.tar")
    monkeypatch.setenv("OUTLAST_DATA_DIR", str(tmp_path))
    assert data.path("a.tar") == str(tmp_path / "a.tar")
    assert len(Archive("a.tar")) == 5
    with pytest.raises(FileNotFoundError, match=r"nor in OUTLAST_DATA_DIR=.*`data:` in params\.yaml"):
        data.path("b.tar")
    put(Path("a.tar"), tar({"1": b""}))
    assert len(Archive("a.tar")) == 1


def test_items_beyond_eight_gigabytes_are_found(tmp_path: Path) -> None:
    large = 9 << 30
    path = tmp_path / "a.tar"
    with path.open("wb") as file:
        file.write(header("big/hole", large))
        file.seek(large, 1)  # a sparse file: nothing is written
        file.write(header("small/last", 4) + b"last".ljust(512, b"\0") + bytes(1024))
    found = Archive(path)
    assert found.names == ["big/hole", "small/last"]
    assert found[1] == b"last"
    assert len(found.view(0)) == large
    with found.open(0) as file:
        assert file.seek(-2, 2) == large - 2
        assert file.read() == b"\0\0"
    assert Archive(path)[1] == b"last"


def test_a_batch_has_the_same_items_as_single_reads(nested: Archive) -> None:
    for _ in range(2):
        assert nested.__getitems__([4, 0, 3, -1]) == [nested[4], nested[0], b"", nested[4]]
    assert nested.__getitems__([]) == []
    with pytest.raises(IndexError):
        nested.__getitems__([0, 5])


def test_an_archive_larger_than_memory_is_read_item_by_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path / "a.tar", tar(NESTED))
    monkeypatch.setattr("os.sysconf", lambda name: 1)
    found = Archive(path)
    assert (
        list(found)
        == found.__getitems__(range(5))
        == [b"dog one", b"dog two", b"cat one", b"", b"3" * 70_000]
    )


def test_a_directory_and_an_empty_file_are_not_archives(tmp_path: Path) -> None:
    with pytest.raises(BadArchive, match="is not a file"):
        Archive(tmp_path)
    with pytest.raises(BadArchive, match="is empty"):
        Archive(put(tmp_path / "a.tar", b""))

"""The ImageNet example: data of the real layout, weights of the real names, wrong models found out."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import re
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.templates import templates

if "CI" in os.environ:
    import torch  # in CI nothing may be left out
    from PIL import Image, ImageChops, ImageStat
else:
    torch = pytest.importorskip("torch")
    pytest.importorskip("PIL")
    from PIL import Image, ImageChops, ImageStat

EXAMPLE = templates()["imagenet"]
ARCHIVE = EXAMPLE / "ILSVRC2012_img_train.tar"
CLASSES = ("n01440764", "n01443537", "n01484850", "n01491361", "n01494475")
#: Not coloured JPEGs, whatever their name says, as some of the real ones.
ODD = {
    "n01440764_1.JPEG": ("JPEG", "L"),
    "n01443537_1.JPEG": ("JPEG", "CMYK"),
    "n01484850_1.JPEG": ("PNG", "RGB"),
}


def load(name: str) -> Any:
    found = importlib.util.spec_from_file_location("imagenet_" + name, EXAMPLE / (name + ".py"))
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE))  # check_model imports its neighbour
        found.loader.exec_module(module)
    return module


example, generator, check_model = load("imagenet_resnet50"), load("make_data"), load("check_model")


def members(archive: Any) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=archive) as opened:
        for entry in opened:
            file = opened.extractfile(entry)
            assert file is not None
            yield entry.name, file.read()


def images(archive: Path) -> dict[str, dict[str, bytes]]:
    """By class tar, then by name."""
    return {name: dict(members(io.BytesIO(raw))) for name, raw in members(io.BytesIO(archive.read_bytes()))}


def opened(raw: bytes) -> Image.Image:
    return Image.open(io.BytesIO(raw))


def same(value: Any) -> Any:
    return value


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A copy: an index is written beside an archive that is read."""
    return Path(shutil.copy(ARCHIVE, tmp_path))


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """The same images in folders of classes, as people have unpacked them."""
    root = tmp_path / "train"
    for name, files in images(ARCHIVE).items():
        (root / name.removesuffix(".tar")).mkdir(parents=True)
        for file, raw in files.items():
            (root / name.removesuffix(".tar") / file).write_bytes(raw)
    (root / CLASSES[0] / "notes.txt").write_text("no image")
    return root


def test_the_archive_that_is_there_has_the_pictures_that_the_generator_makes(tmp_path: Path) -> None:
    generator.make_archive(tmp_path / "made.tar", 20, 1)
    made, there = images(tmp_path / "made.tar"), images(ARCHIVE)
    assert {name: list(files) for name, files in made.items()} == {
        name: list(files) for name, files in there.items()
    }
    for name, files in made.items():
        for file, raw in files.items():
            # Versions of libjpeg differ by a little.
            difference = ImageChops.difference(
                opened(raw).convert("RGB"), opened(there[name][file]).convert("RGB")
            )
            assert max(ImageStat.Stat(difference).mean) < 3, file


def test_params_yaml_has_the_digest_of_the_archive() -> None:
    assert hashlib.sha256(ARCHIVE.read_bytes()).hexdigest() in (EXAMPLE / "params.yaml").read_text()


def test_the_layout_is_that_of_the_real_archive_its_odd_images_included() -> None:
    found = images(ARCHIVE)
    assert list(found) == [name + ".tar" for name in CLASSES]
    for name, files in found.items():
        for file, raw in files.items():
            assert re.fullmatch(name.removesuffix(".tar") + r"_\d+\.JPEG", file)
            image = opened(raw)
            assert (image.format, image.mode) == ODD.get(file, ("JPEG", "RGB"))
    sizes = {opened(raw).size for files in found.values() for raw in files.values()}
    assert len(sizes) > 50


def test_class_folders_and_the_tar_of_class_tars_give_the_same_images(archive: Path, folders: Path) -> None:
    from_tar = example.CustomImageNetDataset(archive, same)
    from_folders = example.CustomImageNetDataset(folders, same)
    assert from_tar.classes == from_folders.classes == CLASSES
    assert len(from_tar) == len(from_folders) == 100

    def pixels(dataset: Any) -> list[tuple[int, tuple[int, int], bytes]]:
        return sorted((label, image.size, image.tobytes()) for image, label in dataset)

    assert pixels(from_tar) == pixels(from_folders)
    assert list(from_tar.targets) == [label for _, label in from_tar]
    assert all(image.mode == "RGB" for image, _ in from_tar)


def test_a_tar_with_one_root_and_class_folders_in_it_does_as_well(tmp_path: Path, folders: Path) -> None:
    with tarfile.open(tmp_path / "packed.tar", "w") as packed:
        packed.add(folders, "ILSVRC2012_img_train")
    dataset = example.CustomImageNetDataset(tmp_path / "packed.tar", same)
    assert dataset.classes == CLASSES
    assert sorted(dataset.targets) == [label for label in range(5) for _ in range(20)]


def test_the_data_is_found_where_a_job_has_it(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLAST_DATA_DIR", str(archive.parent))
    assert len(example.CustomImageNetDataset("ILSVRC2012_img_train.tar", same)) == 100


def test_folders_without_images_are_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    with pytest.raises(ValueError, match="has no folders with images in them"):
        example.CustomImageNetDataset(tmp_path, same)


def test_no_image_is_both_trained_and_tested_with(archive: Path) -> None:
    train, test, classes = example.read_imagenet(archive, 32, 5)
    assert classes == CLASSES
    assert sorted([*train.indices, *test.indices]) == list(range(100))
    assert {test.dataset.targets[item] for item in test.indices} == set(range(5))


def test_an_image_is_resized_and_normalised_and_mirrored_by_torchs_chance_alone() -> None:
    image = Image.new("RGB", (50, 30), (255, 0, 0))
    image.paste((0, 0, 255), (0, 0, 25, 30))  # its left half
    plain = example.PlainTransform(32, mirror=False)(image)
    assert plain.shape == (3, 32, 32) and plain.dtype == torch.float32
    blue = torch.tensor([0.0, 0.0, 1.0])
    expected = (blue - torch.tensor(example.MEAN)) / torch.tensor(example.DEVIATION)
    assert torch.allclose(plain[:, 16, 0], expected)
    transform = example.PlainTransform(32, mirror=True)
    seen = []
    for seed in range(20):
        torch.manual_seed(seed)
        seen.append(transform(image))
        torch.manual_seed(seed)
        assert torch.equal(transform(image), seen[-1])
    mirrored = [one for one in seen if torch.equal(one, plain.flip(2))]
    assert 3 <= len(mirrored) <= 17
    assert all(torch.equal(one, plain) for one in seen if not torch.equal(one, plain.flip(2)))


def test_torchvision_does_to_the_bit_what_is_done_without_it(archive: Path) -> None:
    try:
        import torchvision.transforms  # noqa: F401
    except (ImportError, RuntimeError) as error:
        pytest.skip("torchvision is not here: %s" % error)
    dataset = example.CustomImageNetDataset(archive, same)
    theirs, ours = example.make_transform(32, mirror=True), example.PlainTransform(32, mirror=True)
    assert type(theirs) is not type(ours)
    for item, (image, _) in enumerate(dataset):
        torch.manual_seed(item)
        expected = ours(image)
        torch.manual_seed(item)
        assert torch.equal(theirs(image), expected)


def torchvision_names() -> list[str]:
    """The names of the weights of torchvision's ResNet-50."""

    def norm(name: str) -> list[str]:
        return [
            "%s.%s" % (name, part)
            for part in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
        ]

    names = ["conv1.weight", *norm("bn1")]
    for layer, blocks in enumerate((3, 4, 6, 3), start=1):
        for block in range(blocks):
            at = "layer%d.%d." % (layer, block)
            for part in (1, 2, 3):
                names += ["%sconv%d.weight" % (at, part), *norm("%sbn%d" % (at, part))]
            if block == 0:
                names += [at + "downsample.0.weight", *norm(at + "downsample.1")]
    return [*names, "fc.weight", "fc.bias"]


def test_the_weights_are_those_of_torchvisions_resnet50() -> None:
    with torch.device("meta"):
        model = example.ResNet50()
    weights = model.state_dict()
    assert list(weights) == torchvision_names()
    assert sum(one.numel() for one in model.parameters()) == 25_557_032
    shapes = {name: tuple(weights[name].shape) for name in weights}
    assert shapes["conv1.weight"] == (64, 3, 7, 7) and shapes["fc.weight"] == (1000, 2048)
    assert shapes["layer3.5.conv2.weight"] == (256, 256, 3, 3)
    assert shapes["layer4.0.downsample.0.weight"] == (2048, 1024, 1, 1)
    strides = [model.layer2[0].conv1.stride, model.layer2[0].conv2.stride]
    assert strides == [(1, 1), (2, 2)], "torchvision's halve the size in the 3x3 convolution"


def test_a_narrow_model_takes_images_of_any_size() -> None:
    model = example.ResNet50(classes=5, width=4).eval()
    for size in (32, 64, 75):
        assert model(torch.rand(2, 3, size, size)).shape == (2, 5)


def saved(path: Path, **changes: Any) -> Path:
    weights = example.ResNet50(classes=5, width=4).state_dict()
    for name, value in changes.items():
        if value is None:
            del weights[name.replace("__", ".")]
        else:
            weights[name.replace("__", ".")] = value
    torch.save(weights, path / "model.pt")
    return path / "model.pt"


@pytest.mark.parametrize(("classes", "width"), [(5, 4), (1000, 8)])
def test_the_check_accepts_a_whole_model_of_any_width(tmp_path: Path, classes: int, width: int) -> None:
    torch.save(example.ResNet50(classes, width).state_dict(), tmp_path / "model.pt")
    assert check_model.what_is_wrong(tmp_path / "model.pt") is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"layer4__2__bn3__running_var": None}, "lacks layer4.2.bn3.running_var"),
        ({"conv1__weight": None}, "lacks conv1.weight"),
        ({"extra": torch.zeros(1)}, "has extra, which no ResNet-50 has"),
        (
            {"layer1__0__conv1__weight": torch.zeros(4, 5, 1, 1)},
            "has layer1.0.conv1.weight of torch.float32 [4, 5, 1, 1] instead of torch.float32 [4, 4, 1, 1]",
        ),
        (
            {"fc__bias": torch.zeros(5, dtype=torch.float64)},
            "has fc.bias of torch.float64 [5] instead of torch.float32 [5]",
        ),
        (
            {"layer2__1__bn2__weight": torch.full((8,), float("nan"))},
            "has layer2.1.bn2.weight with numbers that are not finite",
        ),
        ({"fc__bias": torch.full((5,), float("inf"))}, "has fc.bias with numbers that are not finite"),
        ({"fc__bias": "zeros"}, "is not a dictionary of weights"),
        ({"conv1__weight": torch.tensor(1.0)}, "has conv1.weight of torch.float32 [] instead of "),
    ],
)
def test_the_check_refuses_a_wrong_model_with_a_sentence(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    assert str(check_model.what_is_wrong(saved(tmp_path, **changes))).startswith(sentence)


def test_the_check_refuses_a_torn_an_absent_and_a_foreign_file(tmp_path: Path) -> None:
    whole = saved(tmp_path).read_bytes()
    (tmp_path / "torn.pt").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.pt").write_text("not a model")
    torch.save([torch.zeros(1)], tmp_path / "list.pt")
    for name in ("torn.pt", "text.pt", "absent.pt"):
        assert str(check_model.what_is_wrong(tmp_path / name)).startswith("cannot be read as a model: ")
    assert check_model.what_is_wrong(tmp_path / "list.pt") == "is not a dictionary of weights"


class Hostile:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.mark),))


def test_the_check_runs_nothing_that_a_file_asks_for(tmp_path: Path) -> None:
    torch.save({"fc.weight": Hostile(tmp_path / "done")}, tmp_path / "model.pt")
    assert str(check_model.what_is_wrong(tmp_path / "model.pt")).startswith("cannot be read as a model: ")
    assert not (tmp_path / "done").exists()

"""The CIFAR-10 example: what it makes is of the real format, and it reads that without running any of it."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import pytest

from outlast.templates import templates

if "CI" in os.environ:
    import torch  # in CI nothing may be left out
else:
    torch = pytest.importorskip("torch")

EXAMPLE = templates()["cifar10"]
ARCHIVE = EXAMPLE / "cifar-10-python.tar.gz"
FOLDER = "cifar-10-batches-py/"


def load(name: str) -> Any:
    found = importlib.util.spec_from_file_location("cifar10_" + name, EXAMPLE / (name + ".py"))
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


example, generator = load("cifar10_resnet"), load("make_data")


def content(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as opened:
        return {entry.name: opened.extractfile(entry).read() for entry in opened if entry.isfile()}  # type: ignore[union-attr]


def repacked(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, raw in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(raw)
            archive.addfile(entry, io.BytesIO(raw))
    return path


def test_the_archive_that_is_there_is_the_one_that_the_generator_makes(tmp_path: Path) -> None:
    generator.make_archive(tmp_path / "made.tar.gz", 80, 100, 1)
    assert content(tmp_path / "made.tar.gz") == content(ARCHIVE)


def test_another_seed_makes_other_pictures_and_the_same_seed_the_same_file(tmp_path: Path) -> None:
    digests = []
    for seed in (1, 1, 2):
        generator.make_archive(tmp_path / "made.tar.gz", 2, 2, seed)
        digests.append(hashlib.sha256((tmp_path / "made.tar.gz").read_bytes()).hexdigest())
    assert digests[0] == digests[1] != digests[2]


def test_params_yaml_has_the_digest_of_the_archive() -> None:
    assert hashlib.sha256(ARCHIVE.read_bytes()).hexdigest() in (EXAMPLE / "params.yaml").read_text()


def test_the_generator_pickles_byte_for_byte_as_the_real_archive_was() -> None:
    """The MD5 is that of the real `batches.meta`, as torchvision has it."""
    names = b"airplane automobile bird cat deer dog frog horse ship truck".split()
    meta = {b"num_cases_per_batch": 10000, b"label_names": names, b"num_vis": 3072}
    assert hashlib.md5(generator.pickled(meta)).hexdigest() == "5ff9c542aee3614f3951f8cda6e48888"


def test_the_layout_is_that_of_the_real_archive() -> None:
    names = ["data_batch_4", "readme.html", "test_batch", "data_batch_3", "batches.meta"]
    names += ["data_batch_2", "data_batch_5", "data_batch_1"]
    files = content(ARCHIVE)
    assert list(files) == [FOLDER + name for name in names]
    batch = pickle.loads(files[FOLDER + "data_batch_1"], encoding="bytes")
    assert list(batch) == [b"batch_label", b"labels", b"data", b"filenames"]


def test_what_is_read_is_what_numpy_reads() -> None:
    train, test, classes = example.read_cifar10(ARCHIVE)
    files = content(ARCHIVE)
    expected = [
        pickle.loads(files["%sdata_batch_%d" % (FOLDER, number)], encoding="bytes") for number in range(1, 6)
    ]
    images = [batch[b"data"].reshape(-1, 3, 32, 32).tolist() for batch in expected]
    assert train[0].tolist() == [image for batch in images for image in batch]
    assert train[1].tolist() == [label for batch in expected for label in batch[b"labels"]]
    assert (len(train[0]), len(test[0]), len(classes)) == (400, 100, 10)
    assert classes[:2] == ["horizontal bars", "vertical bars"]


class Hostile:
    """Makes a file when it is unpickled by somebody who trusts it."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.mark),))


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("file", ["data_batch_3", "test_batch", "batches.meta"])
def test_a_pickle_that_wants_something_done_is_refused_and_nothing_is_done(
    tmp_path: Path, protocol: int, file: str
) -> None:
    mark = tmp_path / "done"
    files = content(ARCHIVE)
    files[FOLDER + file] = pickle.dumps({"labels": Hostile(mark)}, protocol)
    bad = repacked(tmp_path / "bad.tar.gz", files)
    with pytest.raises(example.BadCifar10, match=r"refers to posix\.mkdir, which no file of CIFAR-10 does"):
        example.read_cifar10(bad)
    assert not mark.exists()
    pickle.loads(files[FOLDER + file])
    assert mark.exists(), "this test would not have noticed"


def test_names_of_numpy_are_stood_in_for_and_never_called() -> None:
    for name in ("numpy ndarray", "numpy dtype", "numpy.core.multiarray _reconstruct"):
        called = b"c%s\n(V1000000000000\ntR." % name.replace(" ", "\n").encode()
        found = example.unpickled(called)
        assert type(found) is example.StandIn and found.arguments == ("1000000000000",)
    with pytest.raises(example.BadCifar10, match=r"refers to numpy\.fromfile"):
        example.unpickled(b"cnumpy\nfromfile\n.")


def spoilt(kind: str) -> dict[str, bytes]:
    files = content(ARCHIVE)
    batch = pickle.loads(files[FOLDER + "data_batch_2"], encoding="bytes")
    if kind == "a batch is missing":
        del files[FOLDER + "data_batch_2"]
        return files
    if kind == "fewer images than labels":
        batch[b"data"] = batch[b"data"][1:]
    elif kind == "numbers of another kind":
        batch[b"data"] = batch[b"data"].astype("int16")
    elif kind == "no labels":
        del batch[b"labels"]
    files[FOLDER + "data_batch_2"] = generator.pickled(batch)
    if kind == "half a pickle":
        files[FOLDER + "data_batch_2"] = files[FOLDER + "data_batch_2"][:5000]
    return files


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("a batch is missing", "it lacks 'data_batch_2'"),
        ("fewer images than labels", "80 labels need as many rows of 3072 bytes"),
        ("numbers of another kind", "80 labels need as many rows of 3072 bytes"),
        ("no labels", "it lacks b'labels'"),
        ("half a pickle", "pickle data was truncated"),
    ],
)
def test_an_archive_that_is_not_right_is_refused_with_a_sentence(
    tmp_path: Path, kind: str, sentence: str
) -> None:
    with pytest.raises(example.BadCifar10, match="cannot be read as CIFAR-10's python archive: " + sentence):
        example.read_cifar10(repacked(tmp_path / "bad.tar.gz", spoilt(kind)))


def test_half_an_archive_is_refused_with_a_sentence(tmp_path: Path) -> None:
    half = tmp_path / "half.tar.gz"
    half.write_bytes(ARCHIVE.read_bytes()[:70_000])
    with pytest.raises(example.BadCifar10, match="cannot be read as CIFAR-10's python archive"):
        example.read_cifar10(half)


def test_an_image_is_shifted_and_mirrored_by_torchs_chance_alone() -> None:
    images, labels = example.read_cifar10(ARCHIVE)[0]
    plain, augmented = example.Cifar10(images, labels), example.Cifar10(images, labels, augment=True)
    variants = []
    for seed in range(12):
        torch.manual_seed(seed)
        variants.append(augmented[7][0])
        torch.manual_seed(seed)
        assert torch.equal(augmented[7][0], variants[-1])
    assert len({variant.numpy().tobytes() for variant in variants}) > 6
    image, label = plain[7]
    assert label == labels[7] and torch.allclose(image * example.DEVIATION + example.MEAN, images[7] / 255)
    assert torch.equal(plain[7][0], image)


def test_a_residual_block_that_has_learnt_nothing_passes_on_what_came_in() -> None:
    block = example.ResidualBlock(4, 4, stride=1)
    torch.nn.init.zeros_(block.norm2.weight)
    x = torch.rand(2, 4, 8, 8)
    assert torch.equal(block(x), x)


def test_each_stage_has_half_the_size_and_twice_the_width() -> None:
    model = example.ResNet(width=4, blocks=2, classes=10)
    shapes = []
    for block in model.stages:
        block.register_forward_hook(lambda _block, _inputs, output: shapes.append(tuple(output.shape[1:])))
    assert model(torch.rand(3, 3, 32, 32)).shape == (3, 10)
    assert shapes == [(4, 32, 32)] * 2 + [(8, 16, 16)] * 2 + [(16, 8, 8)] * 2

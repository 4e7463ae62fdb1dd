"""An archive in a PyTorch DataLoader; skipped if torch is not installed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from outlast.data import Archive, Dataset
from support.archives import Files, put, tar

if "CI" in os.environ:
    import torch  # in CI nothing may be skipped
else:
    torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, RandomSampler, Subset, random_split

COUNT = 60
FILES: Files = {
    "%s.tar" % name: {"%02d" % k: bytes([first, k] * 50) for k in range(COUNT // 2)}
    for first, name in enumerate(["cat", "dog"])
}


def to_tensor(content: bytes) -> Any:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def to_float(tensor: Any) -> Any:
    return tensor.float()


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return Dataset(Archive(put(tmp_path / "a.tar", tar(FILES))), to_tensor, to_float)


def seen(loader: Any) -> set[tuple[int, int, int]]:
    """Return the label and the first two bytes of each item; none may be repeated."""
    found: list[tuple[int, int, int]] = []
    for values, labels in loader:
        assert values.dtype == torch.float32
        found += [(int(y), int(x[0]), int(x[1])) for x, y in zip(values, labels, strict=True)]
    assert len(found) == len(set(found))
    return set(found)


EVERYTHING = {(label, label, k) for label in (0, 1) for k in range(COUNT // 2)}


@pytest.mark.parametrize(
    ("workers", "method"), [(0, None), (2, "fork"), (2, "spawn")], ids=["alone", "fork", "spawn"]
)
def test_every_item_is_seen_once_with_its_label_in_each_epoch(
    workers: int, method: str | None, dataset: Dataset
) -> None:
    loader = DataLoader(
        dataset,
        batch_size=7,
        shuffle=True,
        num_workers=workers,
        multiprocessing_context=method,
        persistent_workers=workers > 0,
        timeout=120 if workers else 0,
    )
    for _ in range(2):
        assert seen(loader) == EVERYTHING


def test_samplers_subsets_and_splits_work(dataset: Dataset) -> None:
    one, two = random_split(dataset, [20, 40], generator=torch.Generator().manual_seed(1))
    first, second = seen(DataLoader(one, batch_size=6)), seen(DataLoader(two, batch_size=6))
    assert len(first) == 20
    assert first | second == EVERYTHING
    sampler = RandomSampler(dataset, num_samples=5)
    assert len(seen(DataLoader(dataset, sampler=sampler, batch_size=2))) == 5
    assert len(seen(DataLoader(Subset(dataset, [3, -1]), batch_size=None, collate_fn=as_batch))) == 2
    assert torch.bincount(torch.tensor(list(dataset.targets))).tolist() == [30, 30]


def as_batch(sample: Any) -> Any:
    return sample[0][None], [sample[1]]


def test_a_tensor_can_be_an_index_and_a_bare_archive_gives_bytes(dataset: Dataset) -> None:
    assert dataset[torch.tensor(31)][1] == 1
    loader = DataLoader(dataset.archive, batch_size=4, collate_fn=list)
    assert next(iter(loader)) == list(dataset.archive[:4])

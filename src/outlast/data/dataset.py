"""Items with their classes, for a training."""

from __future__ import annotations

from typing import Any, Callable, Sequence, SupportsIndex

from outlast.data.archive import Archive


class Dataset(Sequence[Any]):
    """(value, label) of each item: a plain sequence, and a map-style dataset for a PyTorch DataLoader.

    decode       makes a value of an item's bytes
    transform    is applied to that value
    """

    def __init__(
        self,
        archive: Archive,
        decode: Callable[[bytes], Any] | None = None,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.archive = archive
        self.decode = decode
        self.transform = transform

    @property
    def classes(self) -> tuple[str, ...]:
        return self.archive.classes

    @property
    def targets(self) -> Sequence[int]:
        """All labels, without reading an item; under the name that torchvision's datasets have for it."""
        return self.archive.labels

    def __len__(self) -> int:
        return len(self.archive)

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, slice):
            return Dataset(self.archive[item], self.decode, self.transform)
        return self._sample(self.archive[item], item)

    def __getitems__(self, items: Sequence[SupportsIndex]) -> list[tuple[Any, int]]:
        """A batch, as PyTorch asks for it."""
        return [self._sample(content, item) for content, item in zip(self.archive.__getitems__(items), items)]

    def __repr__(self) -> str:
        return "<Dataset of %r>" % self.archive

    def _sample(self, content: bytes, item: SupportsIndex) -> tuple[Any, int]:
        value: Any = content if self.decode is None else self.decode(content)
        if self.transform is not None:
            value = self.transform(value)
        return value, self.archive.label(item)

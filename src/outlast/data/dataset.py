"""A dataset: the decoded items of an archive with their labels."""

from __future__ import annotations

from typing import Any, Callable, Sequence, SupportsIndex

from outlast.data.archive import Archive


class Dataset(Sequence[Any]):
    """A sequence of (value, label), one for each item; also a map-style dataset for a PyTorch DataLoader.

    archive      the items
    decode       a function that makes a value from an item's bytes; without it the value is the bytes
    transform    a function that is applied to each value

    A slice is again a Dataset.
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
        """The names of the classes; a label is an index into them."""
        return self.archive.classes

    @property
    def targets(self) -> Sequence[int]:
        """The labels of all items, without reading any; torchvision's datasets use the same name."""
        return self.archive.labels

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.archive)

    def __getitem__(self, item: Any) -> Any:
        """Return (value, label) of an item, or a Dataset of the items in a slice. Raises IndexError."""
        if isinstance(item, slice):
            return Dataset(self.archive[item], self.decode, self.transform)
        return self._sample(self.archive[item], item)

    def __getitems__(self, items: Sequence[SupportsIndex]) -> list[tuple[Any, int]]:
        """Return (value, label) of several items, as PyTorch requests a batch."""
        return [self._sample(content, item) for content, item in zip(self.archive.__getitems__(items), items)]

    def __repr__(self) -> str:
        return "<Dataset of %r>" % self.archive

    def _sample(self, content: bytes, item: SupportsIndex) -> tuple[Any, int]:
        value: Any = content if self.decode is None else self.decode(content)
        if self.transform is not None:
            value = self.transform(value)
        return value, self.archive.label(item)

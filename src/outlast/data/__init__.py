"""Read the items of a dataset directly from the archive it came in, without unpacking it.

    from outlast.data import Archive, Dataset

    train = Dataset(Archive("ILSVRC2012_img_train.tar"), decode=to_image, transform=augment)

`Archive` is a sequence of bytes, `Dataset` a sequence of (value, label); both can be given to a PyTorch
DataLoader, and both need only the standard library. `Loader` is a PyTorch DataLoader whose position can be
saved and loaded. `path` finds a file or directory in the job's data directory.

Archives that cannot be read safely raise `BadArchive`.
"""

from __future__ import annotations

from outlast.data.archive import Archive
from outlast.data.dataset import Dataset
from outlast.data.loader import Loader
from outlast.data.location import path
from outlast.node.archives.sink import BadArchive

__all__ = ["Archive", "BadArchive", "Dataset", "Loader", "path"]

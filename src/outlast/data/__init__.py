"""Items of a dataset straight from the archive it came in, without unpacking it.

    from outlast.data import Archive, Dataset

    train = Dataset(Archive("ILSVRC2012_img_train.tar"), decode=to_image, transform=augment)

`Archive` is a sequence of bytes, `Dataset` one of (value, class); a PyTorch DataLoader takes both.
The standard library is all they need. `Loader` is a DataLoader with a position that can be saved.
"""

from __future__ import annotations

from outlast.data.archive import Archive
from outlast.data.dataset import Dataset
from outlast.data.loader import Loader
from outlast.data.location import path
from outlast.node.archives.sink import BadArchive

__all__ = ["Archive", "BadArchive", "Dataset", "Loader", "path"]

"""Which library an array belongs to.

Neither is imported by saving: an object of theirs can only be there if its library is. Reading imports the
one that a checkpoint needs.
"""

from __future__ import annotations

import sys
from typing import Any

from outlast.training import ndarrays, tensors
from outlast.training.arrays import Leaf

#: What makes an array of its node again, by the node's first word.
REVIVERS = {**ndarrays.REVIVERS, **tensors.REVIVERS}


def leaf_of(value: Any) -> Leaf | None:
    """The leaf of an array, a NumPy scalar or a tensor; None for anything else.

    Raises TypeError with the rest of a sentence ("is …") for arrays that cannot be kept.
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "ndarray"):
        found = ndarrays.leaf(numpy, value)
        if found is not None:
            return found
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "Tensor"):
        return tensors.leaf(torch, value)
    return None

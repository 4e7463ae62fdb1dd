"""Checks a finished model before it is accepted: all layers, the right shapes, finite numbers."""

import os
import sys
import zipfile
from pathlib import Path

import numpy as np

#: The shape of each layer's matrix; each also has a bias. None depends on --hidden.
SHAPES = {"conv1": (9, 32), "conv2": (288, 64), "dense": (1024, None), "output": (None, 10)}


def what_is_wrong(path):
    """Return the first problem of the model as a phrase, or None if it is valid."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        return "cannot be read as a model: %s" % error
    expected = {layer + suffix for layer in SHAPES for suffix in ("", "_bias")}
    if set(arrays) != expected:
        return "holds %s instead of %s" % (sorted(arrays), sorted(expected))
    hidden = arrays["dense"].shape[-1:]
    for layer, shape in SHAPES.items():
        rows, columns = (size or (hidden[0] if hidden else 0) for size in shape)
        for name, right in ((layer, (rows, columns)), (layer + "_bias", (columns,))):
            if arrays[name].shape != right:
                return "has %s of shape %s instead of %s" % (name, arrays[name].shape, right)
            if arrays[name].dtype != np.float32:
                return "has %s of type %s instead of float32" % (name, arrays[name].dtype)
            if not np.isfinite(arrays[name]).all():
                return "has %s with numbers that are not finite" % name
    return None


if __name__ == "__main__":
    model = Path(os.environ.get("OUTLAST_OUTPUT_DIR", ".")) / "model.npz"
    wrong = what_is_wrong(model)
    sys.exit("%s %s" % (model.name, wrong) if wrong else 0)

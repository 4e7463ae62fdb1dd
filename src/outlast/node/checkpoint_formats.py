"""Files that hold the state of a training, told by their endings and first bytes."""

from __future__ import annotations

from typing import Sequence

from outlast.untrusted_files import open_below

#: Endings of files with models or checkpoints, which are never empty.
ENDINGS = (
    *(".pt", ".pth", ".ckpt", ".npz", ".npy", ".safetensors", ".h5", ".hdf5", ".keras"),
    *(".pkl", ".pickle", ".joblib", ".msgpack", ".onnx"),
)
ZIP = b"PK\x03\x04"
NPY = b"\x93NUMPY"
HDF5 = b"\x89HDF\r\n\x1a\n"
#: `checkpoint.pth.tar` of PyTorch's examples; TensorFlow's checkpoints; weights of Transformers and XGBoost.
_MORE_ENDINGS = (".pth.tar", ".index", ".bin", ".model", ".weights", ".checkpoint")
#: The first bytes of `torch.save`, NumPy, HDF5, SQLite (studies of Optuna), and pickles of protocol 2 to 5.
_STARTS = (ZIP, NPY, HDF5, b"SQLite format 3\0", *(bytes((0x80, number)) for number in (2, 3, 4, 5)))
#: How many files are opened, the largest first.
_MOST_OPENED = 100


def find_state(top: str, files: Sequence[tuple[str, int]]) -> list[str]:
    """Return the models and checkpoints among the files below `top`, which are given with their sizes.

    Logs, tables, texts and pictures are none: a training cannot resume from them.
    """
    sized = sorted(((size, path) for path, size in files if size > 0), reverse=True)
    named = [path for _, path in sized if names_state(path)]
    others = [path for _, path in sized if not names_state(path)][:_MOST_OPENED]
    return named + [path for path in others if _start(top, path).startswith(_STARTS)]


def names_state(path: str) -> bool:
    """Return True if a file is a model or checkpoint by its ending."""
    return path.lower().endswith(ENDINGS + _MORE_ENDINGS)


def _start(top: str, path: str) -> bytes:
    try:
        with open_below(top, path) as file:
            return file.read(16)
    except OSError:
        return b""  # it vanished, or cannot be read: nothing could resume from it

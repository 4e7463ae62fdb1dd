"""Makes a small archive in the format of CIFAR-10's python version: ten classes of coloured patterns.

Layout, names and pickles have the format of the real `cifar-10-python.tar.gz`; only the pictures are
artificial. Colours, size and position of a pattern are random, so that a network must learn its shape. The
same seed makes the same pictures.
"""

import argparse
import gzip
import io
import pickle
import tarfile
from pathlib import Path

import numpy as np

FOLDER = "cifar-10-batches-py"
SIZE = 32
BATCHES = 5
GRAIN = 8  # noise is made of squares of this many pixels
NOISE = 24  # ... which are lighter or darker by up to this much, of 255


def bars(along, random):
    period = random.integers(6, 10)
    return (along + random.integers(period)) % period < period // 2


def horizontal_bars(x, y, random):
    return bars(y, random)


def vertical_bars(x, y, random):
    return bars(x, random)


def slanted_bars(x, y, random):
    """Slant to the left or to the right: a picture and its mirror image have the same class."""
    return bars(x + y if random.random() < 0.5 else x - y + SIZE, random)


def chequers(x, y, random):
    return bars(x, random) ^ bars(y, random)


def centred(x, y, random):
    """Return coordinates relative to a point near the middle, and a radius."""
    return x - random.integers(13, 19), y - random.integers(13, 19), random.integers(7, 12)


def disc(x, y, random):
    x, y, radius = centred(x, y, random)
    return x**2 + y**2 < radius**2


def ring(x, y, random):
    x, y, radius = centred(x, y, random)
    return abs(np.hypot(x, y) - radius) < 2


def square(x, y, random):
    x, y, radius = centred(x, y, random)
    return np.maximum(abs(x), abs(y)) < radius


def frame(x, y, random):
    x, y, radius = centred(x, y, random)
    return abs(np.maximum(abs(x), abs(y)) - radius) < 2


def plus(x, y, random):
    x, y, radius = centred(x, y, random)
    return (np.minimum(abs(x), abs(y)) < 2) & (np.maximum(abs(x), abs(y)) <= radius)


def cross(x, y, random):
    x, y, radius = centred(x, y, random)
    return (abs(abs(x) - abs(y)) < 2) & (np.maximum(abs(x), abs(y)) <= radius)


PATTERNS = (
    horizontal_bars,
    vertical_bars,
    slanted_bars,
    chequers,
    disc,
    ring,
    square,
    frame,
    plus,
    cross,
)


def picture(label, random):
    """Return the 3072 bytes of a picture as in CIFAR-10: all red, all green, all blue, row by row."""
    y, x = np.mgrid[:SIZE, :SIZE]
    mask = PATTERNS[label](x, y, random)
    while True:
        back, front = random.integers(32, 224, (2, 3, 1, 1))
        if abs(back - front).max() > 96:
            break
    grains = random.integers(-2, 3, (SIZE // GRAIN, SIZE // GRAIN)) * NOISE // 2
    noise = grains.repeat(GRAIN, axis=0).repeat(GRAIN, axis=1)
    return (np.where(mask, front, back) + noise).clip(0, 255).astype(np.uint8).reshape(-1)


def batch(title, count, random):
    """Return the content of one file of the archive, before it is pickled."""
    labels = random.permutation(np.arange(count) % len(PATTERNS)).tolist()
    return {
        b"batch_label": title.encode(),
        b"labels": labels,
        b"data": np.stack([picture(label, random) for label in labels]),
        b"filenames": [
            b"%s_%06d.png" % (PATTERNS[label].__name__.encode(), n) for n, label in enumerate(labels)
        ],
    }


class Python2Pickler(pickle._Pickler):
    """Pickles like Python 2 when CIFAR-10 was made, byte for byte, with the old names of NumPy's modules."""

    def memoize(self, thing):
        number = len(self.memo) + 1  # Python 3 counts from 0
        self.write(self.put(number))
        self.memo[id(thing)] = number, thing

    def save_text(self, text):
        raw = text if isinstance(text, bytes) else text.encode("latin-1")
        if len(raw) < 256:
            self.write(pickle.SHORT_BINSTRING + bytes([len(raw)]) + raw)
        else:
            self.write(pickle.BINSTRING + len(raw).to_bytes(4, "little") + raw)
        self.memoize(text)

    def save_global(self, thing, name=None):
        if thing.__module__ == "numpy._core.multiarray":
            self.write(pickle.GLOBAL + b"numpy.core.multiarray\n%s\n" % thing.__name__.encode())
            self.memoize(thing)
        else:
            super().save_global(thing, name)

    dispatch = pickle._Pickler.dispatch | {bytes: save_text, str: save_text, type: save_global}


def pickled(content):
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(content)
    return file.getvalue()


def make_archive(path, per_batch, tests, seed):
    """Write the archive, with its files in the order of the real one."""
    random = np.random.default_rng(seed)
    names = ["data_batch_%d" % number for number in range(1, BATCHES + 1)]
    files = {
        name: pickled(batch("training batch %d of %d" % (number, BATCHES), per_batch, random))
        for number, name in enumerate(names, start=1)
    }
    files["test_batch"] = pickled(batch("testing batch 1 of 1", tests, random))
    labels = [pattern.__name__.replace("_", " ").encode() for pattern in PATTERNS]
    meta = {b"num_cases_per_batch": per_batch, b"label_names": labels, b"num_vis": 3 * SIZE * SIZE}
    files["batches.meta"] = pickled(meta)
    files["readme.html"] = b"Patterns in the format of CIFAR-10, made by make_data.py with seed %d.\n" % seed
    order = (4, "readme.html", "test_batch", 3, "batches.meta", 2, 5, 1)
    # Without a time stamp, so that the same seed makes the same file.
    with gzip.GzipFile(path, "wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        folder = tarfile.TarInfo(FOLDER)
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(folder)
        for name in (one if isinstance(one, str) else "data_batch_%d" % one for one in order):
            entry = tarfile.TarInfo("%s/%s" % (FOLDER, name))
            entry.size = len(files[name])
            archive.addfile(entry, io.BytesIO(files[name]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=80, help="number of images in each of the five batches")
    parser.add_argument("--tests", type=int, default=100, help="number of images for the test")
    parser.add_argument("--seed", type=int, default=1, help="another seed makes other pictures")
    parser.add_argument("--to", type=Path, default=Path("cifar-10-python.tar.gz"), metavar="FILE")
    given = parser.parse_args()
    make_archive(given.to, given.images, given.tests, given.seed)
    print("%s: %d images for training, %d for the test" % (given.to, BATCHES * given.images, given.tests))


if __name__ == "__main__":
    main()

"""Makes a small `ILSVRC2012_img_train.tar`: a tar of one tar for each class, with JPEG images of waves in it.

The layout and the names are those of ImageNet's training set; only the pictures are made up. As there, they
have all sizes, and a few are not what their name says: grey, for print (CMYK), or a PNG. The same seed makes
the same pictures.
"""

import argparse
import colorsys
import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

SIZES = 32, 49  # pixels: from, to
QUALITY = 75
NOISE = 6  # of 255


def horizontal(x, y, random):
    return y


def vertical(x, y, random):
    return x


def rings(x, y, random):
    return np.hypot(x, y)


def rays(x, y, random):
    return np.arctan2(y, x) * random.integers(4, 7)


def chequers(x, y, random):
    """Where one of two waves is above, and the other below."""
    return np.arcsin(np.sin(x) * np.sin(y))


#: The first classes of ImageNet, and what stands for each.
CLASSES = {
    "n01440764": horizontal,
    "n01443537": vertical,
    "n01484850": rings,
    "n01491361": rays,
    "n01494475": chequers,
}
#: Those that are not a coloured JPEG.
ODD = {
    "n01440764_1.JPEG": ("JPEG", "L"),
    "n01443537_1.JPEG": ("JPEG", "CMYK"),
    "n01484850_1.JPEG": ("PNG", "RGB"),
}


def colour(hue, random):
    """Of about this hue, more or less pale and dark."""
    turned = colorsys.hsv_to_rgb(
        (hue + random.uniform(-0.04, 0.04)) % 1, random.uniform(0.5, 1), random.uniform(0.5, 1)
    )
    return 255 * np.array(turned)


def picture(name, random):
    number = list(CLASSES).index(name)
    width, height = random.integers(*SIZES, 2)
    y, x = np.mgrid[:height, :width] - random.uniform(0.35, 0.65, (2, 1, 1)) * [[[height]], [[width]]]
    scale = 2 * np.pi / random.uniform(8, 16)
    wave = np.sin(CLASSES[name](x * scale, y * scale, random) + random.uniform(0, 2 * np.pi))[..., None]
    light, dark = colour(number / len(CLASSES), random), 255 * random.uniform(0, 0.4)
    shade = dark + (light - dark) * (wave + 1) / 2
    return Image.fromarray((shade + random.normal(0, NOISE, shade.shape)).clip(0, 255).astype(np.uint8))


def encoded(image, name):
    """As a file."""
    form, mode = ODD.get(name, ("JPEG", "RGB"))
    file = io.BytesIO()
    image.convert(mode).save(file, form, quality=QUALITY)
    return file.getvalue()


def pack(path, files):
    """A tar of these bytes by their names, in `path`, which may be a file object."""
    where = {"name": path} if isinstance(path, Path) else {"fileobj": path}
    with tarfile.open(mode="w", format=tarfile.USTAR_FORMAT, **where) as archive:
        for name, content in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def class_tar(name, count, random):
    file = io.BytesIO()
    names = ["%s_%d.JPEG" % (name, number) for number in range(count)]
    pack(file, ((one, encoded(picture(name, random), one)) for one in names))
    return file.getvalue()


def make_archive(path, count, seed):
    random = np.random.default_rng(seed)
    pack(path, ((name + ".tar", class_tar(name, count, random)) for name in CLASSES))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=20, help="how many of each class")
    parser.add_argument("--seed", type=int, default=1, help="other pictures")
    parser.add_argument("--to", type=Path, default=Path("ILSVRC2012_img_train.tar"), metavar="FILE")
    given = parser.parse_args()
    make_archive(given.to, given.images, given.seed)
    print("%s: %d images of %d classes" % (given.to, given.images * len(CLASSES), len(CLASSES)))


if __name__ == "__main__":
    main()

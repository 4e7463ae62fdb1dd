"""Makes a small `ILSVRC2012_img_train.tar`: a tar with one tar for each class, with JPEG images of waves.

Layout and names are the same as in ImageNet's training set; only the pictures are artificial. As there, their
sizes vary, and a few are greyscale, CMYK or PNG although their names end in .JPEG. The same seed makes the
same pictures.
"""

import argparse
import colorsys
import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

SIZES = 32, 49  # range of width and height, in pixels
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
    """Return the product of two waves."""
    return np.arcsin(np.sin(x) * np.sin(y))


#: The first classes of ImageNet, and the pattern for each.
CLASSES = {
    "n01440764": horizontal,
    "n01443537": vertical,
    "n01484850": rings,
    "n01491361": rays,
    "n01494475": chequers,
}
#: The images that are not colour JPEGs.
ODD = {
    "n01440764_1.JPEG": ("JPEG", "L"),
    "n01443537_1.JPEG": ("JPEG", "CMYK"),
    "n01484850_1.JPEG": ("PNG", "RGB"),
}


def colour(hue, random):
    """Return a random colour of about this hue."""
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
    """Return the image as the bytes of a file."""
    form, mode = ODD.get(name, ("JPEG", "RGB"))
    file = io.BytesIO()
    image.convert(mode).save(file, form, quality=QUALITY)
    return file.getvalue()


def pack(path, files):
    """Write a tar of (name, bytes) to `path`, which may be a file object."""
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
    parser.add_argument("--images", type=int, default=20, help="number of images of each class")
    parser.add_argument("--seed", type=int, default=1, help="another seed makes other pictures")
    parser.add_argument("--to", type=Path, default=Path("ILSVRC2012_img_train.tar"), metavar="FILE")
    given = parser.parse_args()
    make_archive(given.to, given.images, given.seed)
    print("%s: %d images of %d classes" % (given.to, given.images * len(CLASSES), len(CLASSES)))


if __name__ == "__main__":
    main()

"""Marked pages as Pixel.js and Rodan export them, and the patches that are cut from them.

A page is a folder or a ZIP, and several pages are a folder or a ZIP of them. A page has `Image.png`, the page
itself; an RGBA PNG for each layer, such as `rgba PNG - Text.png`, whose opaque pixels belong to the layer;
and, if only a part of the page was marked, `rgba PNG - Selected regions.png`, opaque in that part.
"""

import io
import re
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

try:
    import torch
    from PIL import Image, UnidentifiedImageError
except ModuleNotFoundError as error:
    sys.exit("%s is not installed; type: pip install torch pillow" % error.name)

IMAGES = "Image.png", "Image.jpg", "Image.jpeg"
PREFIX = "rgba PNG - "
REGIONS = "selected_regions"
OPAQUE = 255
#: "Layer 0 (Background)" and "Background layer" are both called background; "Layer 1" is layer_1.
_TITLE = re.compile(r"(?:Layer \d+ \((?P<named>.+)\)|(?P<plain>.*?)(?: layer)?)", re.IGNORECASE)


class NotMarked(Exception):
    """A folder or a file is not a valid marked page; the message is for the user."""


class Page(NamedTuple):
    name: str
    image: torch.Tensor  # bytes: colour, row, column
    layers: dict  # by name: true where a pixel belongs to the layer
    selected: torch.Tensor  # true where the page was marked


def layer_of(title):
    """Return the short name of a layer, after which its model is named."""
    match = _TITLE.fullmatch(title)
    return re.sub(r"\W+", "_", (match["named"] or match["plain"]).lower()).strip("_")


def read_pages(path):
    """Return the pages in a folder or a ZIP, sorted by name; or the one page that it is. Raises NotMarked."""
    try:
        book = opened(Path(path))
        inside = sorted(book.iterdir(), key=lambda place: place.name)
        if any(place.name in IMAGES for place in inside):
            places = {Path(path).stem: book}
        else:
            places = {Path(place.name).stem: opened(place) for place in inside if is_page(place)}
        files = {name: contents(place) for name, place in places.items()}
    except (OSError, zipfile.BadZipFile) as error:
        raise NotMarked("%s cannot be read: %s" % (path, error)) from error
    if not files:
        raise NotMarked("%s has no page: neither a folder nor a ZIP" % path)
    pages = [read_page(name, found) for name, found in files.items()]
    for page in pages[1:]:
        if page.layers.keys() != pages[0].layers.keys():
            here, there = (", ".join(sorted(one.layers)) for one in (page, pages[0]))
            raise NotMarked("%s has the layers %s, %s has %s" % (page.name, here, pages[0].name, there))
    return pages


def is_page(place):
    """Return True for a folder or ZIP that is not hidden; macOS adds a folder `__MACOSX` to each ZIP."""
    hidden = place.name.startswith((".", "__"))
    return not hidden and (place.is_dir() or place.name.endswith(".zip"))


def opened(place):
    """Return a folder unchanged, and a ZIP as a folder-like object; both may be inside a ZIP."""
    return place if place.is_dir() else zipfile.Path(zipfile.ZipFile(io.BytesIO(place.read_bytes())))


def contents(place):
    return {file.name: file.read_bytes() for file in place.iterdir() if file.is_file()}


def read_page(place, files):
    """Return one page, given the contents of its files by name. Raises NotMarked."""
    found = next((name for name in IMAGES if name in files), None)
    if found is None:
        raise NotMarked("%s has no %s" % (place, " or ".join(IMAGES)))
    image = pixels_of(decode(files[found], "%s/%s" % (place, found)).convert("RGB"))
    layers = {}
    for name in sorted(files):
        if name.startswith(PREFIX) and name.endswith(".png"):
            layer, path = layer_of(name[len(PREFIX) : -len(".png")]), "%s/%s" % (place, name)
            if not layer:
                raise NotMarked("%s has no layer's name" % path)
            if layer in layers:
                raise NotMarked("%s is a second file for the layer %s" % (path, layer))
            layers[layer] = read_mask(files[name], path, image.shape[1:])
    selected = layers.pop(REGIONS, torch.ones(image.shape[1:], dtype=torch.bool))
    if not layers:
        raise NotMarked('%s has no layer: no file named "%s….png"' % (place, PREFIX))
    return Page(place, image, {name: mask & selected for name, mask in layers.items()}, selected)


def read_mask(raw, path, size):
    picture = decode(raw, path)
    if "A" not in picture.getbands():
        raise NotMarked("%s is %s, not RGBA: it does not mark any pixels" % (path, picture.mode))
    expected = size[1], size[0]
    if picture.size != expected:
        given = (path, *picture.size, *expected)
        raise NotMarked("%s has %d × %d pixels, the image of the page has %d × %d" % given)
    return pixels_of(picture.getchannel("A"))[0] == OPAQUE


def decode(raw, path):
    try:
        picture = Image.open(io.BytesIO(raw))
        picture.load()
    except UnidentifiedImageError as error:
        raise NotMarked("%s is not an image" % path) from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise NotMarked("%s cannot be read: %s" % (path, error)) from error
    return picture.convert("RGBA") if "transparency" in picture.info else picture


def pixels_of(picture):
    """Return a picture as a tensor of bytes: colour, row, column."""
    flat = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
    return flat.view(picture.height, picture.width, -1).permute(2, 0, 1).contiguous()


def picture_of(pixels):
    """Return a tensor of bytes as a picture; reverses `pixels_of`."""
    mode = {1: "L", 3: "RGB", 4: "RGBA"}[len(pixels)]
    raw = bytearray(pixels.numel())
    torch.frombuffer(raw, dtype=torch.uint8).copy_(pixels.permute(1, 2, 0).flatten())
    return Image.frombytes(mode, (pixels.shape[2], pixels.shape[1]), bytes(raw))


def layer_of_page(image, mask):
    """Return the picture of a layer: its pixels as on the page, the rest transparent."""
    opaque = mask.to(torch.uint8)
    return picture_of(torch.cat([image * opaque, OPAQUE * opaque[None]]))


class Patches(torch.utils.data.Dataset):
    """Patches around random pixels, equally many for each layer; each is drawn when it is read.

    An item is (image, a mask for each of `layers`, a mask of where the page was marked). The random numbers
    are torch's, which the loader seeds for each item: it does not depend on the process that cuts it, nor on
    interruptions of the run.
    """

    def __init__(self, pages, layers, size, per_layer):
        self.pages, self.layers, self.size, self.per_layer = pages, layers, size, per_layer
        for page in pages:
            height, width = page.selected.shape
            if height < size[0] or width < size[1]:
                given = page.name, width, height, size[1], size[0]
                raise NotMarked("the page %s has %d × %d pixels, less than a patch of %d × %d" % given)
        #: For each layer, the number of its pixels before each row, with the pages stacked vertically.
        self.before = {}
        for layer in pages[0].layers:
            rows = torch.cat([page.layers[layer].sum(dim=1) for page in pages])
            self.before[layer] = torch.cat([torch.zeros(1, dtype=torch.int64), rows.cumsum(0)])
            if not self.before[layer][-1]:
                raise NotMarked("no page for training has a marked pixel of the layer %s" % layer)

    def __len__(self):
        return self.per_layer * len(self.before)

    def __getitem__(self, index):
        page, row, column = self.a_pixel_of(list(self.before)[index % len(self.before)])
        height, width = page.selected.shape
        window = ..., around(row, self.size[0], height), around(column, self.size[1], width)
        marks = torch.stack([page.layers[layer][window] for layer in self.layers])
        return augmented(page.image[window], marks, page.selected[window])

    def a_pixel_of(self, layer):
        """Return page, row and column of a random pixel of the layer, each equally likely."""
        before = self.before[layer]
        drawn = int(torch.randint(int(before[-1]), ()))
        row = int(torch.searchsorted(before, drawn, right=True)) - 1
        nth = drawn - int(before[row])
        for page in self.pages:
            if row < len(page.selected):
                break
            row -= len(page.selected)
        return page, row, int(page.layers[layer][row].nonzero()[nth])


def around(place, extent, whole):
    """Return a slice of `extent` rows or columns with `place` as near to the middle as the page allows."""
    start = min(max(place - extent // 2, 0), whole - extent)
    return slice(start, start + extent)


def augmented(image, marks, selected):
    """Return the patch with random brightness, randomly mirrored: augmentation, since there are few pages."""
    light = torch.empty(3, 1, 1).uniform_(0.85, 1.15) * torch.empty(()).uniform_(0.85, 1.15)
    image = (image * light).clamp(0, 255).to(torch.uint8)
    if torch.rand(()) < 0.5:
        image, marks, selected = image.flip(-1), marks.flip(-1), selected.flip(-1)
    return image, marks, selected

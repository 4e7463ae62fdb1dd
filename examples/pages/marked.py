"""Marked pages as Pixel.js and Rodan hand them on, and the patches that are cut out of them.

A page is a folder or a ZIP, and several pages are a folder or a ZIP of them. A page has `Image.png`, the page
itself; an RGBA PNG for each layer, such as `rgba PNG - Text.png`, whose opaque pixels are those of the layer;
and, where only a part of the page was marked, `rgba PNG - Selected regions.png`, opaque in that part.
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
    """What stands in a folder is not a marked page; the message is for the person who made it."""


class Page(NamedTuple):
    name: str
    image: torch.Tensor  # bytes: colour, row, column
    layers: dict  # by name: true where a pixel belongs to the layer
    selected: torch.Tensor  # true where the page was marked


def layer_of(title):
    """The short name of a layer, which its model is called after."""
    match = _TITLE.fullmatch(title)
    return re.sub(r"\W+", "_", (match["named"] or match["plain"]).lower()).strip("_")


def read_pages(path):
    """The pages in a folder or a ZIP, each a folder or a ZIP in it, by their names; or the one page it is."""
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
        raise NotMarked("%s holds no page: neither a folder nor a ZIP" % path)
    pages = [read_page(name, found) for name, found in files.items()]
    for page in pages[1:]:
        if page.layers.keys() != pages[0].layers.keys():
            here, there = (", ".join(sorted(one.layers)) for one in (page, pages[0]))
            raise NotMarked("%s has the layers %s, %s has %s" % (page.name, here, pages[0].name, there))
    return pages


def is_page(place):
    """Whether it is to be read; a Mac puts a folder `__MACOSX` of its own into each ZIP."""
    hidden = place.name.startswith((".", "__"))
    return not hidden and (place.is_dir() or place.name.endswith(".zip"))


def opened(place):
    """A folder as it is, a ZIP as if it were a folder; both may be inside a ZIP."""
    return place if place.is_dir() else zipfile.Path(zipfile.ZipFile(io.BytesIO(place.read_bytes())))


def contents(place):
    return {file.name: file.read_bytes() for file in place.iterdir() if file.is_file()}


def read_page(place, files):
    """One page, from the contents of its files by their names."""
    found = next((name for name in IMAGES if name in files), None)
    if found is None:
        raise NotMarked("%s has no %s" % (place, " or ".join(IMAGES)))
    image = pixels_of(decode(files[found], "%s/%s" % (place, found)).convert("RGB"))
    layers = {}
    for name in sorted(files):
        if name.startswith(PREFIX) and name.endswith(".png"):
            layer, path = layer_of(name[len(PREFIX) : -len(".png")]), "%s/%s" % (place, name)
            if not layer:
                raise NotMarked("%s names no layer" % path)
            if layer in layers:
                raise NotMarked("%s is a second file for the layer %s" % (path, layer))
            layers[layer] = read_mask(files[name], path, image.shape[1:])
    selected = layers.pop(REGIONS, torch.ones(image.shape[1:], dtype=torch.bool))
    if not layers:
        raise NotMarked('%s has no layer: no file called "%s….png"' % (place, PREFIX))
    return Page(place, image, {name: mask & selected for name, mask in layers.items()}, selected)


def read_mask(raw, path, size):
    picture = decode(raw, path)
    if "A" not in picture.getbands():
        raise NotMarked("%s is %s, not RGBA: nothing says which pixels are meant" % (path, picture.mode))
    wanted = size[1], size[0]
    if picture.size != wanted:
        given = (path, *picture.size, *wanted)
        raise NotMarked("%s has %d × %d pixels, the image of the page has %d × %d" % given)
    return pixels_of(picture.getchannel("A"))[0] == OPAQUE


def decode(raw, path):
    try:
        picture = Image.open(io.BytesIO(raw))
        picture.load()
    except UnidentifiedImageError as error:
        raise NotMarked("%s is no image" % path) from error
    except (OSError, SyntaxError, ValueError) as error:
        raise NotMarked("%s cannot be read: %s" % (path, error)) from error
    return picture.convert("RGBA") if "transparency" in picture.info else picture


def pixels_of(picture):
    """A picture as bytes in a tensor: colour, row, column."""
    flat = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
    return flat.view(picture.height, picture.width, -1).permute(2, 0, 1).contiguous()


def picture_of(pixels):
    """The reverse of `pixels_of`."""
    mode = {1: "L", 3: "RGB", 4: "RGBA"}[len(pixels)]
    raw = bytearray(pixels.numel())
    torch.frombuffer(raw, dtype=torch.uint8).copy_(pixels.permute(1, 2, 0).flatten())
    return Image.frombytes(mode, (pixels.shape[2], pixels.shape[1]), bytes(raw))


def layer_of_page(image, mask):
    """A layer as it is read: what belongs to it as it looks on the page, the rest transparent."""
    opaque = mask.to(torch.uint8)
    return picture_of(torch.cat([image * opaque, OPAQUE * opaque[None]]))


class Patches(torch.utils.data.Dataset):
    """Patches around pixels that are drawn by lot when they are asked for, as many for each layer.

    An item is the patch; for each of `layers`, where it is marked; and where the patch was marked at all.
    The random numbers are torch's own, which the loader seeds for each item: it is the same whichever process
    cuts it, and however often the training was interrupted.
    """

    def __init__(self, pages, layers, size, per_layer):
        self.pages, self.layers, self.size, self.per_layer = pages, layers, size, per_layer
        for page in pages:
            height, width = page.selected.shape
            if height < size[0] or width < size[1]:
                given = page.name, width, height, size[1], size[0]
                raise NotMarked("the page %s has %d × %d pixels, less than a patch of %d × %d" % given)
        #: For each layer, how many pixels of it come before each row, the pages one below the other.
        self.before = {}
        for layer in pages[0].layers:
            rows = torch.cat([page.layers[layer].sum(dim=1) for page in pages])
            self.before[layer] = torch.cat([torch.zeros(1, dtype=torch.int64), rows.cumsum(0)])
            if not self.before[layer][-1]:
                raise NotMarked("no page to learn from has a marked pixel of the layer %s" % layer)

    def __len__(self):
        return self.per_layer * len(self.before)

    def __getitem__(self, index):
        page, row, column = self.a_pixel_of(list(self.before)[index % len(self.before)])
        height, width = page.selected.shape
        window = ..., around(row, self.size[0], height), around(column, self.size[1], width)
        marks = torch.stack([page.layers[layer][window] for layer in self.layers])
        return augmented(page.image[window], marks, page.selected[window])

    def a_pixel_of(self, layer):
        """Any pixel of the layer, each as likely as the other: its page, its row, its column."""
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
    """So many rows or columns with this one in the middle, or as near to it as the page allows."""
    start = min(max(place - extent // 2, 0), whole - extent)
    return slice(start, start + extent)


def augmented(image, marks, selected):
    """Lighter or darker, and mirrored or not: there are few pages, and they must stand for a whole book."""
    light = torch.empty(3, 1, 1).uniform_(0.85, 1.15) * torch.empty(()).uniform_(0.85, 1.15)
    image = (image * light).clamp(0, 255).to(torch.uint8)
    if torch.rand(()) < 0.5:
        image, marks, selected = image.flip(-1), marks.flip(-1), selected.flip(-1)
    return image, marks, selected

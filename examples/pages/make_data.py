"""Draws small pages of a book of chants and marks them: staff lines, square notes, text, parchment.

They have the files of real pages (see `marked.py`). Only the last page is marked completely, the others in
part, as people do. The ink bleeds into the parchment, ink from the back of the page shines through, and the
inks of all pages differ. The same seed draws the same pages.
"""

import argparse
import io
import random
import sys
import zipfile

try:
    import torch
    from PIL import Image, ImageDraw, ImageFilter
except ModuleNotFoundError as error:
    sys.exit("%s is not installed; type: pip install torch pillow" % error.name)

from marked import PREFIX, layer_of_page, picture_of, pixels_of

#: The layers that are drawn, each over the ones before it; the rest is the background.
DRAWN = "Staff lines layer", "Music symbol layer", "Text"
INKS = {"Staff lines layer": (150, 60, 45), "Music symbol layer": (50, 36, 30), "Text": (72, 46, 34)}
PARCHMENT = 226, 208, 172
FINER = 4  # lines are drawn this many times larger than the page and shrunk, for smooth edges
LINES = 4  # of a staff
GAP = 6  # pixels between the lines of a staff
STAFF = 56  # pixels from one staff to the next


def draw_ink(width, height, chance):
    """Return for each layer the part of each pixel that its ink covers, from 0 to 1."""
    sheets = {kind: Image.new("L", (width * FINER, height * FINER)) for kind in DRAWN}
    pens = [ImageDraw.Draw(sheets[kind]) for kind in DRAWN]
    margin = 14
    for top in range(margin, height - STAFF + 8, STAFF):
        left, right = margin + chance.uniform(-3, 3), width - margin + chance.uniform(-3, 3)
        draw_staff(pens[0], left, right, top, chance)
        draw_notes(pens[1], left, right, top, chance)
        draw_text(pens[2], left, right, top + LINES * GAP + 13, chance)
    shrunk = {kind: sheet.resize((width, height), Image.Resampling.BOX) for kind, sheet in sheets.items()}
    return {kind: pixels_of(sheet)[0] / 255 for kind, sheet in shrunk.items()}


def fine(*numbers):
    return [number * FINER for number in numbers]


def draw_staff(pen, left, right, top, chance):
    """Draw lines that are slightly uneven and vary in thickness."""
    slope = chance.uniform(-0.008, 0.008)
    for line in range(LINES):
        x, y = left, top + line * GAP + chance.uniform(-0.5, 0.5)
        while x < right:
            step = min(chance.uniform(6, 18), right - x)
            after = y + step * slope + chance.uniform(-0.2, 0.2)
            pen.line(fine(x, y, x + step, after), 255, round(FINER * chance.uniform(1.1, 1.7)))
            x, y = x + step, after


def draw_notes(pen, left, right, top, chance):
    """Draw a clef, then square notes, alone or in groups, some with a stem."""
    x = left + 3
    pen.rectangle(fine(x, top, x + 2, top + 2 * GAP), 255)
    x += 10
    while x < right - 8:
        size, y = chance.uniform(4, 5.5), top + chance.uniform(-0.5, LINES - 1) * GAP
        for _ in range(chance.choice((1, 1, 2, 3))):
            tilt = chance.uniform(-0.8, 0.8)
            corners = [(x, y), (x + size, y + tilt), (x + size, y + tilt + size), (x, y + size)]
            pen.polygon([tuple(fine(*corner)) for corner in corners], 255)
            if chance.random() < 0.4:
                pen.line(fine(x + size - 0.5, y, x + size - 0.5, y + chance.uniform(7, 11)), 255, FINER)
            x, y = x + size + 0.5, y + chance.choice((-1, 1)) * GAP / 2
        x += chance.uniform(5, 14)


def draw_text(pen, left, right, baseline, chance):
    """Draw words of illegible letters: strokes and bows, some with ascenders or descenders."""
    x = left + chance.uniform(0, 10)
    thick = round(FINER * chance.uniform(1.2, 1.6))
    while x < right - 16:
        for _ in range(chance.randint(2, 6)):
            tall = chance.choice((0, 0, 0, -4, 3))
            pen.line(fine(x, baseline + min(tall, 0), x + 0.7, baseline + 5 + max(tall, 0)), 255, thick)
            bow = chance.choice((0, 180, None))
            if bow is not None:
                pen.arc(fine(x - 0.5, baseline, x + 4, baseline + 5), bow, bow + 180, 255, thick)
            x += 4.6
            if x > right - 6:
                break
        x += chance.uniform(4, 8)


def noise(height, width, coarse, generator):
    """Return smooth noise about 0: one random number for each `coarse` pixels, interpolated."""
    rough = torch.randn(1, 1, height // coarse + 2, width // coarse + 2, generator=generator)
    return torch.nn.functional.interpolate(rough, size=(height, width), mode="bilinear")[0]


def blurred(coverage, radius):
    """Return the coverage of ink that has bled into its surroundings."""
    picture = picture_of((coverage[None] * 255).to(torch.uint8))
    return pixels_of(picture.filter(ImageFilter.GaussianBlur(radius))) / 255


def parchment(height, width, generator):
    colour = torch.tensor(PARCHMENT, dtype=torch.float32) + 10 * torch.randn(3, generator=generator)
    texture = sum(
        strength * noise(height, width, coarse, generator) for strength, coarse in ((9, 48), (5, 12), (4, 1))
    )
    return colour.view(3, 1, 1) + texture * torch.tensor([1.0, 1.05, 1.2]).view(3, 1, 1)


def draw_page(width, height, seed, whole):
    """Return the files of a page: pictures by name. With `whole`, all of it is marked, else a part."""
    chance, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    coverage = draw_ink(width, height, chance)
    behind = sum(draw_ink(width, height, chance).values()).clamp(0, 1).flip(-1)
    page = parchment(height, width, generator)
    page *= 1 - 0.13 * blurred(behind, 1.5)
    for kind, covered in coverage.items():
        ink = torch.tensor(INKS[kind], dtype=torch.float32) + 8 * torch.randn(3, generator=generator)
        wet = (0.75 * covered + 0.3 * blurred(covered, 1.2)).clamp(0, 1)
        wet = (wet * (0.92 + 0.08 * noise(height, width, 8, generator))).clamp(0, 1)
        page = page * (1 - wet) + ink.view(3, 1, 1) * wet
    image = page.clamp(0, 255).to(torch.uint8)

    selected = torch.zeros(height, width, dtype=torch.bool)
    top, left = (0, 0) if whole else (chance.randrange(height // 4), chance.randrange(width // 6))
    selected[top : height if whole else top + 3 * height // 4, left:] = True
    rest, layers = selected.clone(), {}
    for kind in reversed(DRAWN):
        layers[kind] = rest & (coverage[kind] > 0.5)
        rest &= ~layers[kind]
    layers.update({"Background layer": rest, "Selected regions": selected})
    files = {"Image.png": picture_of(image)}
    for title, mask in layers.items():
        paint = torch.tensor(INKS.get(title, PARCHMENT), dtype=torch.uint8).view(3, 1, 1)
        files["%s%s.png" % (PREFIX, title)] = layer_of_page(paint.expand_as(image), mask)
    return files


def make_data(path, pages=4, width=192, height=180, seed=1):
    """Write a ZIP of pages 001, 002, …; the last is marked completely, so that models can be tested on it."""
    with zipfile.ZipFile(path, "x") as archive:
        for number in range(1, pages + 1):
            files = draw_page(width, height, 1000 * seed + number, whole=number == pages)
            for name, picture in sorted(files.items()):
                raw = io.BytesIO()
                picture.save(raw, "PNG", optimize=True)
                # ZipInfo has a fixed time; the current time would give each ZIP another digest.
                archive.writestr(zipfile.ZipInfo("%03d/%s" % (number, name)), raw.getvalue())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", nargs="?", default="book.zip", metavar="FILE", help="default: book.zip")
    parser.add_argument("--pages", type=int, default=4)
    parser.add_argument("--width", type=int, default=192, help="of a page, in pixels")
    parser.add_argument("--height", type=int, default=180)
    parser.add_argument("--seed", type=int, default=1, help="another seed draws other pages")
    given = parser.parse_args()
    try:
        make_data(**vars(given))
    except FileExistsError:
        sys.exit("%s exists already and was not changed" % given.path)
    print("%s: %d pages" % (given.path, given.pages))


if __name__ == "__main__":
    main()

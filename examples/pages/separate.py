"""Separates a page into its layers, with the models that `pages.py` has trained.

The new folder is a page as `marked.py` describes it: corrected by hand, it is one more page for training.
"""

import argparse
import shutil
import sys
from pathlib import Path

from marked import PREFIX, NotMarked, decode, layer_of_page, pixels_of
from model import BadModel, read_model, separate


def read_models(folder):
    """Return the models in a folder and its subfolders, by the names of their layers."""
    paths = sorted(folder.rglob("*.pt"))
    if not paths:
        sys.exit("%s has no model: no file ends in .pt" % folder)
    models = {}
    for path in paths:
        if path.stem in models:
            sys.exit("%s is a second model of that layer; choose a folder with only one" % path)
        try:
            models[path.stem] = read_model(path)
        except BadModel as error:
            sys.exit("%s %s" % (path, error))
    return models


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", type=Path, help="folder with the models, such as results")
    parser.add_argument("image", type=Path, help="the page, a PNG or JPEG")
    parser.add_argument("folder", type=Path, help="new folder for the page and its layers")
    options = parser.parse_args()
    models = read_models(options.models)
    try:
        image = pixels_of(decode(options.image.read_bytes(), options.image).convert("RGB"))
        options.folder.mkdir(parents=True)
        shutil.copyfile(options.image, options.folder / ("Image" + options.image.suffix.lower()))
    except (NotMarked, OSError) as error:
        sys.exit(str(error))
    for layer, mask in separate(models, image).items():
        layer_of_page(image, mask).save(options.folder / ("%s%s.png" % (PREFIX, layer)))
        print("%-14s %5.1f %% of the page" % (layer, 100 * mask.float().mean()))


if __name__ == "__main__":
    main()

"""Learns from marked pages to separate the layers of other pages: background, notes, staff lines, text.

There is one network for each layer. All are trained together, on the same patches, in one run with one
checkpoint. However often it is interrupted, even in the middle of an epoch, it ends with the same weights,
bit for bit, on the same type of processor with the same number of threads.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import outlast
import outlast.data

try:
    import torch
    from torch.nn import functional
except ModuleNotFoundError as error:
    sys.exit("%s is not installed; type: pip install torch pillow" % error.name)

from marked import NotMarked, Patches, read_pages
from model import SHRINKING, AutoEncoder, separate

#: Options that do not affect the models, and may change between attempts.
HARMLESS = "data", "workers"


class Settings:
    """The first part of a checkpoint to be loaded: with other settings, the other parts would not fit."""

    def __init__(self, given):
        self.values = {name: value for name, value in vars(given).items() if name not in HARMLESS}

    def state_dict(self):
        return self.values

    def load_state_dict(self, before):
        changed = sorted(name for name, value in self.values.items() if before.get(name) != value)
        if changed:
            was = ", ".join("--%s %s" % (name.replace("_", "-"), before.get(name)) for name in changed)
            sys.exit("the checkpoints were saved with %s; use the same, or move them away" % was)


def divided(pages):
    """Return the pages for training, and the pages for the test."""
    if len(pages) == 1:
        print("there is only one page: it is used for training and for the test", flush=True)
        return pages, pages
    return pages[:-1], pages[-1:]


def layers_of(given, page):
    """Return the layers to train, in the order of the page: all that are marked, or the requested ones."""
    unknown = set(given.layers) - set(page.layers)
    if unknown:
        names = ", ".join(sorted(unknown)), ", ".join(page.layers)
        raise NotMarked("there is no layer %s; the marked layers are %s" % names)
    return [layer for layer in page.layers if not given.layers or layer in given.layers]


def new_models(given, page, layers):
    """Return a model for each layer. Its initial weights do not depend on the other layers."""
    models = {}
    for number, layer in enumerate(page.layers):
        torch.manual_seed(1000 * given.seed + number)
        model = AutoEncoder(given.width)
        if layer in layers:
            models[layer] = model
    return models


def losses_of(models, pixels, marks, selected):
    """Return the loss of each model. Pixels that were not marked do not count."""
    weight = selected.float()
    return {
        layer: functional.binary_cross_entropy_with_logits(
            model(pixels), marks[:, index].float(), weight=weight, reduction="sum"
        )
        / weight.sum()
        for index, (layer, model) in enumerate(models.items())
    }


def measure(models, pages):
    """Return the F1 score of each layer in the marked parts of these pages."""
    right, wrong = dict.fromkeys(models, 0), dict.fromkeys(models, 0)
    for page in pages:
        for layer, found in separate(models, page.image).items():
            marked = page.layers[layer]
            right[layer] += int((marked & found).sum())
            wrong[layer] += int(((marked ^ found) & page.selected).sum())
    return {layer: 2 * right[layer] / max(1, 2 * right[layer] + wrong[layer]) for layer in models}


def train(given, patches, held_out):
    """Return the trained models and their metrics."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = outlast.data.Loader(
        patches, given.batch_size, shuffle=True, seed=given.seed, num_workers=given.workers
    )
    models = torch.nn.ModuleDict(new_models(given, patches.pages[0], patches.layers)).to(device)
    # One optimizer for all: it changes a weight by its own gradient, which depends only on its model's loss.
    optimizer = torch.optim.Adam(models.parameters(), lr=given.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, given.epochs * len(loader))

    training = outlast.Training(
        settings=Settings(given), models=models, optimizer=optimizer, scheduler=scheduler, data=loader
    )
    print("starting at step", training.steps, flush=True)
    f1 = {}
    for epoch in training.epochs(given.epochs):
        for batch in training.batches():
            losses = losses_of(models.train(), *(part.to(device) for part in batch))
            optimizer.zero_grad()
            sum(losses.values()).backward()
            optimizer.step()
            scheduler.step()
            training.step(**{"loss_" + layer: loss for layer, loss in losses.items()})
        f1 = measure(models, held_out)
        scores = ", ".join("%s %.3f" % pair for pair in f1.items())
        print("epoch %d of %d: F1 of %s" % (epoch + 1, given.epochs, scores), flush=True)
    return models, {"f1": f1, "epochs": given.epochs, "steps": training.steps}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", default="book.zip", metavar="PATH", help="marked pages: a path, or a name in the job's data"
    )
    parser.add_argument("--layers", nargs="+", default=[], metavar="LAYER", help="train these; default: all")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--samples", type=int, default=32, help="patches per layer and epoch")
    parser.add_argument("--patch-height", type=int, default=48)
    parser.add_argument("--patch-width", type=int, default=64)
    parser.add_argument("--width", type=int, default=8, help="channels of the outermost stage of a model")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.01, help="the learning rate at the start")
    parser.add_argument(
        "--workers", type=int, default=0, help="processes that cut patches; the result is the same"
    )
    parser.add_argument("--seed", type=int, default=1, help="for the initial weights and the patches")
    given = parser.parse_args()
    size = given.patch_height, given.patch_width
    if size[0] % SHRINKING or size[1] % SHRINKING:
        parser.error("the height and the width of a patch must be multiples of %d" % SHRINKING)
    try:
        pages, held_out = divided(read_pages(outlast.data.path(given.data)))
        patches = Patches(pages, layers_of(given, pages[0]), size, given.samples)
    except (NotMarked, FileNotFoundError) as error:
        sys.exit(str(error))

    models, metrics = train(given, patches, held_out)
    output = Path(os.environ.get("OUTLAST_OUTPUT_DIR", "."))
    for layer, model in models.items():
        torch.save(model.cpu().state_dict(), output / ("%s.pt" % layer))
    (output / "metrics.json").write_text(json.dumps(metrics) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

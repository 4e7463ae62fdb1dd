"""Images per second for a training: straight from a tar of class tars, next to folders of classes.

One command: `python benchmarks/images.py`; `--rounds N`, `--json`. Both by the example's dataset (decoded,
resized, mirrored, normalised) and the same loader, with 0 and with 2 workers; all of it was read just before.
"""

from __future__ import annotations

import io
import random
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click
import torch
from PIL import Image
from verdicts import Goal, Row, as_json, in_turns, ratio, show

from outlast.data import Loader

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "imagenet"))

CLASSES, EACH = 20, 60


def make(folder: Path) -> None:
    """`train.tar` and `train/`, with the same images of about the size of ImageNet's."""
    rng = random.Random(1)
    with tarfile.open(folder / "train.tar", "w", format=tarfile.USTAR_FORMAT) as outer:
        for number in range(CLASSES):
            name = "n%08d" % number
            (folder / "train" / name).mkdir(parents=True)
            inner = io.BytesIO()
            with tarfile.open(fileobj=inner, mode="w", format=tarfile.USTAR_FORMAT) as packed:
                for item in range(EACH):
                    file = folder / "train" / name / ("%s_%d.JPEG" % (name, item))
                    noise = Image.frombytes("RGB", (50, 40), rng.randbytes(50 * 40 * 3))
                    noise.resize((500, 400)).save(file, "JPEG", quality=90)
                    packed.add(file, file.name)
            info = tarfile.TarInfo("%s.tar" % name)
            info.size = inner.tell()
            inner.seek(0)
            outer.addfile(info, inner)


def rate(root: Path, workers: int) -> Callable[[], float]:
    from imagenet_resnet50 import CustomImageNetDataset, make_transform

    dataset = CustomImageNetDataset(str(root), make_transform(224, mirror=True))
    loader = Loader(dataset, batch_size=32, shuffle=True, num_workers=workers)
    for _ in loader:  # nothing is cold
        pass

    def measured() -> float:
        began = time.perf_counter()
        count = sum(len(labels) for _, labels in loader)
        return count / (time.perf_counter() - began)

    return measured


@click.command()
@click.option("--rounds", default=5, show_default=True)
@click.option("--json", "json_wanted", is_flag=True)
def main(rounds: int, json_wanted: bool) -> None:
    torch.set_num_threads(1)
    found = []
    with tempfile.TemporaryDirectory(prefix="outlast-bench-") as folder:
        place = Path(folder)
        make(place)
        for workers in (0, 2):
            cases = {name: rate(place / name, workers) for name in ("train.tar", "train")}
            rates = in_turns(cases, rounds)
            beside = "images/s: %s against %s" % tuple(
                ", ".join("%.0f" % one for one in rates[name]) for name in ("train.tar", "train")
            )
            value = ratio(rates["train.tar"], rates["train"])
            found.append(Row("with %d workers" % workers, value, "×", Goal(least=1.0), beside))
    if json_wanted:
        print(as_json({"images": found}))
    else:
        show("images per second from the tar, of those from class folders", found)


if __name__ == "__main__":
    main()

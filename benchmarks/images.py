"""Images per second for a training run: directly from a tar of class tars, compared with class folders.

Run `python benchmarks/images.py`, with `--rounds N` or `--json`. Both use the example's dataset (decoded,
resized, mirrored, normalised) and the same loader, with 0 and with 2 workers. Warm: everything was read just
before. Cold: nothing is cached, as in every epoch of a dataset that is larger than the memory.
"""

from __future__ import annotations

import gc
import io
import random
import sys
import tarfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
import torch
from disks import Disk, private_disk
from measuring import SMOKE_HELP, shrink
from PIL import Image
from verdicts import Goal, Row, as_json, in_turns, ratio, show

from outlast.data import Loader

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "imagenet"))

CLASSES, EACH = 20, 60
SMOKE = {"CLASSES": 2, "EACH": 3}


def make(folder: Path) -> None:
    """Write `train.tar` and `train/` with the same images, of about the size of ImageNet's."""
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


def load(root: Path, workers: int) -> Loader:
    from imagenet_resnet50 import CustomImageNetDataset, make_transform

    dataset = CustomImageNetDataset(str(root), make_transform(224, mirror=True))
    return Loader(dataset, batch_size=32, shuffle=True, num_workers=workers)


def epoch(loader: Loader) -> float:
    """Run one epoch; return images per second."""
    began = time.perf_counter()
    count = sum(len(labels) for _, labels in loader)
    return count / (time.perf_counter() - began)


def warm(root: Path, workers: int) -> Callable[[], float]:
    loader = load(root, workers)
    epoch(loader)
    return lambda: epoch(loader)


def cold(disk: Disk, root: Path, workers: int) -> Callable[[], float]:
    def measured() -> float:
        gc.collect()  # pages that are mapped cannot be dropped
        disk.forget()
        return epoch(load(root, workers))

    return measured


@click.command()
@click.option("--rounds", default=5, show_default=True)
@click.option("--json", "json_wanted", is_flag=True)
@click.option("--smoke", is_flag=True, help=SMOKE_HELP)
def main(rounds: int, json_wanted: bool, smoke: bool) -> None:
    if smoke:
        shrink(sys.modules[__name__])
        rounds = 1
    torch.set_num_threads(1)
    found = []
    with private_disk(1 << 30) as disk:
        make(disk.path)
        roots = {name: disk.path / name for name in ("train.tar", "train")}
        for workers in (0, 2):
            for how, prepare in (("cold", partial(cold, disk)), ("warm", warm)):
                cases = {name: prepare(root, workers) for name, root in roots.items()}
                rates = in_turns(cases, rounds)
                del cases  # open files would prevent the unmount
                beside = "images/s: %s against %s" % tuple(
                    ", ".join("%.0f" % one for one in rates[name]) for name in roots
                )
                value = ratio(rates["train.tar"], rates["train"])
                title = "with %d workers, %s" % (workers, how)
                found.append(Row(title, value, "×", Goal(least=1.0), beside))
        gc.collect()
    if json_wanted:
        print(as_json({"images": found}))
    else:
        show("images per second from the tar, relative to class folders", found)


if __name__ == "__main__":
    main()

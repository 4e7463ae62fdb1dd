"""Trains a residual network on CIFAR-10, directly from `cifar-10-python.tar.gz`.

It also runs without Outlast's jobs (`python cifar10_resnet.py`). As a job it resumes where the last attempt
stopped, even in the middle of an epoch. However often it is interrupted, it ends with the same weights, bit
for bit, on the same type of processor with the same number of threads.
"""

import argparse
import io
import json
import os
import pickle
import sys
import tarfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

import outlast
import outlast.data

FOLDER = "cifar-10-batches-py"
TRAINING = tuple("data_batch_%d" % number for number in range(1, 6))
TESTING = ("test_batch",)
#: Of the real training images: red, green and blue.
MEAN = torch.tensor((0.4914, 0.4822, 0.4465)).reshape(3, 1, 1)
DEVIATION = torch.tensor((0.2470, 0.2435, 0.2616)).reshape(3, 1, 1)
SHIFT = 4  # the largest random shift of an image, in pixels
#: Options that do not affect the weights.
HARMLESS = ("data", "workers")


class BadCifar10(Exception):
    """The archive is not a valid CIFAR-10 archive."""


class StandIn:
    """Takes the place of NumPy's classes in a pickle: stores arguments and state, and runs nothing."""

    def __init__(self, *arguments):
        self.arguments = arguments
        self.state = None

    def __setstate__(self, state):
        self.state = state


class SafeUnpickler(pickle.Unpickler):
    """Reads numbers, strings, lists and arrays. A pickle may call any function; here it can call none."""

    NAMES = frozenset(("numpy.core.multiarray._reconstruct", "numpy.ndarray", "numpy.dtype"))

    def find_class(self, module, name):
        if "%s.%s" % (module, name) not in self.NAMES:
            raise BadCifar10("refers to %s.%s, which no file of CIFAR-10 does" % (module, name))
        return StandIn


def unpickled(content):
    return SafeUnpickler(io.BytesIO(content), encoding="bytes").load()


def read_batch(content):
    """Return images of shape (count, 3, 32, 32), and their labels."""
    batch = unpickled(content)
    labels = torch.tensor(batch[b"labels"])
    _, shape, kind, by_column, raw = batch[b"data"].state
    if kind.arguments[0] != b"u1" or by_column or shape != (len(labels), 3 * 32 * 32):
        raise BadCifar10("%d labels need as many rows of 3072 bytes" % len(labels))
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).reshape(-1, 3, 32, 32), labels


def read_cifar10(path):
    """Return (images, labels) for training and for the test, and the class names; nothing is unpacked."""
    files = {}
    try:
        with tarfile.open(path) as archive:
            for entry in archive:
                folder, _, name = entry.name.rpartition("/")
                if folder == FOLDER and entry.isfile():
                    files[name] = archive.extractfile(entry).read()
        parts = [[read_batch(files[name]) for name in names] for names in (TRAINING, TESTING)]
        classes = [label.decode() for label in unpickled(files["batches.meta"])[b"label_names"]]
    except Exception as error:  # a damaged pickle may raise anything
        why = "it lacks %s" % error if isinstance(error, KeyError) else error
        raise BadCifar10("%s cannot be read as CIFAR-10's python archive: %s" % (path, why)) from error
    train_set, test_set = (
        (torch.cat(images), torch.cat(labels)) for images, labels in (zip(*one, strict=True) for one in parts)
    )
    return train_set, test_set, classes


class Cifar10(Dataset):
    """A dataset of (image, label), normalised; with `augment`, shifted and mirrored at random."""

    def __init__(self, images, labels, augment=False):
        self.images = images
        self.labels = labels
        self.augment = augment

    def __len__(self):
        return len(self.images)

    def __getitem__(self, item):
        image = self.images[item]
        if self.augment:
            x, y = torch.randint(2 * SHIFT + 1, (2,)).tolist()
            image = F.pad(image, (SHIFT,) * 4)[:, y : y + 32, x : x + 32]
            if torch.rand(()) < 0.5:
                image = image.flip(2)
        return (image / 255 - MEAN) / DEVIATION, int(self.labels[item])


class ResidualBlock(nn.Module):
    """Two convolutions with a shortcut from input to output."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(outputs))

    def forward(self, x):
        out = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


class ResNet(nn.Module):
    """A convolution, three stages of residual blocks, each at half the last size, and a linear layer."""

    def __init__(self, width, blocks, classes):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        inputs, layers = width, []
        for stage in range(3):
            outputs = width << stage
            for block in range(blocks):
                layers.append(ResidualBlock(inputs, outputs, stride=2 if stage and not block else 1))
                inputs = outputs
        self.stages = nn.Sequential(*layers)
        self.output = nn.Linear(inputs, classes)

    def forward(self, x):
        out = self.stages(F.relu(self.norm(self.conv(x))))
        return self.output(out.mean(dim=(2, 3)))


def train(model, training, optimizer, scheduler, device):
    """Train for the rest of an epoch. Each step may save, and exits if the job must end."""
    model.train()
    for images, labels in training.batches():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        scheduler.step()
        training.step(loss=loss)


@torch.no_grad()
def test(model, loader, device):
    """Return mean loss and accuracy."""
    model.eval()
    loss, right, count = 0.0, 0, 0
    for images, labels in loader:
        scores, expected = model(images.to(device)), labels.to(device)
        loss += F.cross_entropy(scores, expected, reduction="sum").item()
        right += (scores.argmax(dim=1) == expected).sum().item()
        count += len(labels)
    return loss / count, right / count


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data",
        default="cifar-10-python.tar.gz",
        metavar="FILE",
        help="a path, or a name in the job's data",
    )
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.1, help="the highest learning rate")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage")
    parser.add_argument("--blocks", type=int, default=1, help="residual blocks in each of the three stages")
    parser.add_argument(
        "--workers", type=int, default=0, help="processes that prepare images; the result is the same"
    )
    parser.add_argument("--seed", type=int, default=1, help="for the initial weights and the order")
    given = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        train_set, test_set, classes = read_cifar10(outlast.data.path(given.data))
    except (BadCifar10, FileNotFoundError) as error:
        sys.exit(str(error))
    loader = outlast.data.Loader(
        Cifar10(*train_set, augment=True),
        given.batch_size,
        shuffle=True,
        seed=given.seed,
        num_workers=given.workers,
        drop_last=True,
    )
    test_loader = outlast.data.Loader(Cifar10(*test_set), batch_size=500)
    torch.manual_seed(given.seed)
    model = ResNet(given.width, given.blocks, len(classes)).to(device)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=given.lr, momentum=given.momentum, weight_decay=5e-4, nesterov=True
    )
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, given.lr, total_steps=given.epochs * len(loader)
    )

    training = outlast.Training(model=model, optimizer=optimizer, scheduler=scheduler, data=loader)
    settings = {name: value for name, value in vars(given).items() if name not in HARMLESS}
    if training.state.setdefault("settings", settings) != settings:
        before = training.state["settings"]
        sys.exit("the checkpoints were saved with the settings %s; use the same, or move them away" % before)
    print("starting at step", training.steps, flush=True)
    for epoch in training.epochs(given.epochs):
        train(model, training, optimizer, scheduler, device)
        loss, accuracy = test(model, test_loader, device)
        print(
            "epoch %d of %d: loss %.4f, accuracy %.4f" % (epoch + 1, given.epochs, loss, accuracy), flush=True
        )

    output = Path(os.environ.get("OUTLAST_OUTPUT_DIR", "."))
    torch.save(model.state_dict(), output / "cifar10_resnet.pt")
    metrics = {"accuracy": accuracy, "loss": loss, "epochs": given.epochs, "steps": training.steps}
    (output / "metrics.json").write_text(json.dumps(metrics) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

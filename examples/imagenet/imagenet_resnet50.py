"""Trains a ResNet-50 on ImageNet, directly from `ILSVRC2012_img_train.tar` or from folders of classes.

It also runs without Outlast's jobs (`python imagenet_resnet50.py --save-model`). As a job it resumes where
the last attempt stopped, even in the middle of an epoch. However often it is interrupted, it ends with the
same weights, bit for bit, on the same type of processor with the same number of threads.
"""

import argparse
import io
import json
import os
import sys
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset, Subset

import outlast
import outlast.data

SUFFIXES = (".jpeg", ".jpg", ".png")
#: Of ImageNet's images: red, green and blue.
MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)
#: Options that do not affect the weights.
HARMLESS = ("data", "workers", "save_model")


class ClassFolders:
    """The images in folders of classes, as bytes; like `outlast.data.Archive` for an archive."""

    def __init__(self, root):
        self.classes = tuple(sorted(entry.name for entry in os.scandir(root) if entry.is_dir()))
        found = [
            (path, label)
            for label, name in enumerate(self.classes)
            for path in sorted(Path(root, name).rglob("*"))
            if path.suffix.lower() in SUFFIXES
        ]
        if not found:
            raise ValueError("%s has no folders with images in them" % root)
        self.paths = [path for path, _ in found]
        self.labels = [label for _, label in found]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, item):
        return self.paths[item].read_bytes()


class CustomImageNetDataset(Dataset):
    """(image, label) from a folder of class folders, or from a tar of class tars or class folders."""

    def __init__(self, root, transform):
        place = outlast.data.path(root)
        folders = Path(place).is_dir()
        self.files = ClassFolders(place) if folders else outlast.data.Archive(place, suffixes=SUFFIXES)
        self.transform = transform
        self.classes = self.files.classes
        self.targets = self.files.labels

    def __len__(self):
        return len(self.files)

    def __getitem__(self, item):
        # A few of ImageNet's images are greyscale, CMYK or PNG.
        image = Image.open(io.BytesIO(self.files[item])).convert("RGB")
        return self.transform(image), self.targets[item]


class PlainTransform:
    """Resizes, randomly mirrors and normalises an image; bit for bit the same result as torchvision."""

    def __init__(self, size, mirror):
        self.size = size
        self.mirror = mirror

    def __call__(self, image):
        image = image.resize((self.size, self.size), Image.Resampling.BILINEAR)
        if self.mirror and torch.rand(1) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        values = pixels.reshape(self.size, self.size, 3).permute(2, 0, 1).contiguous() / 255
        mean, deviation = (torch.tensor(one).reshape(3, 1, 1) for one in (MEAN, DEVIATION))
        return (values - mean) / deviation


def make_transform(size, mirror):
    """Return the transform of an image: torchvision's if it is installed and matches torch."""
    try:
        from torchvision import transforms
    except (ImportError, RuntimeError):  # RuntimeError: made for another version of torch
        return PlainTransform(size, mirror)
    steps = [transforms.Resize((size, size)), transforms.ToTensor(), transforms.Normalize(MEAN, DEVIATION)]
    if mirror:
        steps.insert(1, transforms.RandomHorizontalFlip())
    return transforms.Compose(steps)


class Bottleneck(nn.Module):
    """A narrow 3x3 convolution between two 1x1 convolutions, with a shortcut from input to output."""

    expansion = 4

    def __init__(self, inputs, planes, stride):
        super().__init__()
        outputs = planes * self.expansion
        self.conv1 = nn.Conv2d(inputs, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(outputs))

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.relu(self.bn3(self.conv3(out)) + shortcut)


class ResNet50(nn.Module):
    """The ResNet-50 of torchvision, with the same names of weights, so that each can load the other's."""

    def __init__(self, classes=1000, width=64):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.inputs = width
        self.layer1 = self._layer(width, 3, stride=1)
        self.layer2 = self._layer(2 * width, 4, stride=2)
        self.layer3 = self._layer(4 * width, 6, stride=2)
        self.layer4 = self._layer(8 * width, 3, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(self.inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, Bottleneck):
                nn.init.zeros_(module.bn3.weight)  # each block begins as the identity

    def _layer(self, planes, blocks, stride):
        layers = []
        for block in range(blocks):
            layers.append(Bottleneck(self.inputs, planes, 1 if block else stride))
            self.inputs = planes * Bottleneck.expansion
        return nn.Sequential(*layers)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def read_imagenet(path, size, hold_out):
    """Return the training set, the test set, and the names of the classes."""
    train_set = CustomImageNetDataset(path, make_transform(size, mirror=True))
    test_set = CustomImageNetDataset(path, make_transform(size, mirror=False))
    held_out = range(0, len(train_set), hold_out)
    others = [item for item in range(len(train_set)) if item % hold_out]
    return Subset(train_set, others), Subset(test_set, held_out), train_set.classes


def train(model, training, optimizer, scheduler, device):
    """Train for the rest of an epoch. Each step may save, and exits if the job must end."""
    model.train()
    for images, labels in training.batches():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        scheduler.step()
        training.step(loss=loss)


@torch.no_grad()
def accuracy_of(model, loader, device):
    model.eval()
    right = count = 0
    for images, labels in loader:
        right += (model(images.to(device)).argmax(dim=1) == labels.to(device)).sum().item()
        count += len(labels)
    return right / count


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", default="ILSVRC2012_img_train.tar", metavar="PATH", help="a tar, or a folder of classes"
    )
    parser.add_argument(
        "--hold-out", type=int, default=50, metavar="N", help="use every Nth image for the test"
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.05, help="the highest learning rate")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument(
        "--image-size", type=int, default=224, help="width and height of the resized images, in pixels"
    )
    parser.add_argument("--width", type=int, default=64, help="channels of the first layer; 64 is ResNet-50")
    parser.add_argument(
        "--workers", type=int, default=0, help="processes that decode images; the result is the same"
    )
    parser.add_argument("--seed", type=int, default=1, help="for the initial weights and the order")
    parser.add_argument("--save-model", action="store_true", help="write imagenet_resnet50.pt at the end")
    given = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        train_set, test_set, classes = read_imagenet(given.data, given.image_size, given.hold_out)
    except (FileNotFoundError, ValueError, outlast.data.BadArchive) as error:
        sys.exit(str(error))
    loader = outlast.data.Loader(
        train_set, given.batch_size, shuffle=True, seed=given.seed, num_workers=given.workers, drop_last=True
    )
    test_loader = outlast.data.Loader(test_set, given.batch_size, num_workers=given.workers)
    torch.manual_seed(given.seed)
    model = ResNet50(len(classes), given.width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=given.lr, momentum=given.momentum, weight_decay=1e-4)
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
        accuracy = accuracy_of(model, test_loader, device)
        print("epoch %d of %d: accuracy %.4f" % (epoch + 1, given.epochs, accuracy), flush=True)

    output = Path(os.environ.get("OUTLAST_OUTPUT_DIR", "."))
    metrics = {"accuracy": accuracy, "epochs": given.epochs, "steps": training.steps}
    (output / "metrics.json").write_text(json.dumps(metrics) + "\n", encoding="utf-8")
    if given.save_model:
        torch.save(model.state_dict(), output / "imagenet_resnet50.pt")


if __name__ == "__main__":
    main()

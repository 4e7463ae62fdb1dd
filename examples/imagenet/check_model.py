"""Checks a finished model before it is accepted: all weights of a ResNet-50, with finite numbers."""

import os
import pickle
import sys
from pathlib import Path

import torch
from imagenet_resnet50 import ResNet50


def first_size(weight):
    return len(weight) if weight is not None and weight.dim() else 1


def described(weight):
    return "%s %s" % (weight.dtype, list(weight.shape))


def what_is_wrong(path):
    """Return the first problem of the model as a phrase, or None if it is valid."""
    try:
        # With weights_only no code from the file is run.
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        return "cannot be read as a model: it was not written by torch.save, or has more than tensors"
    except (OSError, EOFError, RuntimeError, ValueError) as error:
        return "cannot be read as a model: %s" % str(error).splitlines()[0]
    if not isinstance(weights, dict) or not all(isinstance(one, torch.Tensor) for one in weights.values()):
        return "is not a dictionary of weights"
    # The width and the number of classes are options of the training script; all else follows from them.
    width, classes = (first_size(weights.get(name)) for name in ("conv1.weight", "fc.weight"))
    with torch.device("meta"):
        expected = ResNet50(classes, width).state_dict()
    for name, right in expected.items():
        if name not in weights:
            return "lacks %s" % name
        if described(weights[name]) != described(right):
            return "has %s of %s instead of %s" % (name, described(weights[name]), described(right))
        if not torch.isfinite(weights[name]).all():
            return "has %s with numbers that are not finite" % name
    more = sorted(set(weights) - set(expected))
    return "has %s, which no ResNet-50 has" % more[0] if more else None


if __name__ == "__main__":
    model = Path(os.environ.get("OUTLAST_OUTPUT_DIR", ".")) / "imagenet_resnet50.pt"
    wrong = what_is_wrong(model)
    sys.exit("%s %s" % (model.name, wrong) if wrong else 0)

"""Comparison of the results of two training runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison: equal if there are no differences."""

    #: Of the first and the second training run.
    accuracies: tuple[float, float]
    arrays: int
    numbers: int
    #: One sentence per difference.
    differences: tuple[str, ...]


def compare(first: Path, second: Path) -> Comparison:
    """Compare two directories with `model.npz` and `metrics.json`, bit by bit."""
    import numpy as np

    with np.load(first / "model.npz", allow_pickle=False) as file:
        ours = {name: file[name] for name in file.files}
    with np.load(second / "model.npz", allow_pickle=False) as file:
        theirs = {name: file[name] for name in file.files}
    differences = ["%s is in only one model" % name for name in sorted(set(ours) ^ set(theirs))]
    for name in sorted(set(ours) & set(theirs)):
        one, other = ours[name], theirs[name]
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            differences.append("%s is %s%s and %s%s" % (name, one.dtype, one.shape, other.dtype, other.shape))
        elif one.tobytes() != other.tobytes():
            differences.append("%s differs in %d of %d numbers" % (name, (one != other).sum(), one.size))
    accuracies = (_accuracy(first), _accuracy(second))
    if accuracies[0] != accuracies[1]:
        differences.append("the accuracy is %.4f and %.4f" % accuracies)
    return Comparison(accuracies, len(ours), sum(one.size for one in ours.values()), tuple(differences))


def _accuracy(directory: Path) -> float:
    return float(json.loads((directory / "metrics.json").read_text(encoding="utf-8"))["accuracy"])

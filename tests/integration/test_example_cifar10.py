"""The example `cifar10` as users get it: despite kills it ends with the weights of an undisturbed run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from outlast.templates import templates
from support.example_runs import bring_to_its_end, finish, make, metrics, result, start, weights
from support.experiments import Lab

if "CI" in os.environ:
    import torch  # noqa: F401 - in CI no test may be skipped
else:
    pytest.importorskip("torch")

EXAMPLE = templates()["cifar10"]
ARCHIVE = EXAMPLE / "cifar-10-python.tar.gz"
#: A narrow network and few epochs.
SMALL = "--epochs 8 --batch-size 32 --width 8"
#: The least accuracy of so small a run, for ten classes; it reaches 0.75.
ACCURACY = 0.5


def test_cifar10_ends_with_the_weights_of_an_undisturbed_run_in_spite_of_kills(lab: Lab) -> None:
    alone = lab.root / "alone"
    undisturbed = start("cifar10", alone, "cifar10_resnet.py", "--data", ARCHIVE, *SMALL.split())
    changes = {
        "command:": "command: python cifar10_resnet.py --workers 1 " + SMALL,
        "  grace:": "  every: 0.3s",
        "    at_least:": "    at_least: %s" % ACCURACY,
    }
    directory = make(lab, "cifar10", changes)
    outcomes = bring_to_its_end(lab, directory, ["kill", "evict"])
    code, output = finish(undisturbed)
    assert code == 0, output
    assert len(outcomes) == 3 and outcomes[-1] == "finished"
    found = result(directory)
    assert sorted(path.name for path in found.iterdir()) == ["cifar10_resnet.pt", "metrics.json"]
    assert weights(found / "cifar10_resnet.pt") == weights(alone / "cifar10_resnet.pt")
    assert metrics(found) == metrics(alone)
    assert metrics(found)["accuracy"] >= ACCURACY and metrics(found)["steps"] == 8 * (400 // 32)


def test_cifar10_refuses_a_damaged_archive(lab: Lab) -> None:
    alone = lab.root / "alone"
    alone.mkdir()
    whole = Path(shutil.copy(ARCHIVE, alone)).read_bytes()
    (alone / ARCHIVE.name).write_bytes(whole[: len(whole) // 2])
    code, output = finish(start("cifar10", alone, "cifar10_resnet.py"))
    assert code == 1 and "cannot be read as CIFAR-10's python archive" in output and "Traceback" not in output

"""The example `imagenet` as users get it: despite kills it ends with the weights of an undisturbed run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from outlast.templates import templates
from support.example_runs import bring_to_its_end, finish, make, metrics, result, start, weights
from support.experiments import Lab, open_journal

if "CI" in os.environ:
    import PIL  # noqa: F401 - in CI no test may be skipped
    import torch  # noqa: F401
else:
    pytest.importorskip("torch")
    pytest.importorskip("PIL")

EXAMPLE = templates()["imagenet"]
ARCHIVE = EXAMPLE / "ILSVRC2012_img_train.tar"
MODEL = "imagenet_resnet50.pt"
#: A narrow ResNet-50 and small images.
SMALL = "--epochs 8 --batch-size 16 --width 8 --image-size 32 --hold-out 5 --save-model"
#: The least accuracy of so small a run, for five classes; it reaches 0.9.
ACCURACY = 0.6


def test_imagenet_ends_with_the_weights_of_an_undisturbed_run_in_spite_of_kills(lab: Lab) -> None:
    alone = lab.root / "alone"
    alone.mkdir()
    shutil.copy(ARCHIVE, alone)
    undisturbed = start("imagenet", alone, "imagenet_resnet50.py", *SMALL.split())
    changes = {
        "command:": "command: python imagenet_resnet50.py " + SMALL,
        "  grace:": "  every: 0.3s",
        "    at_least:": "    at_least: %s" % ACCURACY,
    }
    directory = make(lab, "imagenet", changes)
    outcomes = bring_to_its_end(lab, directory, ["kill"])
    code, output = finish(undisturbed)
    assert code == 0, output
    assert outcomes == ["evicted", "finished"]
    found = result(directory)
    assert sorted(path.name for path in found.iterdir()) == [MODEL, "metrics.json"]
    assert weights(found / MODEL) == weights(alone / MODEL)
    assert metrics(found) == metrics(alone)
    assert metrics(found)["accuracy"] >= ACCURACY and metrics(found)["steps"] == 8 * (80 // 16)


def test_a_model_with_values_that_are_not_finite_is_no_result(lab: Lab) -> None:
    words = "--epochs 1 --batch-size 16 --width 4 --image-size 32 --hold-out 5 --lr 1e30 --save-model"
    changes = {
        "command:": "command: python imagenet_resnet50.py " + words,
        "    at_least:": "    at_least: 0",
        "  attempts:": "  attempts: 1",
    }
    directory = make(lab, "imagenet", changes)
    ended = lab.outlast("run", directory)
    assert ended.returncode == 1, ended.output
    output = lab.outlast("logs", "imagenet", cwd=directory).stdout
    assert "imagenet_resnet50.pt has " in output and " with numbers that are not finite\n" in output
    with open_journal(directory) as journal:
        assert {one.outcome.value for one in journal.attempts() if one.outcome} == {"wrong-output"}
    assert not result(directory).exists()


def test_imagenet_explains_why_it_refuses_a_damaged_archive(lab: Lab) -> None:
    folder = lab.root / "alone"
    folder.mkdir()
    whole = Path(shutil.copy(ARCHIVE, folder)).read_bytes()
    (folder / ARCHIVE.name).write_bytes(whole[:100_000])
    code, output = finish(start("imagenet", folder, "imagenet_resnet50.py", *SMALL.split()))
    assert code == 1 and ARCHIVE.name in output and "Traceback" not in output, output

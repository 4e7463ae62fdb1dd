"""The example `pages` as users get it: despite kills it ends with the models of an undisturbed run."""

from __future__ import annotations

import os

import pytest

from outlast.templates import templates
from support.example_runs import bring_to_its_end, finish, make, metrics, result, start, weights
from support.experiments import Lab

if "CI" in os.environ:
    import PIL.Image  # noqa: F401 - in CI no test may be skipped
    import torch  # noqa: F401
else:
    pytest.importorskip("torch")
    pytest.importorskip("PIL.Image")

LAYERS = ["background", "music_symbol", "staff_lines", "text"]
BOOK = templates()["pages"] / "book.zip"
#: Fifty-six steps on small patches.
SMALL = "--epochs 7 --samples 24 --batch-size 12 --patch-height 32 --patch-width 48 --width 6 --lr 0.02"
#: The beginning of the line that requires the F1 of a layer.
RULE = "  - {path: metrics.json, key: f1.%s"
#: The least F1 of so small a run, for each layer; it reaches 0.9.
F1 = 0.75


def test_pages_ends_with_the_models_of_an_undisturbed_run_in_spite_of_kills(lab: Lab) -> None:
    alone = lab.root / "alone"
    undisturbed = start("pages", alone, "pages.py", "--data", BOOK, *SMALL.split())
    changes = {
        "command:": "command: python pages.py --workers 1 " + SMALL,
        "  time:": "  time: 2min",
        "  grace:": "  every: 0.3s",
    }
    changes.update({RULE % layer: "%s, at_least: %s}" % (RULE % layer, F1) for layer in LAYERS})
    directory = make(lab, "pages", changes)
    outcomes = bring_to_its_end(lab, directory, ["kill", "evict"])
    code, output = finish(undisturbed)
    assert code == 0, output
    assert outcomes == ["evicted", "evicted", "finished"]
    found = result(directory)
    models = ["%s.pt" % layer for layer in LAYERS]
    assert sorted(path.name for path in found.iterdir()) == sorted([*models, "metrics.json"])
    for model in models:
        assert weights(found / model) == weights(alone / model), model
    assert metrics(found) == metrics(alone)
    assert metrics(found)["steps"] == 56 and min(metrics(found)["f1"].values()) >= F1

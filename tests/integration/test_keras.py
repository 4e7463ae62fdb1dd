"""Keras on torch: a run that is stopped and killed ends with the same bits as an undisturbed one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.training.env import EXIT_CONTINUE
from support.forked_attempts import (
    SEED,
    Make,
    Parent,
    Run,
    alone_and_hurt,
    finish,
    from_docs,
    maker,
    need,
    same_end,
)

need("keras", "torch")

SCRIPT = Path(__file__).parents[1] / "trainings" / "with_keras.py"
#: Eight batches in each of three epochs.
BATCHES = 24


@pytest.fixture(scope="module")
def parent() -> Iterator[Parent]:
    with Parent("keras", KERAS_BACKEND="torch") as started:
        yield started


@pytest.fixture
def make(parent: Parent, tmp_path: Path) -> Make:
    return maker(parent, SCRIPT, tmp_path)


@pytest.mark.parametrize(
    ("troubles", "options"),
    [
        pytest.param("limit stop kill kill", {}, id="arrays"),
        pytest.param("kill kill kill", {"data": "PyDataset"}, id="PyDataset"),
        pytest.param("kill kill", {"data": "loader", "workers": 1}, id="loader with a worker"),
        pytest.param("stop kill kill", {"accumulate": 3}, id="accumulated gradients"),
    ],
)
def test_an_interrupted_run_ends_with_the_same_bits_as_an_undisturbed_one(
    make: Make,
    troubles: str,
    options: dict[str, Any],
    record_property: Callable[[str, Any], None],
) -> None:
    record_property("seeds", "OUTLAST_STORM_SEED=%d" % SEED)
    alone_and_hurt(make, BATCHES, troubles, **options)


def test_a_run_stopped_in_the_last_batch_of_an_epoch_validates_in_the_next_attempt(
    make: Make,
) -> None:
    alone, hurt = finish(make("alone")), make("hurt")
    ended = hurt.attempt(stop=15)
    assert ended.code == EXIT_CONTINUE, ended.printed
    assert (hurt.progress["step"], hurt.progress["total"]) == (16, BATCHES)
    assert hurt.progress["metrics"]["loss"] > 0
    finish(hurt)
    same_end(alone, hurt)


def test_with_another_backend_the_error_names_the_required_one(parent: Parent, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import keras\n"
        "from outlast.frameworks.keras import Outlast\n"
        "keras.backend.backend = lambda: 'jax'\n"
        "Outlast()\n"
    )
    ended = Run(parent, script, tmp_path / "run").attempt()
    assert ended.code == 1
    assert "this callback needs KERAS_BACKEND=torch, but the backend is jax" in ended.printed


def test_the_script_in_the_documentation_works(parent: Parent, tmp_path: Path) -> None:
    run = Run(parent, from_docs("howto/keras.md", tmp_path), tmp_path / "run")
    finish(run)
    assert (run.output / "model.keras").exists()

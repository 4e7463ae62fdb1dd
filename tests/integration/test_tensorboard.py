"""TensorBoard's logs among the outputs: through kills and limits every step is in them, and once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.forked_attempts import SEED, Parent, Run, from_docs, need, storm, to_its_end

need("tensorboard", "torch")

SCRIPT = Path(__file__).parents[1] / "trainings" / "with_tensorboard.py"
STEPS = 24


@pytest.fixture(scope="module")
def parent() -> Iterator[Parent]:
    with Parent("torch.utils.tensorboard") as started:
        yield started


def test_every_step_is_in_the_logs_once_whatever_befalls_the_training(
    parent: Parent, tmp_path: Path, record_property: Callable[[str, Any], None]
) -> None:
    record_property("seeds", "OUTLAST_STORM_SEED=%d" % SEED)
    alone, hurt = Run(parent, SCRIPT, tmp_path / "alone"), Run(parent, SCRIPT, tmp_path / "hurt")
    to_its_end(alone)
    storm(hurt, STEPS, "limit stop kill kill")
    assert [step for step, _ in hurt.logged("loss")] == list(range(STEPS))
    assert hurt.logged("loss") == alone.logged("loss")


def test_what_was_logged_before_the_first_save_is_not_there_twice(parent: Parent, tmp_path: Path) -> None:
    run = Run(parent, SCRIPT, tmp_path / "run")
    assert run.attempt(kill=0).code < 0
    to_its_end(run)
    assert [step for step, _ in run.logged("loss")] == list(range(STEPS))


def test_what_the_documentation_shows_works(parent: Parent, tmp_path: Path) -> None:
    run = Run(parent, from_docs("howto/tensorboard.md", tmp_path), tmp_path / "run")
    to_its_end(run)
    assert len(run.logged("loss")) == 50

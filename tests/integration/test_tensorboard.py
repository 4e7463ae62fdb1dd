"""TensorBoard logs among the outputs: after kills and limits, every step is in them exactly once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.forked_attempts import SEED, Parent, Run, finish, from_docs, need, storm

need("tensorboard", "torch")

SCRIPT = Path(__file__).parents[1] / "trainings" / "with_tensorboard.py"
STEPS = 24


@pytest.fixture(scope="module")
def parent() -> Iterator[Parent]:
    with Parent("torch.utils.tensorboard") as started:
        yield started


def test_every_step_is_in_the_logs_once_after_interruptions(
    parent: Parent, tmp_path: Path, record_property: Callable[[str, Any], None]
) -> None:
    record_property("seeds", "OUTLAST_STORM_SEED=%d" % SEED)
    alone, hurt = Run(parent, SCRIPT, tmp_path / "alone"), Run(parent, SCRIPT, tmp_path / "hurt")
    finish(alone)
    storm(hurt, STEPS, "limit stop kill kill")
    assert [step for step, _ in hurt.logged("loss")] == list(range(STEPS))
    assert hurt.logged("loss") == alone.logged("loss")


def test_steps_logged_before_the_first_save_are_not_logged_twice(parent: Parent, tmp_path: Path) -> None:
    run = Run(parent, SCRIPT, tmp_path / "run")
    assert run.attempt(kill=0).code < 0
    finish(run)
    assert [step for step, _ in run.logged("loss")] == list(range(STEPS))


def test_the_script_in_the_documentation_works(parent: Parent, tmp_path: Path) -> None:
    run = Run(parent, from_docs("howto/tensorboard.md", tmp_path), tmp_path / "run")
    finish(run)
    assert len(run.logged("loss")) == 50

"""Hugging Face's Trainer: a run that is stopped and killed ends with the same bits as an undisturbed one."""

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

need("transformers", "accelerate", "torch")

SCRIPT = Path(__file__).parents[1] / "trainings" / "with_transformers.py"
#: Eight batches in each of three epochs.
STEPS = 24


@pytest.fixture(scope="module")
def parent() -> Iterator[Parent]:
    modules = ("accelerate", "transformers.trainer", "transformers.models.bert.modeling_bert")
    with Parent(*modules, HF_HUB_OFFLINE="1") as started:
        yield started


@pytest.fixture
def make(parent: Parent, tmp_path: Path) -> Make:
    return maker(parent, SCRIPT, tmp_path)


@pytest.mark.parametrize(
    ("troubles", "steps", "arguments", "quiet"),
    [
        pytest.param("limit stop kill kill", STEPS, {}, False, id="plain"),
        pytest.param("stop kill", 9, {"gradient_accumulation_steps": 3}, False, id="accumulated gradients"),
        pytest.param(
            "kill kill",
            STEPS,
            {"eval_strategy": "steps", "eval_steps": 3},
            False,
            id="evaluation within epochs",
        ),
        pytest.param(
            "kill kill", STEPS, {"train_sampling_strategy": "group_by_length"}, False, id="another order"
        ),
        pytest.param("kill kill", STEPS, {"dataloader_num_workers": 1}, True, id="with a worker"),
    ],
)
def test_an_interrupted_run_ends_with_the_same_bits_as_an_undisturbed_one(
    make: Make,
    troubles: str,
    steps: int,
    arguments: dict[str, Any],
    quiet: bool,
    record_property: Callable[[str, Any], None],
) -> None:
    record_property("seeds", "OUTLAST_STORM_SEED=%d" % SEED)
    options = {"arguments": arguments, "quiet": quiet}
    alone_and_hurt(make, steps, troubles, **options)


def test_a_run_stopped_in_the_last_step_of_an_epoch_evaluates_saves_and_leaves(
    make: Make,
) -> None:
    options = {"arguments": {"eval_strategy": "epoch"}}
    alone, hurt = finish(make("alone", **options)), make("hurt", **options)
    ended = hurt.attempt(stop=7)
    assert ended.code == EXIT_CONTINUE, ended.printed
    assert (hurt.progress["step"], hurt.progress["total"]) == (8, STEPS)
    assert hurt.progress["metrics"]["eval_loss"] > 0
    finish(hurt)
    same_end(alone, hurt)
    assert list((hurt.output / "trainer").iterdir()) == [], "the Trainer has saved its own checkpoint"


def test_counting_callbacks_continue_counting(make: Make) -> None:
    arguments = {
        "eval_strategy": "steps",
        "eval_steps": 3,
        "learning_rate": 0.0,  # nothing gets better, so that patience ends at the third evaluation
        "metric_for_best_model": "loss",
        "restore_callback_states_from_checkpoint": True,
    }
    alone = finish(make("alone", arguments=arguments, patience=True))
    hurt = make("hurt", arguments=arguments, patience=True)
    assert hurt.attempt(stop=7).code == EXIT_CONTINUE
    finish(hurt)
    assert hurt.notes == alone.notes
    assert hurt.progress["step"] == alone.progress["step"] < STEPS - 1


def test_train_without_the_checkpoint_is_an_error_that_says_what_to_pass(make: Make) -> None:
    run = make("run", forgets=True)
    assert run.attempt(stop=3).code == EXIT_CONTINUE
    ended = run.attempt()
    assert ended.code == 1
    assert "train(resume_from_checkpoint=keeper.checkpoint)" in ended.printed


def test_the_script_in_the_documentation_works(parent: Parent, tmp_path: Path) -> None:
    run = Run(parent, from_docs("howto/transformers.md", tmp_path), tmp_path / "run")
    finish(run)
    assert (run.output / "model" / "config.json").exists()

"""Lightning: a run that is stopped and killed ends with the same bits as an undisturbed one."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.training.env import EXIT_CONTINUE
from outlast.training.training_session import SessionSettings, TrainingSession
from support.forked_attempts import (
    SEED,
    Make,
    Parent,
    Run,
    Several,
    alone_and_hurt,
    finish,
    from_docs,
    maker,
    need,
    same_end,
    storm,
)

need("lightning", "pytorch_lightning", "tensorboard", "torchdata")

SCRIPT = Path(__file__).parents[1] / "trainings" / "with_lightning.py"
#: Eight batches in each of three epochs.
BATCHES = 24


@pytest.fixture(scope="module")
def parent() -> Iterator[Parent]:
    with Parent("lightning.pytorch", "torch.utils.tensorboard", "torchdata.stateful_dataloader") as started:
        yield started


@pytest.fixture
def make(parent: Parent, tmp_path: Path) -> Make:
    return maker(parent, SCRIPT, tmp_path)


@pytest.mark.parametrize(
    ("troubles", "options"),
    [
        pytest.param("limit stop kill kill", {}, id="plain loader"),
        pytest.param("kill kill", {"workers": 2}, id="plain loader with workers"),
        pytest.param("kill kill", {"loader": "outlast", "workers": 2}, id="outlast.data.Loader with workers"),
        pytest.param("kill kill", {"loader": "stateful"}, id="StatefulDataLoader"),
        pytest.param("kill", {"loader": "distributed", "workers": 1}, id="sampler with set_epoch"),
        pytest.param("kill kill", {"loader": "stream"}, id="data without a length"),
        pytest.param("stop kill", {"trainer": {"accumulate_grad_batches": 3}}, id="accumulated gradients"),
        pytest.param("stop kill", {"trainer": {"val_check_interval": 0.25}}, id="validation within epochs"),
        pytest.param("kill kill", {"trainer": {"max_steps": BATCHES}, "epochs": -1}, id="limited steps"),
    ],
)
def test_an_interrupted_run_ends_with_the_same_bits_as_an_undisturbed_one(
    make: Make,
    troubles: str,
    options: dict[str, Any],
    record_property: Callable[[str, Any], None],
) -> None:
    record_property("seeds", "OUTLAST_STORM_SEED=%d" % SEED)
    _, hurt = alone_and_hurt(make, BATCHES, troubles, **options)
    assert len([line for line in hurt.notes if line.startswith("batch")]) == BATCHES


def test_it_works_with_the_package_pytorch_lightning_too(tmp_path: Path) -> None:
    with Parent("pytorch_lightning") as parent:
        alone_and_hurt(maker(parent, SCRIPT, tmp_path), BATCHES, "kill", flavour="pytorch_lightning")


@pytest.mark.parametrize(("loader", "left_after"), [("plain", 8), ("outlast", 9)])
def test_a_run_stopped_in_the_last_batch_of_an_epoch_validates_saves_and_leaves(
    make: Make, loader: str, left_after: int
) -> None:
    alone, hurt = finish(make("alone", loader=loader)), make("hurt", loader=loader)
    ended = hurt.attempt(stop=7)
    assert ended.code == EXIT_CONTINUE, ended.printed
    assert (hurt.progress["step"], hurt.progress["total"]) == (left_after, BATCHES)
    assert hurt.progress["metrics"]["loss"] > 0
    finish(hurt)
    same_end(alone, hurt)


def test_tensorboard_has_every_step_once(make: Make) -> None:
    options = {"log": True, "trainer": {"val_check_interval": 0.25}}
    alone, hurt = finish(make("alone", **options)), make("hurt", **options)
    storm(hurt, BATCHES, "stop kill kill")
    assert [step for step, _ in hurt.logged("loss")] == list(range(BATCHES))
    assert hurt.logged("loss") == alone.logged("loss")


def test_a_ckpt_path_passed_to_fit_is_not_loaded_again_when_resuming(make: Make, tmp_path: Path) -> None:
    begin = str(tmp_path / "begin.ckpt")
    finish(make("first", epochs=1, leave=begin))
    alone, hurt = finish(make("alone", begin=begin)), make("hurt", begin=begin)
    storm(hurt, BATCHES - 8, "kill")
    assert hurt.weights == alone.weights


def test_two_processes_stop_at_the_same_step_and_resume_with_the_same_bits(
    parent: Parent, tmp_path: Path
) -> None:
    with Parent("lightning.pytorch") as second:
        options = {"trainer": {"strategy": "ddp", "devices": 2}, "epochs": 2}
        both = Several(parent, second)
        alone, hurt = (Run(both, SCRIPT, tmp_path / name, **options) for name in ("alone", "hurt"))
        finish(alone)
        ended = hurt.attempt(stop=2)  # only one of them gets the signal
        assert ended.code == EXIT_CONTINUE, ended.printed
        finish(hurt)
    same_end(alone, hurt)


def test_the_script_in_the_documentation_works(parent: Parent, tmp_path: Path) -> None:
    run = Run(parent, from_docs("howto/lightning.md", tmp_path), tmp_path / "run")
    finish(run)
    assert (run.output / "model.pt").exists()


def test_a_checkpoint_saved_by_something_else_is_refused_with_what_to_do(make: Make, tmp_path: Path) -> None:
    run = make("run")
    TrainingSession(SessionSettings(directory=str(tmp_path / "run" / "checkpoints"))).save(
        {"mine": 1}, 1, wait=True
    )
    ended = run.attempt()
    assert ended.code == 1
    assert (
        "not saved by outlast's callback for Lightning; load it with the code that saved it" in ended.printed
    )


def test_an_object_that_needs_a_pickle_is_named_at_the_first_step_unless_pickles_are_allowed(
    make: Make,
) -> None:
    ended = make("refused", odd=True).attempt()
    assert ended.code == 1
    assert "the Lightning checkpoint['odd'] is a fractions.Fraction" in ended.printed
    assert "pass allow_pickle=True to Outlast()" in ended.printed
    allowed = make("allowed", odd=True, callback={"allow_pickle": True})
    assert allowed.attempt(stop=3).code == EXIT_CONTINUE
    finish(allowed)
    # A script that does not allow pickles loads none.
    again = make("again", odd=True)
    shutil.copytree(allowed.output.parent / "checkpoints", again.output.parent / "checkpoints")
    ended = again.attempt()
    assert ended.code == 1 and "it needs a pickle of fractions.Fraction" in ended.printed


class Forged:
    """An object whose pickle creates a directory when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_a_forged_checkpoint_executes_nothing(make: Make, tmp_path: Path) -> None:
    import torch

    buffer = io.BytesIO()
    torch.save(Forged(tmp_path / "created"), buffer)
    run = make("run")
    forged = {
        "outlast.lightning": 1,
        "checkpoint": {"x": {"outlast.pickled": buffer.getvalue()}},
        "place": {},
    }
    TrainingSession(SessionSettings(directory=str(tmp_path / "run" / "checkpoints"))).save(
        forged, 1, wait=True
    )
    ended = run.attempt()
    assert ended.code == 1 and "it needs a pickle of" in ended.printed and "mkdir" in ended.printed
    assert not (tmp_path / "created").exists()

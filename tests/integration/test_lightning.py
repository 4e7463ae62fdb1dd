"""A training with Lightning, stopped and killed on its way, ends with the bits of an undisturbed one."""

from __future__ import annotations

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
    from_docs,
    maker,
    need,
    same_end,
    storm,
    to_its_end,
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
        pytest.param("kill", {"loader": "distributed", "workers": 1}, id="sampler that is told the epoch"),
        pytest.param("kill kill", {"loader": "stream"}, id="data without a length"),
        pytest.param("stop kill", {"trainer": {"accumulate_grad_batches": 3}}, id="gradients summed up"),
        pytest.param("stop kill", {"trainer": {"val_check_interval": 0.25}}, id="validation within epochs"),
        pytest.param("kill kill", {"trainer": {"max_steps": BATCHES}, "epochs": -1}, id="so many steps"),
    ],
)
def test_whatever_befalls_it_every_bit_is_that_of_an_undisturbed_training(
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
def test_told_to_stop_in_the_last_batch_of_an_epoch_it_validates_saves_and_leaves(
    make: Make, loader: str, left_after: int
) -> None:
    alone, hurt = to_its_end(make("alone", loader=loader)), make("hurt", loader=loader)
    ended = hurt.attempt(stop=7)
    assert ended.code == EXIT_CONTINUE, ended.printed
    assert (hurt.progress["step"], hurt.progress["total"]) == (left_after, BATCHES)
    assert hurt.progress["metrics"]["loss"] > 0
    to_its_end(hurt)
    same_end(alone, hurt)


def test_tensorboard_has_every_step_once(make: Make) -> None:
    options = {"log": True, "trainer": {"val_check_interval": 0.25}}
    alone, hurt = to_its_end(make("alone", **options)), make("hurt", **options)
    storm(hurt, BATCHES, "stop kill kill")
    assert [step for step, _ in hurt.logged("loss")] == list(range(BATCHES))
    assert hurt.logged("loss") == alone.logged("loss")


def test_a_checkpoint_that_fit_begins_with_is_not_begun_with_again(make: Make, tmp_path: Path) -> None:
    begin = str(tmp_path / "begin.ckpt")
    to_its_end(make("first", epochs=1, leave=begin))
    alone, hurt = to_its_end(make("alone", begin=begin)), make("hurt", begin=begin)
    storm(hurt, BATCHES - 8, "kill")
    assert hurt.weights == alone.weights


def test_two_processes_stop_at_the_same_step_and_go_on_as_if_nothing_had_been(
    parent: Parent, tmp_path: Path
) -> None:
    with Parent("lightning.pytorch") as second:
        options = {"trainer": {"strategy": "ddp", "devices": 2}, "epochs": 2}
        both = Several(parent, second)
        alone, hurt = (Run(both, SCRIPT, tmp_path / name, **options) for name in ("alone", "hurt"))
        to_its_end(alone)
        ended = hurt.attempt(stop=2)  # only one of them is told
        assert ended.code == EXIT_CONTINUE, ended.printed
        to_its_end(hurt)
    same_end(alone, hurt)


def test_what_the_documentation_shows_works(parent: Parent, tmp_path: Path) -> None:
    run = Run(parent, from_docs("howto/lightning.md", tmp_path), tmp_path / "run")
    to_its_end(run)
    assert (run.output / "model.pt").exists()


def test_a_checkpoint_of_another_kind_is_refused_with_what_to_do(make: Make, tmp_path: Path) -> None:
    run = make("run")
    TrainingSession(SessionSettings(directory=str(tmp_path / "run" / "checkpoints"))).save(
        {"mine": 1}, 1, wait=True
    )
    ended = run.attempt()
    assert ended.code == 1
    assert "not saved by outlast's callback for Lightning; load it with what has saved it" in ended.printed

"""`outlast.Training`: runs killed anywhere, also in the middle of an epoch, end with the same bits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.training.checkpoints import checkpoint, checkpoint_names
from outlast.training.env import EXIT_CONTINUE
from support.forked_attempts import (
    SEED,
    Ended,
    Make,
    Parent,
    Run,
    Several,
    finish,
    maker,
    need,
    same_end,
    storm,
)

need("torch", "torchdata")

SCRIPT = Path(__file__).parents[1] / "trainings" / "with_torch.py"
MODULES = ("torch", "torch.optim.lr_scheduler", "torchdata.stateful_dataloader", "torch.nn.parallel")


@pytest.fixture(scope="module")
def parent() -> Iterator[Parent]:
    with Parent(*MODULES) as started:
        yield started


@pytest.fixture
def make(parent: Parent, tmp_path: Path) -> Make:
    return maker(parent, SCRIPT, tmp_path, epochs=4)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("loader", ["outlast", "stateful"])
def test_a_run_killed_in_the_middle_of_epochs_ends_with_the_same_bits(
    make: Make, loader: str, workers: int, record_property: Callable[[str, Any], None]
) -> None:
    record_property("seeds", "OUTLAST_STORM_SEED=%d" % SEED)
    # outlast.data.Loader gives the same samples with any number of workers.
    alone = finish(make("alone", loader=loader, workers=0 if loader == "outlast" else workers))
    hurt = make("hurt", loader=loader, workers=workers)
    storm(hurt, 40, "kill stop kill limit")
    same_end(alone, hurt)


def test_a_run_stopped_after_the_last_batch_of_an_epoch_resumes_with_what_follows_it(make: Make) -> None:
    alone, hurt = finish(make("alone")), make("hurt")
    for step in (10, 20, 40):
        assert hurt.attempt(stop=step).code == EXIT_CONTINUE
    finish(hurt)
    same_end(alone, hurt)


@pytest.fixture(scope="module")
def two(parent: Parent) -> Iterator[Several]:
    with Parent(*MODULES) as other:
        yield Several(parent, other)


@pytest.fixture
def together(two: Several, tmp_path: Path) -> Make:
    return maker(two, SCRIPT, tmp_path, together=True, epochs=4)


def resumed(ended: Ended) -> set[int]:
    return {int(step) for step in re.findall(r"resumed (\d+)", ended.printed)}


def checkpoints(run: Run) -> list[Path]:
    """Return the checkpoints of a run, newest first."""
    found = [
        path
        for path in (run.output.parent / "checkpoints").iterdir()
        if checkpoint_names.is_checkpoint(path.name)
    ]
    return sorted(found, key=lambda path: checkpoint_names.parse_age(path.name), reverse=True)


def test_two_processes_stop_at_the_same_step_whichever_is_signalled_and_end_with_the_same_bits(
    together: Make,
) -> None:
    alone, hurt = finish(together("alone")), together("hurt")
    for rank, step in enumerate((4, 11)):
        assert hurt.attempt(stop=step, rank=rank).code == EXIT_CONTINUE
        (newest, *_) = checkpoints(hurt)
        manifest = checkpoint.verify(str(newest))
        assert (manifest.world, manifest.step) == (2, step)
    ended = hurt.attempt()
    assert ended.code == 0 and resumed(ended) == {11}, ended.printed
    same_end(alone, hurt)


def test_a_checkpoint_that_lacks_a_part_is_skipped_by_all_processes(together: Make) -> None:
    run = together("torn")
    for step in (3, 5):
        assert run.attempt(stop=step).code == EXIT_CONTINUE
    newest = checkpoints(run)[0]
    (newest / "state-00001-of-00002.outlast").unlink()
    ended = run.attempt(stop=6)
    assert ended.code == EXIT_CONTINUE and resumed(ended) == {4}, ended.printed
    assert not newest.exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_disk_that_is_full_for_one_process_blocks_none_and_the_next_save_counts(
    together: Make, rank: int
) -> None:
    alone, hurt = finish(together("alone")), together("hurt")
    ended = hurt.attempt(full=rank, stop=9)
    assert ended.code == EXIT_CONTINUE and ended.printed.count("NOT saved") == 4, ended.printed
    ended = hurt.attempt()
    assert ended.code == 0 and resumed(ended) == {9}, ended.printed
    assert hurt.weights == alone.weights


def test_a_checkpoint_of_two_processes_is_not_loaded_by_one(together: Make, make: Make) -> None:
    assert together("run").attempt(stop=3).code == EXIT_CONTINUE
    one = make("other")
    (one.output.parent / "checkpoints").symlink_to(one.output.parents[1] / "run" / "checkpoints")
    ended = one.attempt()
    assert "was saved by 2 processes, but this run has 1" in ended.printed
    assert len(checkpoints(one)) >= 2

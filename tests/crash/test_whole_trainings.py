"""`outlast.Training`: runs killed anywhere, also in the middle of an epoch, end with the same bits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
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
    for step in (10, 20, 30):
        assert hurt.attempt(stop=step).code == EXIT_CONTINUE
    # Only what follows the last epoch is left.
    assert hurt.attempt(stop=40).code == 0
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


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 3)])
def test_a_checkpoint_of_another_number_of_processes_is_an_error_that_names_both_and_stays(
    parent: Parent, two: Several, tmp_path: Path, before: int, after: int
) -> None:
    with ExitStack() as stack:
        three = Several(*two.parents, stack.enter_context(Parent(*MODULES))) if after == 3 else two
        groups: dict[int, Parent] = {1: parent, 2: two, 3: three}

        def run(count: int, name: str) -> Run:
            return Run(groups[count], SCRIPT, tmp_path / name, together=count > 1, epochs=4)

        assert run(before, "run").attempt(stop=3).code == EXIT_CONTINUE
        other = run(after, "other")
        (other.output.parent / "checkpoints").symlink_to(tmp_path / "run" / "checkpoints")
        names = [path.name for path in checkpoints(other)]
        ended = other.attempt()
    message = "was saved by %d processes, but this run has %d" % (before, after)
    assert ended.code == 1 and ended.printed.count("CheckpointError: ") >= after
    assert ended.printed.count(message) >= after
    assert [path.name for path in checkpoints(other)] == names


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_of_one_process_while_loading_ends_all_of_them_with_its_reason(
    together: Make, rank: int
) -> None:
    run = together("run")
    assert run.attempt(stop=3).code == EXIT_CONTINUE
    names = [path.name for path in checkpoints(run)]
    ended = run.attempt(refuses=rank)
    assert ended.code == 1
    reason = "process %d of 2 has failed: CheckpointError: torch cannot be imported here" % rank
    assert reason in ended.printed and ended.printed.count("torch cannot be imported here") > 2
    assert [path.name for path in checkpoints(run)] == names
    finish(run)


@pytest.mark.parametrize("clock", [86400, -86400])
def test_a_clock_that_is_a_day_off_in_one_process_stops_none_of_them(together: Make, clock: int) -> None:
    alone, hurt = finish(together("alone")), together("hurt")
    ended = hurt.attempt(clock=clock)
    assert ended.code == 0, ended.printed
    same_end(alone, hurt)

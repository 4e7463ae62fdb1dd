"""`outlast.Training` and kept files, without a framework and without kills."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.training.checkpoints import file_format
from outlast.training.checkpoints.copy_buffer import CopyBuffer
from outlast.training.checkpoints.ranks import Ranks
from outlast.training.errors import CheckpointError, SaveFailed
from outlast.training.save_interval import SavePlan
from outlast.training.training_loop import TrainingLoop
from outlast.training.training_session import SessionSettings, TrainingSession

#: Far more than all random states together.
MIB = 1 << 20


class Part:
    """An object with a state."""

    def __init__(self, **state: Any) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = dict(state)


class Numbers(Part):
    """A loader that yields nothing more of an epoch if it is loaded at its end."""

    loaded = False

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.loaded = True

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[int]:
        random.random()  # as a DataLoader draws a seed
        given = self.state.get("given", 0) if self.loaded else 0
        self.loaded = False
        return self._rest(given)

    def _rest(self, given: int) -> Iterator[int]:
        for number in range(given, 3):
            self.state["given"] = number + 1
            yield number


def session(place: Path, **settings: Any) -> TrainingSession:
    return TrainingSession(SessionSettings(directory=str(place / "checkpoints"), **settings))


def always(place: Path, **settings: Any) -> TrainingSession:
    return session(place, plan=SavePlan(every=0.0), **settings)


def test_a_loader_that_ends_too_early_does_not_end_the_epoch(tmp_path: Path) -> None:
    numbers = Numbers()
    numbers.load_state_dict({"given": 3})
    loop = TrainingLoop(session(tmp_path), numbers)
    for _ in loop.epochs(1):
        with pytest.raises(RuntimeError, match="0 of its 3 batches of epoch 0"):
            list(loop.batches())


def test_a_checkpoint_saved_otherwise_or_with_other_parts_is_refused(tmp_path: Path) -> None:
    session(tmp_path).save({"mine": 1}, 1, wait=True)
    with pytest.raises(CheckpointError, match=r"not saved by outlast\.Training"):
        TrainingLoop(session(tmp_path), model=Part())
    TrainingLoop(session(tmp_path / "other"), model=Part()).save(wait=True)
    with pytest.raises(
        CheckpointError, match=r"holds model, but outlast\.Training was given model, optimizer"
    ):
        TrainingLoop(session(tmp_path / "other"), model=Part(), optimizer=Part())


def test_a_part_without_a_state_is_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"data is a list, .*outlast\.data\.Loader"):
        TrainingLoop(session(tmp_path), [1, 2, 3])
    with pytest.raises(TypeError, match="criterion is a function"):
        TrainingLoop(session(tmp_path), criterion=always)


def test_a_failed_save_is_repeated_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = TrainingLoop(always(tmp_path), model=Part(weight=1))
    loop.step()
    loop._hook._session.wait()

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(file_format, "write", full)
        loop.step()
        loop._hook._session._background.wait_for_all()
    loop.step()
    loop._hook._session.wait()
    loop = TrainingLoop(always(tmp_path), model=Part())
    assert loop.resumed == 3
    monkeypatch.setattr(file_format, "write", full)
    with pytest.raises(SaveFailed):
        for _ in range(10):
            loop.step()
            loop._hook._session._background.wait_for_all()


@pytest.mark.parametrize("resumes", [False, True])
def test_memory_for_the_first_save_is_allocated_once_the_first_step_shows_the_size(
    tmp_path: Path, resumes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    monkeypatch.setattr(CopyBuffer, "preallocate", lambda self, size: made.append(size))
    optimizer = Part()
    if resumes:
        TrainingLoop(session(tmp_path), optimizer=Part(momentum=bytes(MIB))).save(wait=True)
    loop = TrainingLoop(session(tmp_path, plan=SavePlan(every=1000.0)), optimizer=optimizer)
    assert made == []
    optimizer.state["momentum"] = bytes(MIB)
    loop.step()
    loop.step()
    assert len(made) == 1 and MIB <= made[0] < 2 * MIB


def test_a_state_that_is_saved_at_the_first_step_is_captured_once(tmp_path: Path) -> None:
    class Counting(Part):
        taken = 0

        def state_dict(self) -> dict[str, Any]:
            self.taken += 1
            return super().state_dict()

    part = Counting()
    loop = TrainingLoop(always(tmp_path), model=part)
    loop.step()
    assert part.taken == 1
    loop.step()
    assert part.taken == 2
    loop._hook._session.wait()


def test_a_state_that_cannot_be_saved_is_an_error_at_the_first_step_and_not_only_at_the_first_save(
    tmp_path: Path,
) -> None:
    loop = TrainingLoop(session(tmp_path, plan=SavePlan(every=1000.0)), model=Part(weight=object()))
    with pytest.raises(TypeError, match=r"state\['parts'\]\['model'\]\['weight'\] is a object"):
        loop.step()


def test_kept_files_are_restored_as_they_were_at_the_save(tmp_path: Path) -> None:
    log = tmp_path / "out" / "tb" / "events"
    flushed: list[int] = []

    def begin() -> TrainingSession:
        one = session(tmp_path, output=str(tmp_path / "out"), token="job %d" % len(flushed))
        one.kept.add("tb", lambda: flushed.append(1))
        return one

    first = begin()
    assert first.load() is None
    log.parent.mkdir(parents=True)
    log.write_text("1 2 3 ")
    first.save({"step": 3}, 3, wait=True)
    assert flushed
    log.write_text("1 2 3 4 5 ")
    (log.parent / "later").write_text("4")
    second = begin()
    assert second.load() == {"step": 3}
    assert log.read_text() == "1 2 3 " and not (log.parent / "later").exists()
    third = session(tmp_path, output=str(tmp_path / "elsewhere"), token="third")
    third.load()
    third.kept.add("tb", None)  # after loading, on a machine without the files
    assert (tmp_path / "elsewhere" / "tb" / "events").read_text() == "1 2 3 "


def test_outside_a_job_no_files_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "old").write_text("from last year")
    first = session(tmp_path)
    first.kept.add("runs", None)
    first.load()
    assert (tmp_path / "runs" / "old").exists()
    first.save(1, 1, wait=True)
    (tmp_path / "runs" / "new").write_text("since")
    second = session(tmp_path)
    second.kept.add("runs", None)
    second.load()
    assert not (tmp_path / "runs" / "new").exists()
    (aside,) = tmp_path.glob("runs.aside-*")
    assert (aside / "new").read_text() == "since" and str(aside.name) in capsys.readouterr().err


def test_outside_a_job_one_line_says_which_step_is_resumed_and_how_to_start_afresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def begin(**settings: Any) -> str:
        loop = TrainingLoop(TrainingSession(SessionSettings(**settings)), model=Part())
        if loop.resumed is None:
            loop.step()
            loop.step()
            loop.save(wait=True)
        return capsys.readouterr().err

    assert begin() == ""
    assert begin() == "outlast: resuming from step 2 in checkpoints; to start afresh: rm -r checkpoints\n"
    assert begin(token="t", run="mine") == ""
    second = TrainingSession(SessionSettings())
    second._detected_ranks = Ranks()
    second._detected_ranks.rank = 1
    second._announce_resuming(2)
    assert capsys.readouterr().err == ""

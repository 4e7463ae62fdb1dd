"""The checkpoint directory: the newest valid one is loaded, damaged ones are renamed, old ones removed."""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outlast.training.checkpoints import checkpoint, checkpoint_names, checkpoint_store, file_format
from outlast.training.checkpoints.copy_buffer import CopyBuffer
from outlast.training.errors import CheckpointError, Damaged, SaveFailed, Superseded
from outlast.training.training_session import SessionSettings, TrainingSession
from support.checkpoints import Waiting

STATE = file_format.part_name()
SAMPLES = Path(__file__).parent / "samples"


Start = Callable[..., Waiting]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.fixture
def start(place: Path) -> Start:
    """Return a function that starts a new session for the same run."""
    return lambda **settings: Waiting(SessionSettings(directory=str(place), **settings))


def checkpoints(place: Path) -> list[Path]:
    """Return the checkpoints, newest first."""
    found = [path for path in place.iterdir() if checkpoint_names.is_checkpoint(path.name)]
    return sorted(found, key=lambda path: checkpoint_names.parse_age(path.name), reverse=True)


def spoil(checkpoint: Path) -> None:
    content = bytearray((checkpoint / STATE).read_bytes())
    content[len(content) // 2] ^= 1
    (checkpoint / STATE).write_bytes(content)


def test_without_checkpoints_there_is_nothing_to_load(start: Start) -> None:
    assert start().load() is None
    assert start().load() is None


def test_a_saved_state_is_loaded_by_the_next_process(start: Start) -> None:
    first = start()
    assert first.load() is None
    assert first.save({"step": 5}, step=5)
    assert start().load() == {"step": 5}


def test_a_torn_checkpoint_is_renamed_and_the_one_before_is_loaded(
    start: Start, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = start()
    session.save("old", step=1)
    session.save("new", step=2)
    newest = checkpoints(place)[0]
    (newest / STATE).unlink()
    log = place.parent / "progress.jsonl"
    assert start(progress_file=str(log)).load() == "old"
    assert not newest.exists()
    assert [path.name.startswith(".bad-" + newest.name) for path in place.iterdir()].count(True) == 1
    assert newest.name in capsys.readouterr().err
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["event"], line.get("name"), line.get("step")) for line in lines] == [
        ("aside", newest.name, None),
        ("loaded", None, 1),
    ]


def test_it_never_starts_afresh_where_checkpoints_exist_and_none_is_whole(start: Start, place: Path) -> None:
    session = start()
    for step in (1, 2):
        session.save(step, step=step)
    for found in checkpoints(place):
        spoil(found)
    for _ in range(2):
        with pytest.raises(CheckpointError) as caught:
            start().load()
        assert str(place) in str(caught.value)
        assert "mv " in str(caught.value)


def test_a_damaged_checkpoint_that_cannot_be_renamed_is_skipped(
    start: Start, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = start()
    session.save("old", step=1)
    session.save("new", step=2)
    spoil(checkpoints(place)[0])

    def refuse(*_: Any) -> None:
        raise PermissionError(13, "no")

    monkeypatch.setattr(os, "rename", refuse)
    assert start().load() == "old"


def test_a_checkpoint_that_cannot_be_read_stays_where_it_is(
    start: Start, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = start()
    session.save("old", step=1)
    session.save("new", step=2)
    newest = checkpoints(place)[0]
    real = os.open

    def fail(path: Any, *args: Any, **kwargs: Any) -> int:
        if str(path).startswith(str(newest)):
            raise OSError(5, "Input/output error")
        return real(path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        assert start().load() == "old"
    assert newest.exists()
    assert start().load() == "new"


def test_a_directory_that_cannot_be_listed_is_an_error_not_an_empty_one(
    start: Start, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start().save(1, step=1)

    def fail(*_: Any) -> list[str]:
        raise PermissionError(13, "no")

    monkeypatch.setattr(os, "listdir", fail)
    with pytest.raises(CheckpointError, match="readable"):
        start().load()


def test_a_lower_step_saved_later_is_the_newer_checkpoint(start: Start, place: Path) -> None:
    first = start()
    first.save("low", step=10)
    first.save("high", step=20)
    spoil(checkpoints(place)[0])
    second = start(keep=2)
    assert second.load() == "low"
    assert second.save("stepped back", step=12)
    shutil.copytree(checkpoints(place)[1], place / checkpoint_names.checkpoint_name(99, (1, 9)))
    assert start().load() == "stepped back"


def test_age_comes_from_the_manifest_where_a_name_was_changed(start: Start, place: Path) -> None:
    session = start()
    session.save("old", step=1)
    session.save("new", step=2)
    new, old = checkpoints(place)
    old.rename(place / "step-000000000009-g000099-s000001")
    assert start().load() == "new"
    new.rename(place / "step-2-keep-this")
    assert start().load() == "new"


def test_saving_one_step_twice_keeps_both_and_the_later_wins(start: Start, place: Path) -> None:
    session = start()
    session.save("a", step=1)
    session.save("b", step=1)
    assert len(checkpoints(place)) == 2
    assert start().load() == "b"


def test_retention_keeps_the_newest(start: Start, place: Path) -> None:
    session = start(keep=3)
    for step in range(6):
        session.save(step, step=step)
    assert [checkpoint.read_manifest(str(path)).step for path in checkpoints(place)] == [5, 4, 3]
    assert {path.name[:6] for path in place.iterdir()} == {"step-0", ".gener"}


def test_retention_never_goes_below_two(start: Start, place: Path) -> None:
    session = start(keep=0)
    for step in range(4):
        session.save(step, step=step)
    assert len(checkpoints(place)) == 2


def test_retention_leaves_two_whole_ones_when_newer_ones_have_gone_bad(start: Start, place: Path) -> None:
    session = start(keep=2)
    session.save("first", step=1)
    session.save("second", step=2)
    spoil(checkpoints(place)[0])
    session.save("third", step=3)
    for spoilt in checkpoints(place)[:1]:
        spoil(spoilt)
    assert start().load() == "first"


def test_damaged_checkpoints_do_not_accumulate(start: Start, place: Path) -> None:
    for step in range(6):
        session = start(keep=2)
        session.load()
        session.save("good", step=step)
        session.save("bad", step=step)
        spoil(checkpoints(place)[0])
    assert sum(checkpoint_names.is_bad(path.name) for path in place.iterdir()) <= 3
    assert start().load() == "good"


def test_an_older_process_cannot_save_after_a_newer_one_has_claimed(start: Start, place: Path) -> None:
    zombie = start()
    zombie.load()
    zombie.save("before", step=1)
    heir = start()
    assert heir.load() == "before"
    with pytest.raises(Superseded, match=r"another process .*has taken over"):
        zombie.save("zombie", step=2)
    assert heir.save("heir", step=2)
    assert start().load() == "heir"


def test_a_process_superseded_while_it_writes_does_not_commit(
    start: Start, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zombie, heir = start(), start()
    zombie.load()
    real = file_format.write

    def write(*args: Any) -> Any:
        monkeypatch.setattr(file_format, "write", real)
        heir.load()
        return real(*args)

    monkeypatch.setattr(file_format, "write", write)
    with pytest.raises(Superseded):
        zombie.save("zombie", step=1)
    assert checkpoints(place) == []


def test_a_claim_made_just_before_the_commit_stops_it(
    start: Start, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zombie = start()
    zombie.load()
    real = file_format.write

    def write(*args: Any) -> Any:
        (place / checkpoint_names.claim_name(2)).touch()
        return real(*args)

    monkeypatch.setattr(file_format, "write", write)
    with pytest.raises(Superseded):
        zombie.save("zombie", step=1)
    assert checkpoints(place) == []


def test_a_superseded_process_writes_nothing_at_all(
    start: Start, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zombie = start()
    zombie.load()
    start().load()
    monkeypatch.setattr(file_format, "write", lambda *_: pytest.fail("it wrote"))
    with pytest.raises(Superseded):
        zombie.save("zombie", step=1)


def ages(place: Path) -> list[checkpoint_names.Age]:
    """Return the ages of the checkpoints, newest first."""
    return [checkpoint_names.parse_age(path.name) for path in checkpoints(place)]


def test_processes_of_one_attempt_share_a_generation(start: Start, place: Path) -> None:
    first = start(token="t1", keep=9)
    assert first.load() is None
    assert first.save("one", step=1)
    second = start(token="t1", keep=9)
    assert second.load() == "one"
    assert first.save("two", step=2)
    assert second.save("three", step=2)
    assert first.save("four", step=3)
    assert ages(place) == [(1, 4), (1, 3), (1, 2), (1, 1)]
    heir = start(token="t2")
    assert heir.load() == "four"
    for process in (first, second):
        with pytest.raises(Superseded, match="process %d on" % os.getpid()):
            process.save("zombie", step=4)
    assert heir.save("five", step=4)


@pytest.mark.parametrize("token", [None, ""])
def test_without_a_token_every_process_is_an_attempt_of_its_own(start: Start, token: str | None) -> None:
    zombie = start(token=token)
    zombie.load()
    start(token=token).load()
    with pytest.raises(Superseded):
        zombie.save("zombie", step=1)


def claim(place: Path, generation: int, token: str) -> None:
    (place / checkpoint_names.claim_name(generation)).write_text(json.dumps({"token": token}))


def test_a_later_claim_of_the_same_attempt_is_adopted(start: Start, place: Path) -> None:
    session = start(token="t1", keep=9)
    session.load()
    assert session.save("one", step=1)
    claim(place, 2, "t1")
    assert session.save("two", step=2)
    assert ages(place) == [(2, 2), (1, 1)]
    claim(place, 3, "t2")
    with pytest.raises(Superseded):
        session.save("three", step=3)


def test_a_claim_of_the_same_attempt_made_at_the_same_moment_is_shared(
    start: Start, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def open_late(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if str(path).endswith(checkpoint_names.claim_name(1)) and flags & os.O_CREAT:
            claim(place, 1, "t1")
        return real(path, flags, *args, **kwargs)

    session = start(token="t1")
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_late)
        session.load()
    assert session.save("one", step=1)
    assert ages(place) == [(1, 1)]


def test_a_claim_that_is_being_written_is_waited_for(
    start: Start, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.mkdir()
    (place / checkpoint_names.claim_name(1)).touch()
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        claim(place, 1, "t1")

    monkeypatch.setattr(time, "sleep", sleep)
    session = start(token="t1")
    session.load()
    assert session.save("one", step=1)
    assert (len(waited), ages(place)) == (1, [(1, 1)])


def test_a_claim_without_content_belongs_to_another_process(
    start: Start, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    session = start(token="t1")
    session.load()
    (place / checkpoint_names.claim_name(2)).touch()
    with pytest.raises(Superseded):
        session.save("one", step=1)
    assert 0 < sum(waited) < 1


def test_a_name_taken_meanwhile_by_another_process_of_the_attempt_is_not_overwritten(
    start: Start, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = start(token="t1", keep=9)
    session.load()
    real = file_format.write

    def write(path: str, *args: Any) -> Any:
        monkeypatch.setattr(file_format, "write", real)
        size = real(path, *args)
        shutil.copytree(Path(path).parent, place / checkpoint_names.checkpoint_name(5, (1, 1)))
        return size

    monkeypatch.setattr(file_format, "write", write)
    assert session.save("mine", step=5)
    assert ages(place) == [(1, 2), (1, 1)]
    manifests = [checkpoint.read_manifest(str(path)) for path in checkpoints(place)]
    assert [(manifest.sequence, manifest.step) for manifest in manifests] == [(2, 5), (1, 5)]
    assert list(place.glob(".step-*")) == []


def test_a_save_is_repeated_if_another_process_of_the_attempt_removed_it_half_written(
    start: Start, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = start(token="t1")
    session.load()
    real = file_format.write

    def write(path: str, *args: Any) -> Any:
        monkeypatch.setattr(file_format, "write", real)
        size = real(path, *args)
        claim(place, 2, "t1")
        shutil.rmtree(Path(path).parent)
        return size

    monkeypatch.setattr(file_format, "write", write)
    assert session.save("mine", step=5)
    assert ages(place) == [(2, 2)]


def test_an_old_checkpoint_removed_by_another_process_of_the_attempt_is_no_error(
    start: Start, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = start(token="t1", keep=2)
    for step in range(2):
        session.save(step, step=step)
    oldest = checkpoints(place)[-1]
    real = checkpoint_names.temporary_name

    def temporary_name(name: str) -> str:
        if name == oldest.name and oldest.exists():
            shutil.rmtree(oldest)
        return real(name)

    monkeypatch.setattr(checkpoint_names, "temporary_name", temporary_name)
    assert session.save(2, step=2)
    assert ages(place) == [(1, 3), (1, 2)]
    assert capsys.readouterr().err == ""


def test_a_failed_save_leaves_nothing_half_written(
    start: Start, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    session = start()
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fail)
        assert not session.save("state", step=1)
    assert [path.name for path in place.iterdir()] == [checkpoint_names.claim_name(1)]
    assert "step 1 is NOT saved: [Errno 28] No space left" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fail)
        patch.setattr(checkpoint_store, "remove", fail)
        assert not session.save("state", step=1)
    assert len(list(place.glob(".step-*.tmp"))) == 1
    assert session.save("state", step=1)
    assert list(place.glob(".step-*.tmp")) == []


def test_a_read_that_fails_once_is_retried(
    start: Start, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = start()
    session.save("old", step=1)
    session.save("new", step=2)
    fail = [True]
    real = file_format.read_state

    def read_state(path: str) -> Any:
        if fail.pop() if fail else False:
            raise OSError(116, "Stale file handle")
        return real(path)

    monkeypatch.setattr(file_format, "read_state", read_state)
    assert start().load() == "new"
    assert fail == []


def test_a_process_that_could_not_claim_at_load_does_not_supersede_one_that_could(
    start: Start, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start().save("state", step=1)
    late = start()
    real = os.open

    def full(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(28, "No space left on device")
        return real(path, flags, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        assert late.load() == "state"
    start().load()
    with pytest.raises(Superseded):
        late.save("late", step=2)


def test_generations_continue_if_only_the_checkpoints_were_copied(start: Start, place: Path) -> None:
    for step in range(3):
        start().save(step, step=step)
    for path in place.glob(".generation-*"):
        path.unlink()
    start().save("newest", step=0)
    assert checkpoint_names.parse_age(checkpoints(place)[0].name) == (4, 1)
    assert start().load() == "newest"


def test_unfinished_checkpoints_of_dead_processes_are_removed(start: Start, place: Path) -> None:
    start().save(1, step=1)
    left = place / ".step-000000000002-g000001-s000002.1-abcd.tmp"
    left.mkdir()
    (left / "state.bin").write_bytes(b"half")
    assert start().load() == 1
    assert not left.exists()


def test_leftovers_that_are_nested_too_deeply_to_recurse_are_removed(start: Start, place: Path) -> None:
    start().save(1, step=1)
    left = place / ".step-000000000002-g000001-s000002.1-abcd.tmp"
    left.mkdir()
    for _ in range(1200):
        above = left.with_name("above")
        above.mkdir()
        left.rename(above / "d")
        above.rename(left)
    assert start().load() == 1
    assert not left.exists()


def test_unfinished_checkpoints_of_running_processes_are_not_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    name = ".step-000000000002-g000007-s000002.1-abcd.tmp"
    assert checkpoint_names.is_leftover(name, generation=8)
    assert not checkpoint_names.is_leftover(name, generation=7)
    assert not checkpoint_names.is_leftover(name, generation=6)
    own = checkpoint_names.temporary_name(checkpoint_names.checkpoint_name(2, (7, 2)))
    assert checkpoint_names.is_leftover(own, generation=7)
    # Processes on two nodes can have the same pid.
    monkeypatch.setattr(checkpoint_names, "_PROCESS", "0" * 8)
    assert not checkpoint_names.is_leftover(own, generation=7)
    assert checkpoint_names.is_leftover(own, generation=8)


def test_a_directory_that_was_removed_while_training_is_created_again(start: Start, place: Path) -> None:
    session = start()
    session.save(1, step=1)
    shutil.rmtree(place)
    assert session.save(2, step=2)
    assert (place / checkpoint_names.claim_name(1)).exists()
    assert start().load() == 2


def test_other_files_in_the_directory_are_left_alone(start: Start, place: Path) -> None:
    place.mkdir()
    (place / "step-100").mkdir()
    (place / "model.pt").write_bytes(b"x")
    session = start()
    assert session.load() is None
    for step in range(5):
        session.save(step, step=step)
    assert (place / "step-100").is_dir()
    assert (place / "model.pt").exists()


def test_a_pipe_in_place_of_a_checkpoint_file_does_not_block_the_reader(start: Start, place: Path) -> None:
    session = start()
    session.save("old", step=1)
    session.save("new", step=2)
    newest = checkpoints(place)[0]
    (newest / STATE).unlink()
    os.mkfifo(newest / STATE)
    assert start().load() == "old"


def test_a_checkpoint_of_a_later_format_is_an_error_and_stays(start: Start, place: Path) -> None:
    start().save("old", step=1)
    start().save("state", step=2)
    file = checkpoints(place)[0] / STATE
    whole, known = file.read_bytes(), file_format.read_manifest(str(file))
    content = whole[:7] + b"\3" + whole[8 : known.size]
    head = {key: getattr(known, key) for key in ("step", "generation", "sequence", "rank", "world")}
    file.unlink()
    file_format.write(str(file), {"format": 3, **head}, memoryview(content))
    message = r"newer version of Outlast \(format 3; this version reads up to 2\): upgrade Outlast, or .* mv "
    with pytest.raises(CheckpointError, match=message):
        start().load()
    # The trailer of another format may differ, too.
    file.write_bytes(content + file_format.make_trailer({"format": 3, "blocks": "of another kind"}))
    for read in (start().load, lambda: checkpoint.verify(str(file.parent))):
        with pytest.raises(CheckpointError, match=message) as caught:
            read()
    assert [path.name for path in place.iterdir()].count(file.parent.name) == 1 and file.exists()
    # The command in the message leads to the checkpoint before.
    source, target = str(caught.value).partition("mv ")[2].split()
    Path(source).rename(target)
    assert start().load() == "old"
    session = start()
    for step in range(3, 9):
        session.save(step, step=step)
    assert Path(target).exists() and start().load() == 8


def test_a_checkpoint_of_an_older_format_is_an_error_that_names_both(start: Start, place: Path) -> None:
    start().save("state", step=1)
    file = checkpoints(place)[0] / STATE
    content = file.read_bytes()[: file_format.read_manifest(str(file)).size]
    file.write_bytes(content[:7] + b"\1" + content[8:] + file_format.make_trailer({"format": 1}))
    with pytest.raises(
        CheckpointError, match=r"older version of Outlast \(format 1; this version reads format 2"
    ):
        start().load()
    assert file.exists()


@pytest.mark.parametrize("sample", sorted(SAMPLES.glob("*.b64")), ids=lambda path: path.stem)
def test_a_sample_of_every_format_that_was_released_is_read(start: Start, place: Path, sample: Path) -> None:
    folder = place / "step-000000000007-g000001-s000001"
    folder.mkdir(parents=True)
    (folder / STATE).write_bytes(base64.b64decode(sample.read_text()))
    output = place.parent / "output"
    session = start(output=str(output), token="t")
    session.kept.add("logs", None)
    state = session.load()
    assert (state["step"], state["rate"], state["name"], state["big"]) == (7, 0.125, "sample", 2**70)
    assert state["weights"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    state["base"][2] = 10
    assert state["row"].tolist() == [10, 3] and state["scalar"] == 0.5 and state["nan"] == float("inf")
    assert (state["bytes"], state["list"], state["set"]) == (b"\0\1\2", [1, (2, "three")], {1, 2})
    assert list(state["ordered"]) == ["b", "a"] and state["a", 1] == {"a": 2, "b": 1}
    assert (output / "logs" / "events").read_text() == "1 2 3\n"


def test_checkpoints_of_a_newer_version_are_never_removed(start: Start, place: Path) -> None:
    session = start(keep=2)
    session.save(1, step=1)
    file = checkpoints(place)[0] / STATE
    file.write_bytes(b"outlast\3" + bytes(56) + file_format.make_trailer({"format": 3}))
    for step in range(2, 9):
        session.save(step, step=step)
    session.wait()
    assert file.exists() and len(checkpoints(place)) == 3


def test_the_format_byte_is_trusted_only_if_the_trailer_has_the_same(start: Start, place: Path) -> None:
    start().save("old", step=1)
    start().save("state", step=2)
    file = checkpoints(place)[0] / STATE
    whole = file.read_bytes()
    file.write_bytes(whole[:7] + b"\3" + whole[8:])
    with pytest.raises(Damaged, match="different formats"):
        checkpoint.verify(str(file.parent))
    assert start().load() == "old"


def test_a_library_that_is_missing_is_an_error_and_the_checkpoint_stays(
    start: Start, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy

    start().save(numpy.zeros(3), step=1)
    monkeypatch.setitem(__import__("sys").modules, "numpy", None)
    with pytest.raises(CheckpointError, match="numpy cannot be imported"):
        start().load()
    assert len(checkpoints(place)) == 1


def test_a_state_that_cannot_be_saved_is_refused_before_anything_is_written(
    start: Start, place: Path
) -> None:
    with pytest.raises(TypeError, match="object"):
        start().save({"x": object()}, step=1)
    assert not place.exists()


@pytest.mark.parametrize(
    ("step", "error"), [(2**63, ValueError), (-1, ValueError), (1.5, TypeError), ("1", TypeError)]
)
def test_a_step_must_be_an_integer_from_0(start: Start, step: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        start().save({}, step=step)


def test_a_checkpoint_corrupted_by_the_disk_is_never_loaded_and_nothing_older_is_removed_for_it(
    start: Start, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = start(keep=2)
    session.save("older", step=1)
    session.save("before", step=2)
    real = os.write

    def write(fd: int, content: Any) -> int:
        return real(fd, bytes(content).replace(b"\0" * 100, b"\1" * 100))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        session.save(bytearray(100), step=3)
    assert len(checkpoints(place)) == 3
    assert start().load() == "before"


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event; nothing is written until it is set."""
    event, real = threading.Event(), file_format.write

    def write(*args: Any) -> Any:
        assert event.wait(30)
        return real(*args)

    monkeypatch.setattr(file_format, "write", write)
    return event


def test_a_state_may_change_as_soon_as_save_has_returned(
    start: Start, place: Path, held: threading.Event
) -> None:
    session = start()
    state = {"list": [1], "bytes": bytearray(b"one")}
    session.save(state, step=1, wait=False)
    state["list"].append(2)  # type: ignore[attr-defined]
    state["bytes"][:] = b"two"  # type: ignore[index]
    held.set()
    session.wait()
    assert start().load() == {"list": [1], "bytes": bytearray(b"one")}


def test_saves_are_reported_only_when_durable_and_in_order(
    start: Start, place: Path, held: threading.Event, capsys: pytest.CaptureFixture[str]
) -> None:
    log = place.parent / "progress.jsonl"
    session = start(progress_file=str(log))
    session.save("one", step=1, wait=False)
    assert not log.exists()
    releasing = threading.Timer(0.2, held.set)
    releasing.start()
    session.save("two", step=2, wait=False)  # waits, with a warning
    assert "of step 2 waited" in capsys.readouterr().err
    session.wait()
    releasing.join()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["event"], line["step"]) for line in lines] == [("saved", 1), ("saved", 2)]
    assert lines[1]["waited"] <= lines[1]["blocked"] <= lines[1]["seconds"]


def test_a_failure_in_the_background_is_raised_by_the_next_call(
    start: Start, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = start()
    session.save("before", step=1)

    def write(*args: Any) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(file_format, "write", write)
        TrainingSession.save(session, "lost", 2)
        with pytest.raises(SaveFailed, match=r"step 2 is NOT saved: .*No space left"):
            session.wait()
        TrainingSession.save(session, "lost as well", 3)
        session._background.wait_for_all()
        with pytest.raises(SaveFailed, match="step 3"):
            TrainingSession.save(session, "not begun", 4)
        TrainingSession.save(session, "lost, too", 5)
        with pytest.raises(SaveFailed, match="step 5"):
            session.leave()
    assert session.save("after", step=6)
    assert start().load() == "after"


def test_should_stop_raises_superseded_in_a_superseded_process(start: Start) -> None:
    zombie = start()
    zombie.load()
    start().load()
    TrainingSession.save(zombie, "zombie", 1)
    zombie._background.wait_for_all()
    with pytest.raises(Superseded):
        zombie.should_stop()


def test_a_forked_child_does_not_wait_for_its_parents_saves(start: Start, held: threading.Event) -> None:
    session = start()
    session.save("parent", step=1, wait=False)
    child = os.fork()
    if not child:
        session.wait()
        os._exit(7)
    _, status = os.waitpid(child, 0)
    held.set()
    session.wait()
    assert os.waitstatus_to_exitcode(status) == 7


def test_the_trailer_has_information_for_people(start: Start, place: Path) -> None:
    start(run="digits-1", attempt="3").save({}, step=7)
    content = (checkpoints(place)[0] / STATE).read_bytes()
    trailer = json.loads(content[content.index(b'{"format"') :].splitlines()[0])
    assert (trailer["step"], trailer["run"], trailer["attempt"]) == (7, "digits-1", "3")
    assert trailer["versions"]["python"]
    assert "OMP_NUM_THREADS" in trailer["threads"]


@pytest.mark.parametrize("shift", [0, 1], ids=["in pages", "anywhere"])
@pytest.mark.parametrize("where", ["disk", "memory"])
def test_large_content_is_written_unchanged_whatever_its_alignment(
    tmp_path: Path, where: str, shift: int
) -> None:
    size = (5 << 20) + 12345
    content = CopyBuffer().get(size + shift)[shift:]
    content[:] = random.Random(1).randbytes(size)
    content[:8] = b"outlast\2"
    folder = tmp_path if where == "disk" else Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        head = {"step": 1, "generation": 1, "sequence": 1, "rank": 0, "world": 1}
        file_format.write(str(folder / "file"), head, content)
        assert (folder / "file").read_bytes()[:size] == bytes(content)
        assert file_format.verify(str(folder / "file")).size == size
    finally:
        shutil.rmtree(folder)

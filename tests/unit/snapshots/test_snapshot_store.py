"""Snapshots of a checkpoint directory: what is kept, what is not, and how a state is put back."""

from __future__ import annotations

import errno
import os
import sys
import zipfile
from pathlib import Path

import pytest

from outlast.node.event_log import EventLog
from outlast.node.pulse import no_pulse
from outlast.node.snapshots import script_files
from outlast.node.snapshots.script_files import CannotKeep, ScriptFiles
from outlast.node.snapshots.snapshot_store import SnapshotStore, Torn, Unsettled
from outlast.node.snapshots.start_state import StartStateFinder


class Place:
    """A checkpoint directory and the snapshots of it."""

    def __init__(self, root: Path, most: int = 2, most_bytes: int = 10**9) -> None:
        self.checkpoints = root / "checkpoints"
        self.checkpoints.mkdir()
        self.directory = root / "snapshots"
        self.log = root / "events"
        self.store = SnapshotStore(str(self.directory), ScriptFiles(str(self.checkpoints)), most, most_bytes)

    def write(self, name: str, text: str) -> Path:
        path = self.checkpoints / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def take(self, sure: bool = True) -> int:
        taken = self.store.take(sure)
        assert taken is not None
        return taken.snapshot.number

    def numbers(self) -> list[int]:
        return [found.number for found in self.store.snapshots()]

    def start(self, before: int | None = None) -> tuple[int | None, bool, int]:
        finder = StartStateFinder(self.store, str(self.checkpoints), EventLog(str(self.log)), no_pulse)
        state = finder.prepare(before)
        return state.snapshot, state.sure, state.older


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def write_zip(path: Path, size: int = 1000) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("ckpt/data/0", os.urandom(size))


def test_a_snapshot_does_not_change_when_the_script_writes_in_place(place: Place) -> None:
    model = place.write("deep/er/model", "one")
    (place.checkpoints / "latest").symlink_to("deep/er/model")
    assert place.take() == 1
    model.write_text("two")
    place.store.restore(place.store.snapshots()[0])
    assert model.read_text() == "one"
    assert (place.checkpoints / "latest").read_text() == "one"
    model.write_text("three")
    place.store.restore(place.store.snapshots()[0])
    assert model.read_text() == "one", "the copy that was put back is not the snapshot itself"


def test_what_was_there_is_put_aside_when_a_snapshot_is_put_back(place: Place) -> None:
    model = place.write("model", "one")
    place.take()
    model.write_text("torn")
    place.store.restore(place.store.snapshots()[0])
    (aside,) = place.directory.glob("aside-*")
    assert (aside / "model").read_text() == "torn"


def test_an_unchanged_state_is_kept_once_and_unchanged_files_take_no_space(place: Place) -> None:
    place.write("old", "x" * 1000)
    assert place.take() == place.take() == 1
    place.write("new", "y")
    taken = place.store.take(True)
    assert taken is not None and taken.snapshot.number == 2 and taken.written == 1


def test_the_newest_snapshots_are_kept_and_always_one_that_is_sure(place: Place) -> None:
    for text in "abc":
        place.write("model", text)
        place.take()
    assert place.numbers() == [2, 3]
    for text in "de":
        place.write("model", text)
        place.take(sure=False)
    assert place.numbers() == [3, 5], "what is found after kills does not push out the last sure one"


def test_all_snapshots_together_stay_within_their_size(tmp_path: Path) -> None:
    place = Place(tmp_path, most=10, most_bytes=250)
    for number in range(4):
        place.write("model", str(number) * 100)
        place.take()
    assert place.numbers() == [3, 4]
    place.write("model", "x" * 300)
    with pytest.raises(CannotKeep, match=r"checkpoints\.snapshot_size"):
        place.take()


def test_a_torn_file_is_not_kept(place: Place) -> None:
    path = place.checkpoints / "ckpt.pt"
    write_zip(path)
    os.truncate(path, 600)
    with pytest.raises(Torn, match=r"ckpt\.pt is not whole: its table of contents is missing"):
        place.take()
    assert place.numbers() == [] and list(place.directory.iterdir()) == []


def test_a_state_that_changes_while_it_is_copied_is_not_kept(place: Place) -> None:
    model = place.write("model", "one")

    def change() -> None:
        model.write_text("another")

    with pytest.raises(Unsettled):
        place.store.take(True, change)
    assert place.numbers() == []


def test_a_log_that_grows_does_not_keep_a_snapshot_from_being_taken(place: Place) -> None:
    place.write("model", "one")
    log = place.write("log.csv", "1\n")

    def grow() -> None:
        with log.open("a") as file:
            file.write("2\n")

    assert place.store.take(True, grow) is not None
    assert place.numbers() == [1]


def test_a_killed_snapshot_leaves_none_that_looks_whole(place: Place) -> None:
    place.write("model", "one")

    class Killed(BaseException):
        pass

    def kill() -> None:
        raise Killed

    with pytest.raises(Killed):
        place.store.take(True, kill)
    half = place.directory / "000001"
    (half / "files").mkdir(parents=True)
    (half / "files" / "model").write_text("o")
    assert place.numbers() == [], "without a manifest, or with another size, it does not count"


def test_a_damaged_snapshot_is_passed_over(place: Place) -> None:
    for text in ("one", "two", ""):
        place.write("ckpt.pt", text)
        if text:
            place.take()
    (place.directory / "000002" / "files" / "ckpt.pt").write_text("tww")
    assert place.start() == (1, True, 0)
    assert (place.checkpoints / "ckpt.pt").read_text() == "one"


def test_the_state_at_the_start_is_kept_and_unsure_if_it_cannot_be_checked(place: Place) -> None:
    place.write("model", "one")
    place.take()
    place.write("model", "tw")
    assert place.start() == (2, False, 1)
    assert place.start() == (2, False, 1)
    write_zip(place.write("model", ""))
    assert place.start()[:2] == (3, True)


def test_an_attempt_can_start_from_an_older_state(place: Place) -> None:
    place.write("model", "one")
    place.take()
    place.write("model", "tw")
    assert place.start() == (2, False, 1)
    assert place.start(before=2) == (1, True, 0)
    assert (place.checkpoints / "model").read_text() == "one"
    assert place.start() == (1, True, 0), "the state that was given up does not come back"
    place.write("model", "three")
    assert place.take() > 2, "a number is never used again"


def test_a_directory_that_was_emptied_by_a_kill_is_filled_again(place: Place) -> None:
    model = place.write("model", "one")
    place.take()
    model.unlink()
    assert place.start()[0] == 1
    assert model.read_text() == "one"


def test_checkpoints_that_the_user_moved_away_do_not_come_back(place: Place) -> None:
    place.write("model", "one")
    place.take()
    place.checkpoints.rename(place.checkpoints.with_name("elsewhere"))
    assert place.start() == (None, True, 0)
    place.checkpoints.mkdir()
    assert place.start() == (None, True, 0)


def test_an_interrupted_return_is_completed_at_the_next_start(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = place.write("model", "one")
    place.write("other", "1")
    place.take()
    model.write_text("two")

    def fail(source: int, name: str, target: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(script_files, "move", fail)
        place.store.restore(place.store.snapshots()[0])
    model.unlink()
    assert place.start()[0] == 1
    assert model.read_text() == "one" and (place.checkpoints / "other").read_text() == "1"


def restore_in_child(place: Place, calls: int) -> bool:
    """Put the oldest snapshot back in a process that ends at its n-th call to the system; True if it did."""
    child = os.fork()
    if child == 0:
        left = [calls]

        def count(event: str, arguments: object) -> None:
            if event == "open" or event.startswith("os."):
                left[0] -= 1
                if left[0] == 0:
                    os._exit(9)

        try:
            sys.addaudithook(count)
            place.store.restore(place.store.snapshots()[0])
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_a_return_that_is_killed_at_any_moment_is_completed_or_was_not_begun(tmp_path: Path) -> None:
    kills = completed = 0
    while True:
        root = tmp_path / str(kills)
        root.mkdir()
        place = Place(root)
        for name in ("first", "deep/second"):
            place.write(name, "one")
        place.take()
        for name in ("first", "deep/second"):
            place.write(name, "torn")
        (place.checkpoints / "third").write_text("new")
        if not restore_in_child(place, kills + 1):
            break
        kills += 1
        (state,) = {place.start()[0]}
        found = {
            str(path.relative_to(place.checkpoints)): path.read_text()
            for path in place.checkpoints.rglob("*")
            if path.is_file()
        }
        before = {"first": "torn", "deep/second": "torn", "third": "new"}
        assert found in (before, {"first": "one", "deep/second": "one"}), "killed at call %d" % kills
        completed += found != before
        assert state is not None
        assert not (place.directory / "restoring.json").exists()
        assert not list(place.directory.glob(".*")), "nothing is left of the job that was killed"
    assert kills > 50 and completed > 10


def test_a_training_does_not_start_with_a_part_of_its_files(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = place.checkpoints / "ckpt.pt"
    write_zip(model)
    place.take()
    os.truncate(model, 600)

    def fail(source: int, name: str, target: int) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="the disk is gone"):
        patch.setattr(script_files, "move", fail)
        place.start()
    assert place.start()[0] == 1
    assert zipfile.is_zipfile(model)


def test_an_interrupted_return_whose_snapshot_is_damaged_takes_an_older_one(place: Place) -> None:
    for text in ("one", "two"):
        place.write("model", text)
        place.take()
    (place.directory / "restoring.json").write_text("2")
    (place.directory / "000002/files/model").write_text("bad")  # of the same size
    (place.checkpoints / "model").unlink()
    assert place.start()[0] == 1
    assert (place.checkpoints / "model").read_text() == "one"


def test_own_checkpoints_and_hidden_names_are_left_alone(place: Place) -> None:
    own = place.write("step-000000000001-g000001-s000001/state", "own")
    hidden = place.write(".generation-000001", "claim")
    assert place.store.take(True) is None
    place.write("model", "one")
    place.take()
    place.write("model", "two")
    place.store.restore(place.store.snapshots()[0])
    assert own.read_text() == "own" and hidden.read_text() == "claim"


def test_a_linked_checkpoint_directory_is_never_touched(place: Place, tmp_path: Path) -> None:
    place.write("model", "one")
    place.take()
    victim = tmp_path / "home"
    victim.mkdir()
    (victim / "thesis").write_text("all of it")
    (place.checkpoints / "model").unlink()
    place.checkpoints.rmdir()
    place.checkpoints.symlink_to(victim)
    assert place.start(before=9) == (None, True, 0)
    with pytest.raises(CannotKeep, match="is a link"):
        place.store.restore(place.store.snapshots()[0])
    assert [path.name for path in victim.iterdir()] == ["thesis"]


def test_links_in_the_snapshots_lead_nowhere(place: Place, tmp_path: Path) -> None:
    place.write("model", "one")
    place.take()
    secret = tmp_path / "secret"
    secret.write_text("two")
    kept = place.directory / "000001" / "files" / "model"
    kept.unlink()
    kept.symlink_to(secret)
    place.write("model", "")
    assert place.numbers() == []


def test_a_file_that_the_script_replaces_is_linked(place: Place) -> None:
    model = place.write("model", "one")
    taken = place.store.take(True, replaced=["model"])
    assert taken is not None and taken.written == 0
    assert (place.directory / "000001" / "files" / "model").samefile(model)
    model.write_text("harmed")
    assert place.numbers() == [], "a link that was harmed after all does not count"

"""Snapshots of hostile directories: nothing outside is touched, nothing hangs, and the training starts."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.node.event_log import EventLog
from outlast.node.pulse import no_pulse
from outlast.node.snapshots import (
    file_copies,
    script_files,
    snapshot_keeper,
    snapshot_manifest,
    snapshot_store,
)
from outlast.node.snapshots.script_files import CannotKeep, ScriptFiles
from outlast.node.snapshots.snapshot_keeper import SnapshotKeeper
from outlast.node.snapshots.snapshot_store import SnapshotStore
from outlast.node.snapshots.start_state import StartStateFinder
from outlast.untrusted_files import directory_below

#: Seconds after which a snapshot has hung.
PATIENCE = 60.0


class Place:
    """Checkpoints and snapshots, beside a directory that nobody may touch."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.checkpoints, self.directory = root / "checkpoints", root / "snapshots"
        self.checkpoints.mkdir()
        self.home = root / "home"
        self.home.mkdir()
        (self.home / "thesis").write_text("all of it")
        self.events = root / "events"
        self.store = self.open()

    def open(self, foreign: bool = True) -> SnapshotStore:
        return SnapshotStore(
            str(self.directory), ScriptFiles(str(self.checkpoints)), 2, 10**9, foreign=foreign
        )

    def start(self, before: int | None = None) -> int | None:
        log = EventLog(str(self.events))
        return StartStateFinder(self.store, str(self.checkpoints), log, no_pulse).prepare(before).snapshot

    def forge(self, number: int, change: Callable[[dict[str, Any]], object]) -> Path:
        """Change the manifest of a snapshot, as a node could that is not trusted."""
        path = self.directory / ("%06d" % number) / "manifest.json"
        raw = json.loads(path.read_text())
        change(raw)
        path.write_text(json.dumps(raw))
        return path

    def warnings(self) -> list[str]:
        lines = map(json.loads, self.events.read_text().splitlines()) if self.events.exists() else ()
        return [str(line.get("text", "")) for line in lines if line["event"] == "warning"]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    (place.checkpoints / "model").write_text("one")
    assert place.store.take(True) is not None
    yield place
    assert {path.name: path.read_text() for path in place.home.iterdir()} == {"thesis": "all of it"}


@pytest.mark.parametrize(
    "links",
    [
        {"out": "../home"},
        {"out": "../home/thesis"},
        {"a": "../home", "a/new/link": "x"},
        {"a/b/top": "../..", "out": "a/b/top/../home"},
        {"model": "../home/thesis"},
        {"deep/a": "../../home"},
    ],
    ids=str,
)
@pytest.mark.parametrize("foreign", [True, False])
def test_links_of_a_forged_snapshot_lead_nowhere(place: Place, links: dict[str, str], foreign: bool) -> None:
    place.store = place.open(foreign)
    place.forge(1, lambda raw: raw["links"].update(links))
    (place.checkpoints / "model").write_text("")
    place.start(before=9)
    for path in place.checkpoints.rglob("*") if foreign else ():
        assert path.resolve().is_relative_to(place.checkpoints), path


@pytest.mark.parametrize("target", ["model", "../deep/x", "a/b", "./model"])
def test_links_inside_are_put_back(place: Place, target: str) -> None:
    (place.checkpoints / "deep").mkdir()
    (place.checkpoints / "deep/latest").symlink_to(target)
    place.store.take(True)
    (place.checkpoints / "deep/latest").unlink()
    place.store.restore(place.store.snapshots()[-1])
    assert str((place.checkpoints / "deep/latest").readlink()) == str(Path(target))


@pytest.mark.parametrize(
    "name", ["../home/thesis", "/etc", "a/../../home/x", "", "a//b", "a\0b", "/".join("a" * 300)]
)
@pytest.mark.parametrize("part", ["files", "links"])
def test_names_that_lead_out_make_a_snapshot_invalid(place: Place, name: str, part: str) -> None:
    value = [3, "0" * 64, 1, 3, 1] if part == "files" else "x"
    place.forge(1, lambda raw: raw[part].update({name: value}))
    assert place.store.snapshots() == []


@pytest.mark.parametrize("size", [float("inf"), float("nan"), -1, 1.5, "3", None, True, [], 10**38], ids=str)
def test_a_number_that_no_file_has_makes_a_snapshot_invalid(place: Place, size: object) -> None:
    place.forge(1, lambda raw: raw["files"]["model"].__setitem__(0, size))
    assert place.store.snapshots() == []
    place.forge(1, lambda raw: raw.update(number=size))
    assert place.store.snapshots() == []


def test_a_huge_manifest_is_not_read(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    path = place.directory / "000001/manifest.json"
    with path.open("r+b") as file:
        file.truncate(10**12)
    monkeypatch.setattr(snapshot_manifest, "read", lambda directory: pytest.fail("it was read"))
    assert place.store.snapshots() == []


def test_the_manifests_that_are_read_together_are_bounded(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place.checkpoints / "model").write_text("two")
    place.store.take(True)
    sizes = [(place.directory / name / "manifest.json").stat().st_size for name in ("000001", "000002")]
    monkeypatch.setattr(snapshot_store, "_MOST_LISTED_BYTES", sum(sizes) - 1)
    assert [one.number for one in place.store.snapshots()] == [2], "the newest ones count"


def test_a_list_of_files_that_could_not_be_read_again_is_not_written(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_manifest, "MAX_BYTES", 100)
    (place.checkpoints / "model").write_text("two")
    with pytest.raises(OSError, match="too long"):
        place.store.take(True)
    assert not list(place.directory.glob(".*"))


ODD: dict[str, Callable[[Path, Path], object]] = {
    "a pipe": lambda path, home: os.mkfifo(path),
    "a link to a directory": lambda path, home: path.symlink_to(home),
    "a link to a file": lambda path, home: path.symlink_to(home / "thesis"),
    "a link to a device": lambda path, home: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path, home: path.symlink_to(path),
    "a file": lambda path, home: path.write_text("x"),
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize(
    "name",
    ["000002", "aside-000002", "restoring.json", "restoring.json.tmp", ".x.tmp", "000001/files/x",
     "000001/x", "../checkpoints/x"],
)  # fmt: skip
def test_odd_files_keep_no_training_from_starting(place: Place, name: str, odd: str) -> None:
    ODD[odd](place.directory / name, place.home)
    (place.checkpoints / "model").write_text("two")
    place.start()
    place.start(before=2)
    assert (place.checkpoints / "model").read_text() in ("one", "two")


@pytest.mark.parametrize("odd", ODD)
def test_odd_files_instead_of_a_manifest_make_a_snapshot_invalid(place: Place, odd: str) -> None:
    path = place.directory / "000001/manifest.json"
    path.unlink()
    ODD[odd](path, place.home)
    assert place.store.snapshots() == []
    assert place.start() == 2


def test_thousands_of_files_are_kept_and_put_back(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    names = ["part-%02d/%04d" % (number % 20, number) for number in range(3000)]
    for name in names:
        path = place.checkpoints / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
    taken = place.store.take(True)
    assert taken is not None and len(taken.snapshot.files) == 3001
    for folder in place.checkpoints.glob("part-*"):
        (folder / "more").write_text("x")
    place.store.restore(taken.snapshot)
    assert sum(path.is_file() for path in place.checkpoints.rglob("*")) == 3001


@pytest.mark.parametrize("kind", ["files", "links", "pipes"])
def test_too_many_names_are_not_kept_and_the_training_starts(
    place: Place, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(script_files, "_MAX_FILES", 20)
    monkeypatch.setattr(script_files, "_MAX_NAMES", 50)
    make = {"files": Path.touch, "links": lambda path: path.symlink_to("x"), "pipes": os.mkfifo}[kind]
    for number in range(60):
        make(place.checkpoints / str(number))
    with pytest.raises(CannotKeep, match="more than 20 files"):
        place.store.take(True)
    assert place.start() is None
    assert "there are more than 20 files" in place.warnings()[0]


def test_directories_that_are_nested_too_deeply_are_not_kept_and_the_training_starts(place: Place) -> None:
    with directory_below(place.checkpoints) as top:
        here = os.dup(top)
        for _ in range(300):
            os.mkdir("d", dir_fd=here)
            inner = os.open("d", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = inner
        os.close(here)
    assert place.start() is None


class Keeping:
    """A keeper with a clock of its own, whose thread is awaited."""

    def __init__(self, place: Place) -> None:
        self.now = 0.0
        self.keeper = SnapshotKeeper(place.store, EventLog(str(place.events)), lambda: self.now)
        self.place = place

    def poll(self, quiet: bool = True, seconds: float = 1.0) -> list[int]:
        """Poll after a change; return the snapshots once the thread has ended."""
        self.now += seconds
        self.keeper.poll(True, quiet)
        for thread in threading.enumerate():
            if thread.name == "snapshot":
                thread.join(PATIENCE)
                assert not thread.is_alive()
        self.keeper.poll(False, False)
        return [one.number for one in self.place.store.snapshots()]


def test_a_directory_that_is_never_quiet_is_kept_soon_and_then_once_a_minute_but_not_as_a_sure_one(
    place: Place,
) -> None:
    keeping = Keeping(place)
    (place.checkpoints / "model").write_text("two")
    for _ in range(5):
        assert keeping.poll(quiet=False) == [1]
    assert keeping.poll(quiet=False) == [1, 2]
    assert [one.sure for one in place.store.snapshots()] == [True, False]
    (place.checkpoints / "model").write_text("three")
    for _ in range(60):
        assert keeping.poll(quiet=False) == [1, 2]
    assert keeping.poll(quiet=False) == [1, 3], "the sure one stays"


def test_a_directory_that_changes_in_every_moment_is_given_up_each_time(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeping = Keeping(place)
    survey = file_copies.copy

    def write_meanwhile(*arguments: Any, **options: Any) -> file_copies.Copied:
        with (place.checkpoints / "model").open("a") as file:
            file.write("x")
        return survey(*arguments, **options)

    monkeypatch.setattr(file_copies, "copy", write_meanwhile)
    (place.checkpoints / "model").write_text("two")
    assert keeping.poll() == [1] and keeping.poll(quiet=False, seconds=61.0) == [1]
    assert not list(place.directory.glob(".*"))
    assert '"event":"not-kept"' in place.events.read_text()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_ends_the_snapshots_and_leaves_nothing_behind(
    place: Place, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    keeping = Keeping(place)
    tries = []

    def fail(name: str, dir_fd: int, target: str, target_fd: int, *_: object, **__: object) -> None:
        tries.append(name)
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=target_fd))
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(file_copies, "copy", fail)
    (place.checkpoints / "model").write_text("two")
    for _ in range(5):
        assert keeping.poll(seconds=1000.0) == [1], "what was kept stays"
    assert tries == ["model"] and keeping.keeper.is_settled, "the stop signal does not wait for it"
    assert not list(place.directory.glob(".*"))
    assert len(place.warnings()) == 1 and os.strerror(code) in place.warnings()[0]


def test_a_snapshot_that_hangs_does_not_hold_up_the_end(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_keeper, "_JOIN_TIMEOUT", 0.01)
    begun, release = threading.Event(), threading.Event()

    def hang(*_: object, **__: object) -> None:
        begun.set()
        release.wait(PATIENCE)
        raise OSError(errno.EIO, "at last")

    monkeypatch.setattr(file_copies, "copy", hang)
    keeper = SnapshotKeeper(place.store, EventLog(str(place.events)))
    (place.checkpoints / "model").write_text("two")
    keeper.poll(True, True)
    assert begun.wait(PATIENCE)
    keeper.finish()
    assert not keeper.is_settled
    release.set()
    for thread in threading.enumerate():
        if thread.name == "snapshot":
            thread.join(PATIENCE)

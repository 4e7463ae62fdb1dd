"""Checkpoints whose checksums are right and whose content is not: damaged, and the one before is loaded."""

from __future__ import annotations

import json
import os
import shutil
import threading
import tracemalloc
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlast.training.checkpoints import checkpoint_names, file_format
from outlast.training.checkpoints.checkpoint_store import CheckpointStore
from outlast.training.checkpoints.kept_files import File
from outlast.training.checkpoints.state_tree import flatten
from outlast.training.training_session import SessionSettings, TrainingSession
from support import forged_checkpoints
from support.checkpoints import Waiting

OLD = {"step": 1}
#: Bytes that a load may allocate for a file of a few kilobytes.
LITTLE = 32 << 20


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a directory with one good checkpoint."""
    place = tmp_path / "job" / "checkpoints"
    assert Waiting(SessionSettings(directory=str(place))).save(OLD, step=1)
    return place


def session(place: Path, **settings: Any) -> TrainingSession:
    output = str(place.parent / "output")
    return TrainingSession(SessionSettings(directory=str(place), output=output, token="job", **settings))


def rich_state() -> dict[str, Any]:
    """Return a state with a node of every type."""
    base = np.arange(24.0).reshape(4, 6)
    structure = np.zeros(2, np.dtype({"names": ["a", "b"], "formats": ["<i4", ("<f8", (2,))]}))
    return {
        "step": 7,
        "numbers": [1.5, float("nan"), 2**80, 1j, True, None],
        "texts": ("text", "\ud800", b"bytes", bytearray(b"array")),
        "sets": [{1, "a", b"b"}, frozenset({(1, 2)})],
        "maps": [OrderedDict(a=1), Counter("ab"), {(1, "x"): 2, 1.5: 3}],
        "array": np.arange(10, dtype="<f4"),
        "fortran": np.asfortranarray(np.ones((2, 3))),
        "views": [base, base[1], base[::-1, ::2], np.broadcast_to(base[0], (3, 6))],
        "scalars": [np.float32(1), np.datetime64("2026-01-01"), np.str_("x")],
        "structure": structure,
        "file": File.of("model.pt", memoryview(b"model")),
    }


def kept_files() -> dict[str, dict[str, File]]:
    return {"logs": {"a/events": File.of("events", memoryview(b"1 2 3"))}}


@pytest.mark.parametrize("seed", range(4))
def test_a_sealed_checkpoint_with_any_tree_is_never_an_error_and_needs_little_memory(
    place: Path, seed: int
) -> None:
    header, buffers = forged_checkpoints.contents(rich_state(), kept_files())
    damaged = 0
    tracemalloc.start()
    try:
        for text in forged_checkpoints.mutations(header, seed, 150):
            folder = forged_checkpoints.write(place, text, buffers)
            job = session(place)
            job.kept.add("logs", None)
            tracemalloc.reset_peak()
            state = job.load()
            assert tracemalloc.get_traced_memory()[1] < LITTLE + 200 * len(text), text[:1000]
            if state == OLD:
                damaged += 1
            else:
                flatten(state)  # the change has made another state that can be saved
            for path in [folder, *filter(lambda path: checkpoint_names.is_bad(path.name), place.iterdir())]:
                shutil.rmtree(path, ignore_errors=True)
    finally:
        tracemalloc.stop()
    assert damaged > 75
    assert sorted(path.name for path in place.parents[1].iterdir()) == ["job"]


@pytest.mark.parametrize(
    "paths",
    [
        ["../../../victim"],
        ["sub/../../../../victim"],
        ["{victim}"],
        ["{victim}/"],
        ["."],
        [".."],
        ["a//b"],
        ["a/"],
        ["{victim}/a"],
        ["a\0b"],
        ["\ud800"],
        ["n" * 256],
        ["a/" * 100 + "a"],
        ["a/" * 3000 + "a"],
        ["", "b"],
        ["a", "a/b"],
        [1],
        [None],
        [("tuple",)],
    ],
    ids=lambda paths: repr(paths)[:30],
)
def test_a_sealed_checkpoint_cannot_write_outside_the_place_of_its_kept_files(
    place: Path, paths: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    victim = place.parents[1] / "victim"
    victim.write_text("mine")
    named = [path.format(victim=victim) if isinstance(path, str) else path for path in paths]
    files = {path: File.of("x", memoryview(b"forged")) for path in named}
    header, buffers = forged_checkpoints.contents("forged", {"logs": files})
    folder = forged_checkpoints.write(place, header, buffers)
    job = session(place)
    job.kept.add("logs", None)
    assert job.load() == OLD
    assert victim.read_text() == "mine"
    assert sorted(path.name for path in place.parents[1].iterdir()) == ["job", "victim"]
    assert not folder.exists() and "is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    "kept",
    [1, None, ["list"], {"logs": 1}, {"logs": ["events"]}, {1: {}}, {"logs": {"events": b"bytes"}}],
    ids=repr,
)
def test_kept_files_of_another_form_are_damage(place: Path, kept: Any) -> None:
    header, buffers = forged_checkpoints.contents(["forged", kept])
    header["files"] = header["tree"][2]
    forged_checkpoints.write(place, header, buffers)
    assert session(place).load() == OLD


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/x", "a\0", "n" * 300, 1, None])
def test_a_file_in_a_state_has_a_plain_name(place: Path, name: Any) -> None:
    header, buffers = forged_checkpoints.contents(File.of("x", memoryview(b"content")))
    header["tree"][1] = name
    forged_checkpoints.write(place, header, buffers)
    assert session(place).load() == OLD


def test_kept_files_that_repeat_one_buffer_are_damage(place: Path) -> None:
    files = {
        str(number): File.of("x", memoryview(b"x" * (1000 if number == 0 else 0))) for number in range(9)
    }
    header, buffers = forged_checkpoints.contents("forged", {"logs": files})
    nodes = header["files"][2]
    for position in range(2, len(nodes), 2):
        nodes[position][2:] = nodes[2][2:]
    forged_checkpoints.write(place, header, buffers)
    assert session(place).load() == OLD


def saved(place: Path, *paths: str) -> None:
    """Save a checkpoint with the kept files `paths` below `logs`."""
    files = {path: File.of(Path(path).name, memoryview(b"kept")) for path in paths}
    forged_checkpoints.write(place, *forged_checkpoints.contents("new", {"logs": files}))


def restored(place: Path) -> Path:
    """Load in a job and return the directory of the kept files."""
    job = session(place)
    job.kept.add("logs", None)
    assert job.load() == "new"
    return place.parent / "output" / "logs"


@pytest.fixture
def victim(place: Path) -> Path:
    victim = place.parents[1] / "victim"
    victim.mkdir()
    (victim / "events").write_text("mine")
    return victim


def logs_of(place: Path) -> Path:
    logs = place.parent / "output" / "logs"
    logs.parent.mkdir(exist_ok=True)
    return logs


def test_links_where_kept_files_are_restored_are_replaced_and_not_followed(place: Path, victim: Path) -> None:
    logs = logs_of(place)
    saved(place, "sub/events", "events", "hard", "folder")
    (logs / "folder" / "inner").mkdir(parents=True)
    (logs / "sub").symlink_to(victim)
    (logs / "events").symlink_to(victim / "events")
    os.link(victim / "events", logs / "hard")
    assert restored(place) == logs
    for name in ("sub/events", "events", "hard", "folder"):
        assert (logs / name).read_text() == "kept" and not (logs / name).is_symlink()
    assert (victim / "events").read_text() == "mine" and list(victim.iterdir()) == [victim / "events"]


def test_a_link_in_place_of_the_kept_directory_is_replaced_and_not_followed(
    place: Path, victim: Path
) -> None:
    saved(place, "events")
    logs_of(place).symlink_to(victim)
    logs = restored(place)
    assert not logs.is_symlink() and (logs / "events").read_text() == "kept"
    assert (victim / "events").read_text() == "mine"


def test_extra_files_are_removed_without_following_links(place: Path, victim: Path) -> None:
    logs = logs_of(place)
    (logs / "sub").mkdir(parents=True)
    (logs / "sub" / "link").symlink_to(victim)
    (logs / "sub" / "later").write_text("later")
    saved(place, "sub")
    restored(place)
    assert (logs / "sub").read_text() == "kept"
    assert (victim / "events").read_text() == "mine"


def test_links_are_not_kept(place: Path, victim: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = logs_of(place)
    logs.mkdir()
    (logs / "real").write_text("real")
    (logs / "link").symlink_to(victim / "events")
    (logs / "folder").symlink_to(victim)
    job = session(place)
    job.kept.add("logs", None)
    job.kept.add("other", None)
    (logs.parent / "other").symlink_to(victim)
    assert {name: list(files) for name, files in job.kept.collect().items()} == {
        "logs": ["real"],
        "other": [],
    }
    job.kept.collect()
    assert capsys.readouterr().err.count("is a link") == 1


def test_outside_a_job_a_link_of_the_user_leads_to_the_kept_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "events").write_text("1 2 3")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    Path("logs").symlink_to(scratch)

    def begin() -> TrainingSession:
        one = TrainingSession(SessionSettings())
        one.kept.add("logs", None)
        return one

    begin().save("state", 1, wait=True)
    (scratch / "events").write_text("1 2 3 4")
    (scratch / "later").write_text("later")
    assert begin().load() == "state"
    assert Path("logs").is_symlink() and (scratch / "events").read_text() == "1 2 3"
    (aside,) = tmp_path.glob("scratch.aside-*")
    assert (aside / "later").read_text() == "later" and aside.name in capsys.readouterr().err


def test_all_processes_of_a_job_may_restore_the_same_files_at_once(place: Path) -> None:
    names = ["sub/%d" % number for number in range(20)]
    saved(place, *names)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            for _ in range(5):
                restored(place)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert {(logs_of(place) / name).read_text() for name in names} == {"kept"}


def test_a_link_in_place_of_a_checkpoint_file_is_not_followed(place: Path) -> None:
    folder = forged_checkpoints.write(place, *forged_checkpoints.contents("new"))
    (file,) = folder.iterdir()
    elsewhere = place.parents[1] / "elsewhere"
    shutil.move(file, elsewhere)
    file.symlink_to(elsewhere)
    assert session(place).load() == OLD


def test_a_number_of_processes_that_no_run_has_is_damage(place: Path) -> None:
    folder = forged_checkpoints.write(place, *forged_checkpoints.contents("new"))
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    for world in (10**15, 10**7):
        position = whole.index(b'{"format"')
        body = whole[position:].splitlines()[0].replace(b'"world":1', b'"world":%d' % world)
        fields = json.loads(body)
        file.write_bytes(whole[:position] + file_format.make_trailer(fields))
        store = CheckpointStore(str(place), 2, dict, lambda text: None, lambda name, why: None)
        assert not store._retention._is_whole(folder.name)
    assert session(place).load() == OLD


def test_the_reason_for_damage_is_printable_and_short(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header, buffers = forged_checkpoints.contents("forged")
    header["tree"] = ["numpy", ["struct", [["\x1b[2J" * 500, "<f8", -1, None]], 8], "C", [1], 8, 0]
    forged_checkpoints.write(place, header, buffers)
    assert session(place).load() == OLD
    printed = capsys.readouterr().err
    assert "\x1b" not in printed and len(printed) < 1000


def test_arrays_that_show_far_more_than_they_hold_are_refused_when_saved() -> None:
    base = np.zeros(8)
    flatten([base, np.broadcast_to(base, (1000, 8))])
    with pytest.raises(TypeError, match="share memory show"):
        flatten([base, np.broadcast_to(base, (10**15, 8))])

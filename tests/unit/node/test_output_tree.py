"""Whatever a training does to its directories, nothing outside the run's own is changed or removed."""

from __future__ import annotations

import contextlib
import math
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outlast.node import scratch as scratch_module
from outlast.node.files import copy_tree, link_tree
from outlast.node.output_rule import OutputRule
from outlast.node.outputs import validation
from outlast.node.outputs.collection import LeftFile, OutputCollection
from outlast.node.outputs.delivery import deliver
from outlast.node.outputs.made_files import NO_CODE, bring_back
from outlast.node.outputs.output_tree import BadOutputDirectory, normalize_output
from outlast.node.scratch import Scratch
from support.privileges import permissions_apply


def snapshot(top: Path) -> dict[str, tuple[int, int, int, str]]:
    """Return everything in a directory: mode, inode, modification time and content or target."""
    found = {}
    for path in sorted(top.rglob("*")):
        status = path.lstat()
        content = str(path.readlink()) if path.is_symlink() else path.read_text() if path.is_file() else ""
        found[str(path)] = (status.st_mode, status.st_ino, status.st_mtime_ns, content)
    return found


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A large disk of the user's, with files, links and a directory."""
    disk = tmp_path / "disk"
    (disk / "models").mkdir(parents=True)
    (disk / "models" / "weights").write_text("weights")
    (disk / "best").symlink_to("models/weights")
    (disk / "absolute").symlink_to(disk / "models" / "weights")
    (disk / "away").symlink_to("/etc/hostname")
    (disk / "folder").symlink_to("models")
    (disk / "dangling").symlink_to("nothing")
    os.mkfifo(disk / "pipe")
    (disk / "run.sh").write_text("#!/bin/sh\n")
    (disk / "run.sh").chmod(0o755)
    return disk


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    scratch = Scratch(str(tmp_path / "work" / "002-b"))
    scratch.prepare(None)
    scratch.carry_over(None)
    return scratch


def replace_by_link(path: str, target: Path) -> None:
    Path(path).rmdir()
    Path(path).symlink_to(target)


def contents(top: Path) -> dict[str, str]:
    return {str(path.relative_to(top)): path.read_text() for path in top.rglob("*") if path.is_file()}


def test_the_content_behind_a_link_in_place_of_the_output_directory_is_delivered_and_stays_unchanged(
    disk: Path, scratch: Scratch, tmp_path: Path
) -> None:
    replace_by_link(scratch.output, disk)
    before = snapshot(disk)
    warnings = normalize_output(scratch.output)
    assert "link to %s; its content was copied" % disk in warnings[0]
    assert len(warnings) == 5
    assert (
        validation.validate(
            [OutputRule("models/weights"), OutputRule("best")], scratch.output, lambda _: None
        )
        == []
    )
    manifest = deliver(scratch.output, str(tmp_path / "delivered"))
    assert sorted(manifest) == ["best", "models/weights", "run.sh"]
    assert contents(tmp_path / "delivered") == {
        "best": "weights",
        "models/weights": "weights",
        "run.sh": "#!/bin/sh\n",
    }
    assert stat.S_ISDIR((tmp_path / "delivered").lstat().st_mode)
    assert not [path for path in (tmp_path / "delivered").rglob("*") if path.is_symlink()]
    assert (tmp_path / "delivered" / "run.sh").stat().st_mode & 0o111
    assert scratch.clear(keep_output=False, until=math.inf)
    assert snapshot(disk) == before


def test_unfinished_outputs_behind_a_link_are_carried_over_and_stay_unchanged(
    disk: Path, scratch: Scratch
) -> None:
    replace_by_link(scratch.output, disk)
    before = snapshot(disk)
    assert scratch.clear(keep_output=True, until=math.inf)
    following = Scratch(str(Path(scratch.top).with_name("003-c")))
    following.prepare(scratch.top)
    following.carry_over(scratch.top)
    assert Path(following.output, "models", "weights").read_text() == "weights"
    assert not Path(following.output).is_symlink()
    assert not Path(scratch.top).exists()
    assert snapshot(disk) == before


@pytest.mark.parametrize("place", ["top", "working", "data"])
def test_a_link_in_place_of_another_directory_is_removed_and_what_it_leads_to_stays(
    disk: Path, scratch: Scratch, place: str
) -> None:
    path = Path(getattr(scratch, place))
    path.rename(path.with_name("moved"))
    path.symlink_to(disk)
    before = snapshot(disk)
    assert scratch.clear(keep_output=False, until=math.inf)
    assert not path.is_symlink()
    assert snapshot(disk) == before


@pytest.mark.parametrize("place", ["top", "on_node"])
def test_a_link_that_an_earlier_start_left_in_place_of_a_directory_is_removed(
    disk: Path, tmp_path: Path, place: str
) -> None:
    scratch = Scratch(str(tmp_path / "work" / "001-a.2"), str(tmp_path / "node" / "outlast-a"))
    path = Path(getattr(scratch, place))
    path.parent.mkdir()
    path.symlink_to(disk)
    before = snapshot(disk)
    scratch.prepare(None)
    scratch.carry_over(None)
    assert path.is_dir() and not path.is_symlink()
    assert snapshot(disk) == before


def test_files_behind_a_link_in_place_of_an_earlier_scratch_are_copied_and_stay_unchanged(
    disk: Path, scratch: Scratch
) -> None:
    Path(scratch.working, "model").write_text("model")
    Path(scratch.output, "weights").write_text("weights")
    scratch.note_ended()
    for path in disk.iterdir():
        if path.name != "models":
            path.unlink()
    for path in Path(scratch.top).iterdir():
        path.rename(disk / path.name)
    Path(disk, "output", "weights").chmod(0o200 if os.geteuid() == 0 else 0o600)
    Path(scratch.top).rmdir()
    Path(scratch.top).symlink_to(disk)
    before = snapshot(disk)
    following = Scratch(str(Path(scratch.top).with_name("003-c")))
    following.prepare(scratch.top)
    following.carry_over(scratch.top)
    assert contents(Path(following.output)) == {"weights": "weights"}
    assert contents(Path(following.working)) == {"model": "model"}
    assert not os.path.lexists(scratch.top)
    assert snapshot(disk) == before


@pytest.mark.parametrize("name", ["left", "left/models"])
def test_files_that_are_left_are_not_moved_through_a_link(disk: Path, scratch: Scratch, name: str) -> None:
    source = Path(scratch.working, "models", "weights")
    source.parent.mkdir()
    source.write_text("large")
    link = Path(scratch.top, name)
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(disk if name == "left" else disk / "models")
    before = snapshot(disk)
    with pytest.raises(OSError, match="Not a directory"):
        scratch.keep_left([LeftFile("models/weights", 5)])
    assert source.read_text() == "large"
    assert snapshot(disk) == before


def swap_at(call: int, path: Path, disk: Path) -> Callable[[], None]:
    """Return a pulse that replaces the directory `path` by a link when it is called for that time."""
    calls = iter(range(1, 1000))

    def pulse() -> None:
        if next(calls) == call and path.is_dir():
            path.rename(path.with_name("moved"))
            path.symlink_to(disk / "models")

    return pulse


@pytest.mark.parametrize("call", range(1, 12))
@pytest.mark.parametrize("swapped", ["working", "output"])
def test_a_directory_that_becomes_a_link_while_outputs_are_collected_leads_nowhere(
    disk: Path, scratch: Scratch, swapped: str, call: int
) -> None:
    for top in (scratch.working, scratch.output):
        Path(top, "models").mkdir()
    collection = OutputCollection(["models/best"], scratch.output, scratch.working, 1000)
    collection.record_initial_state(NO_CODE)
    (disk / "models" / "other").write_text("mine")
    (disk / "models" / "best").write_text("mine")
    for name in ("best", "new", "other"):
        Path(scratch.working, "models", name).write_text(name)
    before = snapshot(disk)
    links = [path.stat().st_nlink for path in (disk / "models").iterdir()]
    with contextlib.suppress(OSError):
        collection.collect(swap_at(call, Path(getattr(scratch, swapped), "models"), disk))
    assert snapshot(disk) == before
    assert [path.stat().st_nlink for path in (disk / "models").iterdir()] == links


@pytest.mark.parametrize("call", range(1, 8))
@pytest.mark.parametrize("may_share", [True, False])
def test_a_directory_that_becomes_a_link_while_files_are_brought_back_leads_nowhere(
    disk: Path, scratch: Scratch, tmp_path: Path, may_share: bool, call: int
) -> None:
    earlier = tmp_path / "earlier"
    (earlier / "models").mkdir(parents=True)
    for name in ("best", "weights"):
        (earlier / "models" / name).write_text("mine")
    pulse = swap_at(call, Path(scratch.working, "models"), disk)
    before = snapshot(disk)
    with contextlib.suppress(OSError):
        bring_back(str(earlier), NO_CODE, scratch.working, NO_CODE, may_share=may_share, pulse=pulse)
    assert snapshot(disk) == before


@pytest.mark.parametrize("call", range(1, 8))
@pytest.mark.parametrize("copy", [copy_tree, link_tree])
def test_a_directory_that_becomes_a_link_while_it_is_copied_to_leads_nowhere(
    disk: Path, scratch: Scratch, tmp_path: Path, copy: Callable[..., None], call: int
) -> None:
    Path(scratch.output, "models").mkdir()
    for name in ("best", "last"):
        Path(scratch.output, "models", name).write_text("mine")
    target = tmp_path / "target"
    before = snapshot(disk)
    with contextlib.suppress(OSError):
        copy(scratch.output, str(target), swap_at(call, target / "models", disk))
    assert snapshot(disk) == before


def test_an_output_in_a_working_directory_that_is_a_link_is_copied(disk: Path, scratch: Scratch) -> None:
    collection = OutputCollection(["models", "run.sh"], scratch.output, scratch.working)
    collection.record_initial_state()
    replace_by_link(scratch.working, disk)
    before = snapshot(disk)
    collection.collect()
    assert contents(Path(scratch.output)) == {"models/weights": "weights", "run.sh": "#!/bin/sh\n"}
    assert snapshot(disk) == before


@pytest.mark.parametrize("target", ["", "work", "work/002-b"])
def test_a_link_to_a_directory_that_contains_the_job_is_an_error_with_advice(
    scratch: Scratch, tmp_path: Path, target: str
) -> None:
    replace_by_link(scratch.output, tmp_path / target)
    with pytest.raises(
        BadOutputDirectory, match="contains the job itself; link to a directory for the outputs"
    ):
        normalize_output(scratch.output)


def test_a_file_or_a_dangling_link_in_place_of_the_output_directory_is_an_error(scratch: Scratch) -> None:
    replace_by_link(scratch.output, Path("nowhere"))
    with pytest.raises(BadOutputDirectory, match="link to nowhere, which is not a directory"):
        normalize_output(scratch.output)
    Path(scratch.output).unlink()
    Path(scratch.output).write_text("model")
    with pytest.raises(BadOutputDirectory, match="was replaced by a file"):
        normalize_output(scratch.output)


def test_an_output_directory_that_the_training_removed_is_empty(scratch: Scratch) -> None:
    Path(scratch.output).rmdir()
    assert normalize_output(scratch.output) == ["the training removed its output directory"]
    assert Path(scratch.output).is_dir()


def test_a_hub_directory_that_consists_of_links_is_delivered_as_files(
    scratch: Scratch, tmp_path: Path
) -> None:
    hub = Path(scratch.output, "hub", "models--org--name")
    for folder in ("blobs", "refs", "snapshots/1a2b/onnx"):
        (hub / folder).mkdir(parents=True)
    (hub / "refs" / "main").write_text("1a2b")
    for blob, name in (("aa", "config.json"), ("bb", "model.safetensors"), ("cc", "onnx/model.onnx")):
        (hub / "blobs" / blob).write_text(blob * 1000)
        link = hub / "snapshots" / "1a2b" / name
        link.symlink_to(os.path.relpath(hub / "blobs" / blob, link.parent))
    assert normalize_output(scratch.output) == []
    used = sum(1 for path in hub.rglob("*") if path.is_file() and path.stat().st_nlink == 2)
    assert used == 6, "the content is on the disk once"
    manifest = deliver(scratch.output, str(tmp_path / "delivered"))
    snapshots = "hub/models--org--name/snapshots/1a2b"
    for blob, name in (("aa", "config.json"), ("bb", "model.safetensors"), ("cc", "onnx/model.onnx")):
        assert (tmp_path / "delivered" / snapshots / name).read_text() == blob * 1000
        assert manifest[f"{snapshots}/{name}"]["size"] == 2000


def test_a_note_about_earlier_outputs_leads_nowhere_but_to_a_directory_beside(
    scratch: Scratch, disk: Path, tmp_path: Path
) -> None:
    (disk / "output").mkdir()
    (disk / "output" / "diary").write_text("mine")
    Path(scratch.output).rmdir()
    Path(scratch.carried_from).write_text(str(disk))
    before = snapshot(disk)
    following = Scratch(str(tmp_path / "work" / "003-c"))
    following.prepare(scratch.top)
    following.carry_over(scratch.top)
    assert list(Path(following.output).iterdir()) == []
    assert snapshot(disk) == before


@pytest.fixture(params=["root", "user"])
def rights(request: pytest.FixtureRequest) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """The rights of the node program: those of whoever runs the tests, or those of a plain user."""
    return permissions_apply if request.param == "user" else contextlib.nullcontext


def lock_everything(output: Path) -> None:
    """Leave a file and a link in directories without any permissions."""
    inner = output / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "weights").write_text("weights")
    (inner / "weights").chmod(0)
    (inner / "away").symlink_to("/nowhere")
    for path in (inner, output / "a", output):
        path.chmod(0)


def test_outputs_without_permissions_are_delivered(
    scratch: Scratch, tmp_path: Path, rights: Callable[[], contextlib.AbstractContextManager[None]]
) -> None:
    lock_everything(Path(scratch.output))
    with rights():
        warnings = normalize_output(scratch.output)
        assert warnings[0] == "4 files or directories of the output were not accessible; now they are"
        assert len(warnings) == 2
        assert list(deliver(scratch.output, str(tmp_path / "delivered"))) == ["a/b/weights"]
        assert contents(tmp_path / "delivered") == {"a/b/weights": "weights"}


def test_the_mode_of_a_file_that_can_be_read_stays(scratch: Scratch) -> None:
    weights = Path(scratch.output, "weights")
    weights.write_text("weights")
    weights.chmod(0o444)
    assert normalize_output(scratch.output) == []
    assert stat.S_IMODE(weights.stat().st_mode) == 0o444


def test_unfinished_outputs_without_permissions_are_carried_over(
    scratch: Scratch, rights: Callable[[], contextlib.AbstractContextManager[None]]
) -> None:
    lock_everything(Path(scratch.output))
    following = Scratch(str(Path(scratch.top).with_name("003-c")))
    following.prepare(scratch.top)
    with rights():
        following.carry_over(scratch.top)
        assert contents(Path(following.output)) == {"a/b/weights": "weights"}
        assert not Path(scratch.top).exists()


def test_the_mode_of_a_file_with_another_name_outside_is_not_changed(disk: Path, scratch: Scratch) -> None:
    weights = disk / "models" / "weights"
    weights.chmod(0)
    Path(scratch.output, "same").hardlink_to(weights)
    assert normalize_output(scratch.output) == []
    assert stat.S_IMODE(weights.stat().st_mode) == 0


def test_a_link_whose_name_or_goal_is_as_long_as_possible_is_replaced_or_removed(scratch: Scratch) -> None:
    output = Path(scratch.output)
    (output / "weights").write_text("weights")
    (output / ("n" * 255)).symlink_to("weights")
    (output / "away").symlink_to("x" * 4095)
    (warning,) = normalize_output(scratch.output)
    assert warning.startswith("away in the output directory is a link to xxx")
    assert contents(output) == {"weights": "weights", "n" * 255: "weights"}


def test_a_directory_that_becomes_a_link_while_it_is_removed_leads_nowhere(
    disk: Path, scratch: Scratch, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = Path(scratch.top)
    for name in ("a", "b", "models"):
        (top / name).mkdir()
        (top / name / "weights").write_text("mine")
        (disk / name).mkdir(exist_ok=True)
        (disk / name / "weights").write_text("weights")
    before = snapshot(disk)

    remove = scratch_module._remove

    def remove_and_swap(*arguments: Any) -> bool:
        removed = remove(*arguments)
        if not top.is_symlink():
            top.rename(top.with_name("moved"))
            top.symlink_to(disk)
        return removed

    monkeypatch.setattr(scratch_module, "_remove", remove_and_swap)
    with contextlib.suppress(OSError):
        scratch.clear(keep_output=False, until=math.inf)
    assert snapshot(disk) == before
    assert list(top.with_name("moved").iterdir()) == []

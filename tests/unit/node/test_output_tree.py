"""Whatever a training does to its directories, nothing outside the run's own is changed or removed."""

from __future__ import annotations

import math
import os
import stat
from pathlib import Path

import pytest

from outlast.node.order import OutputRule
from outlast.node.outputs import validation
from outlast.node.outputs.collection import OutputCollection
from outlast.node.outputs.delivery import deliver
from outlast.node.outputs.output_tree import BadOutputDirectory, normalize_output
from outlast.node.scratch import Scratch


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
    scratch.carry_over_outputs(None)
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
    following.carry_over_outputs(scratch.top)
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
    following.carry_over_outputs(scratch.top)
    assert list(Path(following.output).iterdir()) == []
    assert snapshot(disk) == before

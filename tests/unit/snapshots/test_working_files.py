"""Snapshots of the models and checkpoints that a script makes in its working directory."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from outlast.node.event_log import EventLog
from outlast.node.outputs.made_files import CodeListing, state_selector
from outlast.node.pulse import no_pulse
from outlast.node.snapshots import script_files
from outlast.node.snapshots.script_files import ScriptFiles, WorkingFiles
from outlast.node.snapshots.snapshot_store import SnapshotStore, Torn
from outlast.node.snapshots.start_state import StartStateFinder


def model(weights: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("weights", weights * 100)
    return content.getvalue()


class Place:
    def __init__(self, root: Path, most_bytes: int = 10**9) -> None:
        self.checkpoints, self.job, self.snapshots = (root / name for name in ("ckpt", "job", "snapshots"))
        self.events = root / "events.jsonl"
        self.checkpoints.mkdir()
        self.write("train.py", b"code")
        self.write("pretrained.pt", b"code")
        code = CodeListing("", {"train.py": (4, 0), "pretrained.pt": (4, 0)})
        script = ScriptFiles(str(self.checkpoints), WorkingFiles(str(self.job), state_selector(code)))
        self.store = SnapshotStore(str(self.snapshots), script, 2, most_bytes)

    def write(self, name: str, content: bytes) -> None:
        (self.job / name).parent.mkdir(parents=True, exist_ok=True)
        (self.job / name).write_bytes(content)

    def start(self) -> int | None:
        finder = StartStateFinder(self.store, str(self.checkpoints), EventLog(str(self.events)), no_pulse)
        return finder.prepare(None).snapshot

    def kept(self) -> list[str]:
        return sorted(self.store.snapshots()[-1].files)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_models_of_the_script_are_kept_and_code_logs_and_caches_are_not(place: Place) -> None:
    for name in (
        "out/ckpt.pt",
        "__pycache__/x.pt",
        ".hidden/x.pt",
        "log.csv",
        "metrics.json",
        "pretrained.pt",
    ):
        place.write(name, model("1"))
    (place.job / "link.pt").symlink_to("out/ckpt.pt")
    (place.checkpoints / "last").write_text("1")
    assert place.store.take(True)
    assert place.kept() == ["@working/out/ckpt.pt", "last"]


def test_a_torn_model_is_replaced_and_whole_files_that_the_snapshot_lacks_stay(place: Place) -> None:
    place.write("out/ckpt.pt", model("1"))
    assert place.store.take(True)
    place.write("out/ckpt.pt", model("2")[:50])
    place.write("fold-2.pt", model("2"))
    place.write("fold-3.pt", model("3")[:50])
    place.write("log.csv", b"1\n2\n")
    assert place.start() == 1
    assert (place.job / "out/ckpt.pt").read_bytes() == model("1")
    assert (place.job / "fold-2.pt").read_bytes() == model("2")
    assert (place.job / "log.csv").read_bytes() == b"1\n2\n"
    aside = next(place.snapshots.glob("aside-*"))
    assert (aside / "@working/out/ckpt.pt").read_bytes() == model("2")[:50]
    assert (aside / "@working/fold-3.pt").exists() and not (place.job / "fold-3.pt").exists()
    text = place.events.read_text()
    assert "in the working directory is not whole" in text and "snapshot 1 was put back" in text


def test_checkpoints_that_are_gone_come_back_although_a_model_is_there(place: Place) -> None:
    (place.checkpoints / "last").write_text("1")
    place.write("best.pt", model("1"))
    assert place.store.take(True)
    (place.checkpoints / "last").unlink()
    assert place.start() == 1 and (place.checkpoints / "last").read_text() == "1"


def test_models_that_are_gone_come_back_only_if_nothing_else_is_left(place: Place) -> None:
    place.write("best.pt", model("1"))
    assert place.store.take(True)
    (place.checkpoints / "last").write_text("1")
    (place.job / "best.pt").unlink()
    place.start()
    assert not (place.job / "best.pt").exists(), "the script has removed it"
    (place.checkpoints / "last").unlink()
    assert place.start() is not None and (place.checkpoints / "last").exists()


def test_code_and_links_in_a_snapshot_of_another_machine_are_not_put_back(
    place: Place, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    place.write("best.pt", model("1"))
    assert place.store.take(True)
    files = place.snapshots / "000001" / "files"
    manifest = place.snapshots / "000001" / "manifest.json"
    (files / "@working/best.pt").rename(files / "@working/train.py")
    manifest.write_text(manifest.read_text().replace("best.pt", "train.py"))
    (place.job / "best.pt").unlink()
    assert place.start() == 1
    assert (place.job / "train.py").read_bytes() == b"code"
    (files / "@working/train.py").unlink()
    (files / "@working").rmdir()
    text = manifest.read_text()
    start = text.index('"files":')
    manifest.write_text(text[:start] + '"files":{},"links":{"@working":"%s"}}' % outside)
    place.start()
    assert not list(outside.iterdir()) and (place.job / "train.py").read_bytes() == b"code"


@pytest.mark.parametrize("too", ["many", "large"])
def test_checkpoints_are_kept_although_the_working_directory_has_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, too: str
) -> None:
    place = Place(tmp_path, most_bytes=1000)
    monkeypatch.setattr(script_files, "_MAX_NAMES", 20)
    (place.checkpoints / "last").write_text("1")
    for number in range(30 if too == "many" else 1):
        place.write("%d.pt" % number, bytes(10 if too == "many" else 2000))
    assert place.store.take(True)
    assert place.kept() == ["last"]


def test_a_model_that_is_torn_is_not_kept(place: Place) -> None:
    place.write("ckpt.npz", model("1")[:40])
    with pytest.raises(Torn, match=r"ckpt\.npz in the working directory is not whole"):
        place.store.take(True)

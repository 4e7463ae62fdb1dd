"""The files of a job in HTCondor's spool are kept when the job is removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("htcondor2", reason="the htcondor package is not installed")

from outlast.node.sandbox import layout
from outlast.schedulers.base import JobPhase, JobView
from outlast.schedulers.htcondor.adapter import HTCondorScheduler
from outlast.schedulers.htcondor.spool import spooled_directory
from outlast.schedulers.profile import Profile
from outlast.untrusted_files import remove

TOKEN = "b-1"


class Scene:
    """An attempt whose job has saved files in the spool, and an adapter with an imaginary schedd."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.params = root / "params"
        self.home = self.params / "runs/run" / ("001-" + TOKEN)
        self.home.mkdir(parents=True)
        (self.home / "order.json").write_text("{}")
        self.spooled = spooled_directory(root / "spool", "70012.3")
        self.save(self.spooled, 4, "spooled")
        self.adapter = HTCondorScheduler("group", Profile(), self.params)
        self.calls: list[str] = []

        def call_worker(operation: str, **arguments: Any) -> dict[str, Any]:
            self.calls.append(operation)
            return {"spool": str(root / "spool")} if operation == "spool" else {"refused": 0}

        monkeypatch.setattr(self.adapter, "_call_worker", call_worker)

    def save(self, home: Path, serial: int, text: str) -> None:
        (home / layout.TRAVEL).mkdir(parents=True)
        (home / layout.TRAVEL / "file").write_text(text)
        layout.write_serial(str(home), serial)

    def cancel(self, token: str = TOKEN, job: str = "70012.3") -> None:
        self.adapter.cancel([JobView(token, job, JobPhase.HELD)])

    @property
    def kept(self) -> str | None:
        path = self.home / layout.TRAVEL / "file"
        return path.read_text() if path.exists() else None


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


def test_the_spool_of_a_job_is_where_htcondor_has_it(tmp_path: Path) -> None:
    assert spooled_directory(tmp_path, "70012.3") == tmp_path / "12/3/cluster70012.proc3.subproc0"


def test_spooled_files_are_copied_before_a_job_is_removed(scene: Scene) -> None:
    scene.cancel()
    assert scene.kept == "spooled" and scene.calls == ["spool", "act"]
    assert {path.name for path in scene.home.iterdir()} == {"order.json", "travel"}


@pytest.mark.parametrize("serial, kept", [(3, "spooled"), (4, "brought back"), (5, "brought back")])
def test_the_newer_of_spooled_and_returned_files_are_kept(scene: Scene, serial: int, kept: str) -> None:
    scene.save(scene.home, serial, "brought back")
    scene.cancel()
    assert scene.kept == kept


def test_nothing_is_copied_for_an_attempt_that_is_over_or_that_another_job_claims(scene: Scene) -> None:
    for token in ("*", "../001-b-1", "b-2", ""):
        scene.cancel(token)
    (scene.home / "order.json").rename(scene.home / "order.withdrawn.json")
    scene.cancel()
    assert scene.kept is None and scene.calls == ["act"] * 5


def test_a_job_without_spooled_files_is_removed(scene: Scene) -> None:
    remove(scene.spooled)
    scene.cancel()
    assert scene.kept is None and scene.calls[-1] == "act"
    assert list(scene.adapter.pop_notes()) == []


def test_a_spool_that_cannot_be_copied_is_reported_and_the_job_is_removed(scene: Scene) -> None:
    deep = scene.spooled / layout.TRAVEL
    for _ in range(210):
        deep = deep / "d"
    deep.mkdir(parents=True)
    scene.cancel()
    (note,) = scene.adapter.pop_notes()
    assert "what job 70012.3 had saved could not be kept" in note
    assert scene.calls[-1] == "act" and list(scene.adapter.pop_notes()) == []


def test_links_in_the_spool_are_not_followed(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    travel = scene.spooled / layout.TRAVEL
    remove(travel / "file")
    (travel / "file").symlink_to(tmp_path / "secret")
    scene.cancel()
    assert (scene.home / layout.TRAVEL / "file").is_symlink()
    remove(scene.home / layout.TRAVEL)
    remove(travel)
    travel.symlink_to(tmp_path)
    scene.cancel()
    assert not (scene.home / layout.TRAVEL).exists()

"""The files of a result: collected from a directory that a training could have filled with anything."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

import pytest

from outlast.gateway.answers import collect as collecting
from outlast.gateway.answers.collect import collect, read_result
from outlast.gateway.answers.errors import ResultChanged
from outlast.gateway.requests import FailureCode, RequestFailure, ResultFile


@pytest.fixture
def results(tmp_path: Path) -> Path:
    place = tmp_path / "results" / "run-7"
    (place / "models").mkdir(parents=True)
    (place / "models" / "0.h5").write_bytes(b"weights of layer 0")
    (place / "background.h5").write_bytes(b"weights of the background")
    return place


def collected(results: Path, answer: dict[str, str]) -> dict[str, ResultFile]:
    found = collect(results, answer)
    assert not isinstance(found, RequestFailure), found
    return {file.name: file for file in found}


def failure(results: Path, answer: dict[str, str]) -> RequestFailure:
    found = collect(results, answer)
    assert isinstance(found, RequestFailure), found
    return found


def test_the_files_that_a_template_names_are_collected_with_size_and_digest(results: Path) -> None:
    found = collected(results, {"Model 0": "models/0.h5", "Background Model": "background.h5"})
    model = found["Model 0"]
    content = b"weights of layer 0"
    assert (model.size, model.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert model.path == results / "models" / "0.h5"
    assert read_result(results, found["Background Model"]) == b"weights of the background"


def test_without_an_answer_every_regular_file_is_collected_by_its_path(results: Path) -> None:
    (results / ".hidden").write_bytes(b"")
    (results / "link").symlink_to("background.h5")
    os.mkfifo(results / "pipe")
    assert sorted(collected(results, {})) == [".hidden", "background.h5", "models/0.h5"]


def test_an_optional_file_may_be_missing_and_a_required_one_may_not(results: Path) -> None:
    assert list(collected(results, {"a": "background.h5", "b": "log.txt?"})) == ["a"]
    found = failure(results, {"a": "background.h5", "b": "models/1.h5"})
    assert found.code is FailureCode.TRAINING_FAILED
    assert "'b'" in found.message and "missing" in found.message


def test_an_answer_of_optional_files_alone_has_at_least_one(results: Path) -> None:
    assert failure(results, {"a": "x?", "b": "y?"}).code is FailureCode.TRAINING_FAILED


@pytest.mark.parametrize(
    "path", ["stolen", "stolen?", "folder/secret", "pipe", "socket", "models", "../other"]
)
def test_only_regular_files_below_the_results_are_read(results: Path, tmp_path: Path, path: str) -> None:
    outside = tmp_path / "home"
    outside.mkdir()
    (outside / "secret").write_text("a key")
    (results.parent / "other").write_text("another user's result")
    (results / "stolen").symlink_to(outside / "secret")
    (results / "folder").symlink_to(outside)
    os.mkfifo(results / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(results, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{here}/socket")
        os.close(here)
        assert failure(results, {"Model 0": path}).code is FailureCode.TRAINING_FAILED


@pytest.mark.parametrize("answer", [{}, {"Model 0": "models/0.h5"}])
def test_a_link_in_place_of_the_results_is_not_followed(
    results: Path, tmp_path: Path, answer: dict[str, str]
) -> None:
    moved = tmp_path / "elsewhere"
    results.rename(moved)
    results.symlink_to(moved)
    assert failure(results, answer).code is FailureCode.TRAINING_FAILED


@pytest.mark.parametrize("answer", [{}, {"Model 0": "models/0.h5"}])
def test_results_that_were_removed_are_a_failure_that_says_so(tmp_path: Path, answer: dict[str, str]) -> None:
    found = failure(tmp_path / "results" / "run-7", answer)
    assert found.code is FailureCode.RESULT_UNDELIVERABLE
    assert "removed" in found.message


def test_results_on_a_file_system_that_is_not_mounted_are_not_called_removed(tmp_path: Path) -> None:
    (tmp_path / "results").symlink_to(tmp_path / "not-mounted")
    with pytest.raises(FileNotFoundError):
        collect(tmp_path / "results" / "run-7", {"Model 0": "models/0.h5"})


@pytest.mark.parametrize("name", [b"\xff.h5", b"a\x1b[2J.h5", b"a\nb"])
def test_a_name_that_no_answer_can_have_is_a_failure(results: Path, name: bytes) -> None:
    (results / os.fsdecode(name)).write_bytes(b"x")
    found = failure(results, {})
    assert found.code is FailureCode.TRAINING_FAILED
    assert found.message.isprintable()


def test_the_number_of_files_and_of_bytes_is_bounded(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "MOST_BYTES", 40)
    assert failure(results, {}).code is FailureCode.RESULT_UNDELIVERABLE
    monkeypatch.setattr(collecting, "MOST_BYTES", 43)
    assert len(collected(results, {})) == 2
    monkeypatch.setattr(collecting, "MOST_FILES", 1)
    assert failure(results, {}).code is FailureCode.RESULT_UNDELIVERABLE


def test_a_file_with_a_hole_of_terabytes_is_not_read(results: Path) -> None:
    with (results / "background.h5").open("r+b") as file:
        file.truncate(2 * 10**12)
    assert failure(results, {"a": "background.h5"}).code is FailureCode.RESULT_UNDELIVERABLE


@pytest.mark.parametrize("change", ["content", "longer", "shorter", "link", "gone"])
def test_a_file_that_changed_after_it_was_collected_is_not_sent(
    results: Path, tmp_path: Path, change: str
) -> None:
    file = collected(results, {"a": "background.h5"})["a"]
    other = {"content": b"W", "longer": b"W" * 100, "shorter": b"W"}.get(change, b"")
    if change == "content":
        other = b"W" * file.size
    if change in ("link", "gone"):
        file.path.rename(tmp_path / "moved")
        if change == "link":
            file.path.symlink_to(tmp_path / "moved")
    else:
        file.path.write_bytes(other)
    with pytest.raises(ResultChanged) as raised:
        read_result(results, file)
    assert not raised.value.transient


def test_the_work_can_be_interrupted(results: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(results, {"a": "background.h5"}, interrupt)

"""By value, by upload or on a shared path; and the shared path, in which others may plant what they like."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path

import pytest

from outlast.gateway.answers.choose import Way, choose, encoded_size, most_by_value
from outlast.gateway.answers.collect import collect
from outlast.gateway.answers.errors import UploadError
from outlast.gateway.answers.place import place, place_directory
from outlast.gateway.requests import FailureCode, RequestFailure, ResultFile


def sized(name: str, size: int) -> ResultFile:
    return ResultFile(name, Path("/results") / name, size, "0" * 64)


def names_in(directory: Path) -> list[str]:
    return sorted(one.name for one in directory.iterdir())


# By value or not


@pytest.mark.parametrize(
    ("broker", "expected"), [(None, 12_000_000), (16 * 2**20, 12_000_000), (8 * 2**20, 6 * 2**20)]
)
def test_the_limit_is_ours_or_three_quarters_of_the_brokers(broker: int | None, expected: int) -> None:
    assert most_by_value(12_000_000, broker) == expected


def test_the_estimate_is_no_less_than_what_is_sent() -> None:
    files = [sized("Model %d\n" % number, 1000 + number) for number in range(20)]
    answer = {
        file.name: {
            "name": file.name,
            "size": file.size,
            "sha256": file.sha256,
            "encoding": "base64",
            "content": base64.b64encode(bytes(file.size)).decode(),
        }
        for file in files
    }
    assert len(json.dumps(answer, indent=2)) <= encoded_size(files)


def test_a_small_result_goes_by_value_and_a_large_one_to_the_directory(tmp_path: Path) -> None:
    small, large = [sized("a", 1000)], [sized("a", 1000), sized("b", 10**6)]
    assert choose(small, "outlast", 10**6, {}, tmp_path) == {"a": Way.VALUE}
    assert choose(large, "outlast", 10**6, {}, tmp_path) == {"a": Way.DIRECTORY, "b": Way.DIRECTORY}


def test_files_with_a_url_are_uploaded_and_do_not_count(tmp_path: Path) -> None:
    files = [sized("a", 1000), sized("b", 10**9)]
    assert choose(files, "outlast", 10**6, {"b": "https://x/y"}, None) == {"a": Way.VALUE, "b": Way.UPLOAD}


@pytest.mark.parametrize(("dialect", "directory"), [("rodan", "/shared"), ("outlast", None)])
def test_a_large_result_without_a_way_is_a_failure_and_is_kept(dialect: str, directory: str | None) -> None:
    place = None if directory is None else Path(directory)
    found = choose(
        [sized("Model 0", 10**7)], dialect, 10**7, {"Model 0": "https://x/y"} if place else {}, place
    )
    assert isinstance(found, RequestFailure)
    assert found.code is FailureCode.RESULT_UNDELIVERABLE and found.retryable
    assert "MB" in found.message and "keeps" in found.advice


# The shared path


@pytest.fixture
def results(tmp_path: Path) -> Path:
    directory = tmp_path / "results" / "run-7"
    directory.mkdir(parents=True)
    (directory / "model.h5").write_bytes(b"weights")
    return directory


@pytest.fixture
def file(results: Path) -> ResultFile:
    found = collect(results, {"Model 0": "model.h5"})
    assert not isinstance(found, RequestFailure)
    return found[0]


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    directory = tmp_path / "shared"
    directory.mkdir()
    return directory


def test_a_file_is_copied_into_a_directory_that_is_named_by_the_number(
    results: Path, file: ResultFile, shared: Path
) -> None:
    placed = place(results, file, shared, 12)
    assert placed.place == str(shared / "request-00000012" / "Model 0")
    content = Path(placed.place).read_bytes()
    assert hashlib.sha256(content).hexdigest() == placed.sha256
    assert names_in(shared / "request-00000012") == ["Model 0"]


def test_placing_again_replaces_and_leaves_nothing_else(
    results: Path, file: ResultFile, shared: Path
) -> None:
    place(results, file, shared, 12)
    (shared / place_directory(12) / "Model 0").write_bytes(b"half of it")
    assert Path(place(results, file, shared, 12).place).read_bytes() == b"weights"
    assert names_in(shared / place_directory(12)) == ["Model 0"]


def test_a_planted_link_in_place_of_the_directory_is_not_followed(
    results: Path, file: ResultFile, shared: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (shared / place_directory(12)).symlink_to(victim)
    with pytest.raises(UploadError) as raised:
        place(results, file, shared, 12)
    assert not raised.value.transient
    assert names_in(victim) == []


@pytest.mark.parametrize("name", ["Model 0", ".{pid}.tmp"])
def test_a_planted_link_in_place_of_the_file_is_replaced_and_not_written_through(
    results: Path, file: ResultFile, shared: Path, tmp_path: Path, name: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    directory = shared / place_directory(12)
    directory.mkdir()
    (directory / name.format(pid=os.getpid())).symlink_to(victim)
    placed = Path(place(results, file, shared, 12).place)
    assert placed.read_bytes() == b"weights" and not placed.is_symlink()
    assert victim.read_text() == "precious"


def test_a_planted_directory_in_place_of_the_file_is_final(
    results: Path, file: ResultFile, shared: Path
) -> None:
    (shared / place_directory(12) / "Model 0" / "x").mkdir(parents=True)
    with pytest.raises(UploadError) as raised:
        place(results, file, shared, 12)
    assert not raised.value.transient
    assert names_in(shared / place_directory(12)) == ["Model 0"]


def test_a_shared_path_that_is_not_mounted_now_is_transient(
    results: Path, file: ResultFile, tmp_path: Path
) -> None:
    with pytest.raises(UploadError) as raised:
        place(results, file, tmp_path / "not-mounted", 12)
    assert raised.value.transient


@pytest.mark.parametrize("name", ["../outside", "/etc/x", "a//b", "", "."])
def test_a_name_that_leads_out_is_refused(results: Path, file: ResultFile, shared: Path, name: str) -> None:
    odd = ResultFile(name, file.path, file.size, file.sha256)
    with pytest.raises(UploadError):
        place(results, odd, shared, 12)
    assert names_in(shared) == []


def test_a_file_that_changed_is_not_placed(results: Path, file: ResultFile, shared: Path) -> None:
    file.path.write_bytes(b"WEIGHTS")
    with pytest.raises(UploadError):
        place(results, file, shared, 12)
    assert names_in(shared / place_directory(12)) == []

"""The code that travels with the job: listed or found, existing, and complete."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outlast.spec import BadSpec, Parsed, read
from outlast.spec.code_files import required_modules


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in (
        "train.py",
        "helper.py",
        "data.bin",
        "package/__init__.py",
        "package/train.py",
        "configs/a.yaml",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "logs").mkdir()
    return tmp_path


def parsed(directory: Path, text: str) -> Parsed:
    (directory / "params.yaml").write_text(text)
    return read(directory)


def only_mistake(directory: Path, text: str) -> str:
    with pytest.raises(BadSpec) as caught:
        parsed(directory, text)
    (mistake,) = caught.value.mistakes
    return str(mistake)


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ("missing.py", '"missing.py" does not exist'),
        ("../train.py", '"../train.py" must not contain ".."'),
        ("/etc/passwd", "must be relative, below the experiment directory"),
        ("~/train.py", "must be relative"),
        (".", "list the files and folders that the command needs"),
        ("logs", "is where Outlast keeps its own files"),
        ("./results/old.py", "is where Outlast keeps its own files"),
        ("journal.sqlite", "is where Outlast keeps its own files"),
        ("x" * 5000, "cannot be accessed"),
    ],
)
def test_a_code_entry_that_cannot_travel_is_a_mistake(directory: Path, entry: str, sentence: str) -> None:
    found = only_mistake(directory, f"command: python3 -c 1\ncode:\n  - {entry}\n")
    assert found.startswith("params.yaml:3: code[1]: ")
    assert sentence in found


def test_a_broken_link_and_a_pipe_cannot_be_code(directory: Path) -> None:
    (directory / "link.py").symlink_to("nowhere.py")
    os.mkfifo(directory / "pipe")
    assert "broken symbolic link" in only_mistake(directory, "command: python3 -c 1\ncode: [link.py]\n")
    assert "neither a file nor a folder" in only_mistake(directory, "command: python3 -c 1\ncode: [pipe]\n")


def test_code_that_cannot_be_read_is_a_mistake(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The tests may run as root, who may read everything.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert '"train.py" cannot be read' in only_mistake(directory, "command: python3 -c 1\ncode: [train.py]\n")


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("python3 train.py", "train.py"),
        ("python3 ./train.py", "train.py"),
        ("python3 -c 1 --data data.bin", "data.bin"),
        ("python3 -c 1 --data=data.bin", "data.bin"),
        ("python3 -m package.train", "package"),
        ("python3 -m train", "train.py"),
        ("python3 -c 1 configs/{model}.yaml", "configs/a.yaml"),
    ],
)
def test_a_file_that_the_command_uses_and_code_lacks_is_a_mistake(
    directory: Path, command: str, path: str
) -> None:
    sweep = "sweep: {model: [a, b]}\n" if "{" in command else ""
    found = only_mistake(directory, f"command: {command}\ncode: [helper.py]\n{sweep}")
    expected = f"{path} is used by the command but is not sent with the job; add {path} to code"
    assert found == f"params.yaml:1: command: {expected}"


def test_a_file_that_a_check_uses_and_code_lacks_is_a_mistake(directory: Path) -> None:
    found = only_mistake(
        directory, "command: python3 -c 1\ncode: []\noutputs:\n  - {path: a, check: python3 helper.py}\n"
    )
    assert found.startswith("params.yaml:4: outputs[1].check: helper.py is used by a check but is not sent")


@pytest.mark.parametrize(
    "code", ["[package]", "[package/]", "[package/train.py]", "[./package/train.py, train.py]"]
)
def test_a_folder_covers_what_is_in_it(directory: Path, code: str) -> None:
    assert parsed(directory, f"command: python3 package/train.py\ncode: {code}\n").warnings == ()


def test_code_that_is_not_listed_is_found_from_the_command_the_checks_and_their_imports(
    directory: Path,
) -> None:
    (directory / "train.py").write_text("import json, helper\n")
    (directory / "helper.py").write_text("from package import train\nimport helper\n")
    found = parsed(
        directory,
        "command: python3 train.py --data=data.bin /etc/hostname\n"
        "outputs: [{path: a, check: python3 helper.py}]\n",
    )
    assert found.spec.code == ("train.py", "data.bin", "helper.py", "package")


def test_a_neighbour_that_is_imported_and_does_not_travel_is_a_warning(directory: Path) -> None:
    (directory / "train.py").write_text("import helper\n")
    (warning,) = parsed(directory, "command: python3 train.py\ncode: [train.py]\n").warnings
    assert str(warning) == (
        "params.yaml:2: code: helper.py is imported by train.py but is not sent with the job; "
        "add helper.py to code"
    )


def test_a_script_that_cannot_be_parsed_imports_nothing(directory: Path) -> None:
    (directory / "train.py").write_text("import helper\nthis is no python\n")
    assert parsed(directory, "command: python3 train.py\n").spec.code == ("train.py",)


def test_an_output_left_from_an_earlier_run_is_not_taken_for_code(directory: Path) -> None:
    (directory / "metrics.json").write_text("{}")
    text = (
        "command: python3 train.py --out metrics.json\n"
        "outputs: [{path: metrics.json, check: python3 -c 1 metrics.json}]\n"
    )
    assert parsed(directory, text).spec.code == ("train.py",)
    assert parsed(directory, f"{text}code: [train.py]\n").spec.code == ("train.py",)


def test_listed_code_is_normalised_without_duplicates(directory: Path) -> None:
    found = parsed(directory, "command: python3 train.py\ncode: [./train.py, package/, train.py]\n")
    assert found.spec.code == ("train.py", "package")


def test_a_script_that_a_script_calls_travels_too(directory: Path) -> None:
    (directory / "run.sh").write_text(
        "# old.py\nset -e\npython3 ./helper.py && python3 package/train.py $1\n"
    )
    (directory / "old.py").write_text("")
    (directory / "logs" / "x.py").write_text("")
    (directory / "helper.py").write_text(
        "import subprocess\nsubprocess.run(['python3', 'train.py'])\nlog = 'logs/x.py'\n"
    )
    assert set(parsed(directory, "command: bash run.sh\n").spec.code) == {
        *("run.sh", "helper.py", "package/train.py", "train.py"),
    }


def test_a_script_that_is_called_and_does_not_travel_is_a_warning(directory: Path) -> None:
    (directory / "run.sh").write_text("exec python3 helper.py\n")
    (warning,) = parsed(directory, "command: bash run.sh\ncode: [run.sh]\n").warnings
    assert str(warning) == (
        "params.yaml:2: code: helper.py is called by run.sh but is not sent with the job; "
        "add helper.py to code"
    )


def test_modules_are_required_only_if_every_start_imports_them(directory: Path) -> None:
    (directory / "train.py").write_text(
        "import torch, os, helper\nfrom numpy.linalg import norm\nimport outlast\n"
        "try:\n    import apex\nexcept ImportError:\n    apex = None\n"
        "def late():\n    import wandb\n"
    )
    (directory / "helper.py").write_text("import yaml\n")
    assert required_modules(["train.py"], directory) == {
        "torch": "train.py",
        "numpy": "train.py",
        "yaml": "helper.py",
    }

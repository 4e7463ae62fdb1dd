"""`outlast init`: a new experiment that passes `check`; nothing is ever overwritten."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from outlast import templates
from outlast.cli.commands import check, init
from outlast.errors import BadInput, NotWritable


def run_init(*arguments: str | Path) -> Result:
    return CliRunner().invoke(init.command, [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.mark.parametrize("example", sorted(templates.templates()))
def test_every_template_passes_check_without_a_warning(example: str, tmp_path: Path) -> None:
    directory = tmp_path / "2026-11-15_A_mine"
    assert run_init(directory, "--example", example).exit_code == 0
    result = CliRunner().invoke(check.command, [str(directory)])
    # Without PyTorch on this machine, `check` warns about the examples that need it.
    others = [line for line in result.stderr.splitlines() if "does not have; python" not in line]
    assert (result.exit_code, others) == (0, [])
    assert result.stdout.startswith("mine: ")


def test_the_commented_template_explains_every_key() -> None:
    from outlast.spec.schema import CheckpointsKeys, LimitsKeys, OutputKeys, ParamsKeys, ResourcesKeys

    text = (templates.templates()["hello"] / "params.yaml").read_text()
    for keys in (ParamsKeys, ResourcesKeys, LimitsKeys, CheckpointsKeys, OutputKeys):
        for key in keys.model_fields:
            assert f"{key}:" in text or key == "at_most"
    assert "at_most" in text


def test_init_prints_the_files_and_what_to_type_next(tmp_path: Path) -> None:
    result = run_init(tmp_path / "a b")
    assert result.stdout.splitlines() == [
        f"created {tmp_path}/a b: README.md, params.yaml, train.py",
        "Next:",
        f"  cd '{tmp_path}/a b'",
        "  outlast check      # lists errors, submits nothing",
        "  outlast run        # submits it and supervises it until it has finished",
    ]


def test_the_current_directory_may_be_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "mine"
    directory.mkdir()
    (directory / "notes.txt").write_text("kept")
    monkeypatch.chdir(directory)
    result = run_init(".")
    assert result.exit_code == 0
    assert "cd " not in result.stdout
    assert "name: mine " in (directory / "params.yaml").read_text()
    assert (directory / "notes.txt").read_text() == "kept"


def test_existing_files_are_listed_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("precious")
    (tmp_path / "params.yaml").symlink_to("nowhere")
    result = run_init(tmp_path)
    assert isinstance(result.exception, BadInput)
    assert "already contains params.yaml, train.py; nothing was written" in str(result.exception)
    assert (tmp_path / "train.py").read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["params.yaml", "train.py"]


def test_a_command_beside_existing_code_writes_params_yaml_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "2026-11-15_A_mine"
    directory.mkdir()
    (directory / "train.py").write_text("precious = 1")
    monkeypatch.chdir(directory)
    result = run_init(".", "--command", "python3 train.py --lr 1e-3")
    assert result.exit_code == 0 and result.stdout.startswith("created params.yaml\nNext:\n  outlast check")
    assert sorted(path.name for path in directory.iterdir()) == ["params.yaml", "train.py"]
    assert (directory / "train.py").read_text() == "precious = 1"
    checked = CliRunner().invoke(check.command, ["."])
    assert checked.exit_code == 0, checked.output
    assert "command   python3 train.py --lr 1e-3" in checked.stdout and "code      train.py" in checked.stdout


@pytest.mark.parametrize(
    "own", ["python3 -c 'print(\"a: b\")'", "./run {x}", "[a]", 'sh -c "it\'s # not: a comment"', "5"]
)
def test_any_command_survives_the_way_through_yaml(own: str, tmp_path: Path) -> None:
    from outlast.spec.yamlfile import load

    run_init(tmp_path, "--command", own)
    assert load(tmp_path / "params.yaml", "params.yaml", "").text(("command",)) == own


def test_a_command_for_an_experiment_that_exists_or_for_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("command: mine\n")
    result = run_init(tmp_path, "--command", "python3 train.py")
    assert isinstance(result.exception, BadInput)
    assert "already contains params.yaml; nothing was written. `outlast check" in str(result.exception)
    assert (tmp_path / "params.yaml").read_text() == "command: mine\n"
    for arguments in ((tmp_path, "--command", " "), (tmp_path / "none", "--command", "python3 train.py")):
        assert isinstance(run_init(*arguments).exception, BadInput)


def test_check_and_init_show_the_same_way_to_own_code(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    wanted = f"outlast init {tmp_path} --command 'python train.py'"
    checked = CliRunner().invoke(check.command, [str(tmp_path)])
    assert checked.exit_code == 2 and wanted in checked.stderr
    assert wanted in str(run_init(tmp_path).exception)


def test_a_file_or_a_dangling_link_in_place_of_the_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("nowhere")
    for name, sentence in (("file", "is not a directory"), ("link", "leads nowhere")):
        result = run_init(tmp_path / name)
        assert isinstance(result.exception, BadInput)
        assert sentence in str(result.exception)


def test_a_directory_that_cannot_be_written_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run_init(tmp_path / "file" / "below")
    assert isinstance(result.exception, NotWritable)
    assert "cannot be written: Not a directory" in str(result.exception)


def test_the_error_for_an_unknown_example_lists_the_known_ones(tmp_path: Path) -> None:
    result = run_init(tmp_path / "x", "--example", "helo")
    assert isinstance(result.exception, BadInput)
    assert str(result.exception).startswith(
        'there is no example "helo"; did you mean "hello"? (known: hello, '
    )
    assert not (tmp_path / "x").exists()


def test_init_without_a_directory_prints_what_to_type() -> None:
    assert "outlast init my-experiment" in str(run_init().exception)


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_refused_and_nothing_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run_init(name)
    assert isinstance(result.exception, BadInput)
    assert str(result.exception).startswith(
        "the name of the directory is empty; type for example: outlast init"
    )
    assert list(tmp_path.iterdir()) == []


def test_the_list_as_json_has_every_template_by_name() -> None:
    result = run_init("--list", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert [one["name"] for one in found] == list(templates.templates())
    assert found[0]["description"].startswith("A training run that needs only Python")


def test_a_template_without_a_readme_has_no_description(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "params.yaml").write_text("")
    monkeypatch.setattr(templates, "examples_directory", lambda: tmp_path)
    assert json.loads(run_init("--list", "--json").stdout) == [{"name": "bare"}]


def test_json_without_list_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    result = run_init(tmp_path / "mine", "--json")
    assert isinstance(result.exception, BadInput)
    assert "outlast init --list --json" in str(result.exception)
    assert not (tmp_path / "mine").exists()


def test_the_list_names_every_template_with_a_sentence() -> None:
    lines = run_init("--list").stdout.splitlines()
    assert lines[0].startswith("hello      A training run that needs only Python")
    assert len(lines) == len(templates.templates())
    assert all(len(line.split()) > 3 for line in lines)


def test_what_running_a_template_in_place_left_behind_is_not_copied(tmp_path: Path) -> None:
    template = tmp_path / "template"
    for name in (
        "params.yaml",
        "train.sh",
        "logs/a",
        "__pycache__/b",
        "journal.sqlite-wal",
        ".hidden",
        "sub/c",
    ):
        (template / name).parent.mkdir(parents=True, exist_ok=True)
        (template / name).write_text("name: x\n")
    (template / "train.sh").chmod(0o755)
    copied = templates.copy_template(template, tmp_path / "mine")
    assert copied == ["params.yaml", "sub/c", "train.sh"]
    assert os.access(tmp_path / "mine" / "train.sh", os.X_OK)
    assert (tmp_path / "mine" / "params.yaml").read_text() == "name: mine\n"


def test_the_hello_training_runs_without_a_job_and_reaches_its_accuracy(tmp_path: Path) -> None:
    script = templates.templates()["hello"] / "train.py"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OUTLAST_")}
    arguments = [sys.executable, str(script), "--pause", "0"]
    subprocess.run(arguments, cwd=tmp_path, env=environment, timeout=120, check=True, capture_output=True)
    assert json.loads((tmp_path / "metrics.json").read_text())["accuracy"] >= 0.9


def test_the_shell_training_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    script = templates.templates()["script"] / "train.sh"
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "sum").write_text("9 2.931260407155\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OUTLAST_")}
    arguments = ["sh", str(script), "10"]
    done = subprocess.run(
        arguments, cwd=tmp_path, env=environment, timeout=120, check=True, capture_output=True, text=True
    )
    assert done.stdout.startswith("starting at part 9 of 10")
    assert json.loads((tmp_path / "result.json").read_text())["pi"] == pytest.approx(3.14159265, abs=1e-6)

"""`env:` in params.yaml: values as written, variables of the shell, and files for secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.spec import BadSpec, Parsed, read


def parsed(directory: Path, env: str, more: str = "") -> Parsed:
    (directory / "params.yaml").write_text(f"command: python3 -c 1\nenv:\n{env}{more}")
    return read(directory)


def mistakes(directory: Path, env: str, more: str = "") -> list[str]:
    with pytest.raises(BadSpec) as caught:
        parsed(directory, env, more)
    return [str(mistake) for mistake in caught.value.mistakes]


def secret_file(directory: Path, name: str = "key", mode: int = 0o600) -> Path:
    path = directory / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("s3cret\n")
    path.chmod(mode)
    return path


def test_values_are_passed_on_as_they_are_written(tmp_path: Path) -> None:
    env = '  WANDB_MODE: offline\n  LR: 1e-3\n  FLAG: yes\n  ZERO: 007\n  EMPTY: ""\n'
    assert parsed(tmp_path, env + "  TOKENIZERS_PARALLELISM: false\n").spec.env == {
        "WANDB_MODE": "offline",
        "LR": "1e-3",
        "FLAG": "yes",
        "ZERO": "007",
        "EMPTY": "",
        "TOKENIZERS_PARALLELISM": "false",
    }


def test_a_variable_of_the_shell_is_recorded_at_submission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example.org")
    spec = parsed(tmp_path, "  MLFLOW_TRACKING_URI: {from: shell}\n").spec
    assert spec.env == {"MLFLOW_TRACKING_URI": "https://mlflow.example.org"}
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    (found,) = mistakes(tmp_path, "  MLFLOW_TRACKING_URI: {from: shell}\n")
    assert found == (
        "params.yaml:3: env.MLFLOW_TRACKING_URI: is not set in this shell; "
        "export MLFLOW_TRACKING_URI=…, or remove the line"
    )


@pytest.mark.parametrize(
    "name", ["WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "TOKEN"]
)
@pytest.mark.parametrize("origin", ["abc123", "{from: shell}"])
def test_a_secret_is_refused_unless_it_is_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, origin: str
) -> None:
    monkeypatch.setenv(name, "abc123")
    (found,) = mistakes(tmp_path, f"  {name}: {origin}\n")
    assert "looks like a secret" in found and f"write {name}: {{file: PATH}}" in found
    assert "abc123" not in found


def test_a_password_in_a_url_is_a_secret_and_is_not_quoted(tmp_path: Path) -> None:
    (found,) = mistakes(tmp_path, "  MLFLOW_TRACKING_URI: https://me:hunter2@mlflow.example.org\n")
    assert "looks like a secret" in found and "hunter2" not in found


def test_the_file_of_a_secret_is_named_and_not_read(tmp_path: Path) -> None:
    path = secret_file(tmp_path)
    spec = parsed(tmp_path, "  WANDB_API_KEY: {file: key}\n").spec
    assert (spec.env, spec.env_files) == ({}, {"WANDB_API_KEY": str(path)})
    assert "s3cret" not in repr(spec)


def test_a_file_that_is_missing_or_that_others_can_read_is_a_mistake(tmp_path: Path) -> None:
    secret_file(tmp_path, "open", 0o644)
    found = mistakes(tmp_path, "  A_KEY: {file: none}\n  B_KEY: {file: open}\n  C_KEY: {file: .}\n")
    assert [text.split(": ", 2)[1] for text in found] == [
        "env.A_KEY.file",
        "env.B_KEY.file",
        "env.C_KEY.file",
    ]
    assert "cannot be read: No such file or directory" in found[0]
    assert "can be read by others (mode 644); chmod 600" in found[1]
    assert "is not a file" in found[2]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("  1ST: x\n", "env.1ST: is not the name of a variable"),
        ("  OUTLAST_RUN: x\n", "env.OUTLAST_RUN: begins with OUTLAST_, which Outlast sets itself"),
        ("  A:\n", 'env.A: has no value; write "" for an empty text'),
        ("  A: [1]\n", "env.A: is neither a value nor a place to take it from"),
        ("  A: {from: moon}\n", "env.A: is neither a value nor a place to take it from"),
        ("  A: {file: x, from: shell}\n", "env.A: is neither a value nor a place to take it from"),
    ],
)
def test_what_is_no_variable_is_a_mistake_with_its_line(tmp_path: Path, line: str, sentence: str) -> None:
    (found,) = mistakes(tmp_path, line)
    assert found.startswith("params.yaml:3: " + sentence)


def test_a_list_instead_of_variables_is_a_mistake(tmp_path: Path) -> None:
    (found,) = mistakes(tmp_path, "  - A=1\n")
    assert "env: must be a group of variables; write {WANDB_MODE: offline" in found


def test_on_htcondor_two_secrets_need_two_file_names(tmp_path: Path) -> None:
    secret_file(tmp_path, "a/key")
    secret_file(tmp_path, "b/key")
    env = "  A_KEY: {file: a/key}\n  B_KEY: {file: b/key}\n"
    assert len(parsed(tmp_path, env).spec.env_files) == 2
    (found,) = mistakes(tmp_path, env, "cluster: htcondor\n")
    assert "env.B_KEY.file: key has the same name as" in found


def test_replacing_the_gpus_of_a_job_is_a_warning(tmp_path: Path) -> None:
    (warning,) = parsed(tmp_path, "  CUDA_VISIBLE_DEVICES: 0\n").warnings
    assert "replaces the value that each job gets" in str(warning)

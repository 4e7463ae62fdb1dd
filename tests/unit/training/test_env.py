"""Public names, environment variables and the rule of the standard library only, on which scripts rely."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import outlast
from outlast import training
from outlast.exchange import attempt_log
from outlast.node import progress_file, protocol, quantities
from outlast.node.sandbox import layout
from outlast.training import env, save_interval
from outlast.training.checkpoints import checkpoint_names
from outlast.training.training_session import SessionSettings, read_settings

PACKAGE = Path(outlast.__file__).parent


def test_the_public_names_are_frozen() -> None:
    public = [
        "CheckpointError",
        "File",
        "SaveFailed",
        "Superseded",
        "Training",
        "keep",
        "leave",
        "load",
        "progress",
        "save",
        "should_save",
        "should_stop",
        "time_left",
        "wait",
    ]
    assert sorted(outlast.__all__) == public
    assert sorted(training.__all__) == sorted([*public, "listen"])
    for name in public:
        assert getattr(outlast, name) is getattr(training, name)


def test_environment_variables_have_the_names_that_the_node_program_sets() -> None:
    variables = {name: value for name, value in vars(env).items() if str(value).startswith("OUTLAST_")}
    assert len(variables) == 18
    assert variables == {name: getattr(protocol.Variable, name) for name in variables}
    assert env.EXIT_CONTINUE == protocol.EXIT_CONTINUE


@pytest.mark.parametrize("name", ["/x/progress.jsonl", "events", "/x.jsonl/events.json", "a.json.jsonl"])
def test_the_controller_reads_the_newest_progress_from_the_path_that_the_training_writes(name: str) -> None:
    assert env.newest_progress_path(name) == str(attempt_log.newest_progress(Path(name)))
    assert env.newest_progress_path(name) != name


@pytest.mark.parametrize("name", ["progress.jsonl", "a.json.jsonl"])
def test_training_node_program_and_controller_agree_on_the_path_of_the_newest_progress(
    tmp_path: Path, name: str
) -> None:
    events = tmp_path / name
    newest = Path(env.newest_progress_path(str(events)))
    newest.write_text(json.dumps({"event": "progress", "step": 7}) + "\n")
    assert attempt_log.newest_progress(events) == newest
    assert progress_file.newest_step(str(events)) == 7
    found = attempt_log.last_progress(events)
    assert found is not None and found["step"] == 7


NAME = checkpoint_names.checkpoint_name(1234, (7, 3))


@pytest.mark.parametrize(
    ("name", "is_checkpoint"),
    [
        (NAME, True),
        (checkpoint_names.checkpoint_name(10**12, (10**6, 10**6)), True),
        # These two names are partly random, which their ids must not be.
        pytest.param(checkpoint_names.temporary_name(NAME), False, id="temporary"),
        pytest.param(checkpoint_names.bad_name(NAME), False, id="bad"),
        (checkpoint_names.claim_name(7), False),
        ("." + NAME, False),
        (NAME + "\n", False),
        (NAME + "-copy", False),
        (NAME.upper(), False),
        ("step-00000001234-g000007-s000003", False),
        ("step-000000001234-g00007-s000003", False),
        ("step-000000001234-g000007-s00003", False),
        ("step-100", False),
        ("", False),
    ],
)
def test_training_and_node_program_recognise_the_same_names_as_checkpoints(
    name: str, is_checkpoint: bool
) -> None:
    """The pattern exists in both packages, because neither may import the other."""
    assert checkpoint_names.is_checkpoint(name) is is_checkpoint
    assert layout.is_checkpoint(name) is is_checkpoint


def test_an_empty_environment_gives_the_defaults() -> None:
    assert read_settings({}) == SessionSettings("checkpoints", 3, None, 0.0, None, None, None)


def test_processes_with_the_same_token_belong_to_the_same_attempt() -> None:
    assert read_settings({env.TOKEN: "t1"}).token == "t1"
    assert read_settings({env.TOKEN: ""}).token is None


def test_a_value_that_is_not_a_number_causes_a_warning_and_is_ignored(
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = read_settings({env.DEADLINE: "soon", env.GRACE: "nan", env.CHECKPOINT_KEEP: "5"})
    assert (settings.ends, settings.grace, settings.keep) == (None, 0.0, 5)
    assert capsys.readouterr().err.count("is not a number") == 2


def test_outside_a_job_there_is_no_deadline_and_no_stop(tmp_path: Path) -> None:
    script = "import math, outlast; assert outlast.time_left() == math.inf; assert not outlast.should_stop()"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OUTLAST_")}
    subprocess.run([sys.executable, "-c", script], env=environment, cwd=tmp_path, check=True, timeout=60)
    assert SessionSettings().ends is None
    assert list(tmp_path.iterdir()) == []


FROM_ZIPAPP = """
import sys
import outlast
assert ".pyz" in outlast.__file__, outlast.__file__
assert outlast.load() is None
outlast.save({"w": b"weights", "x": [1.5, None]}, step=1)
assert outlast.load() == {"w": b"weights", "x": [1.5, None]}
assert not {"numpy", "torch"} & set(sys.modules)
outlast.leave()
"""


def interpreters() -> list[str]:
    """Return the running Python and the oldest supported one, if that is installed."""
    found = [shutil.which("python3.8"), *map(str, Path.home().glob(".pyenv/versions/3.8.*/bin/python"))]
    # A pyenv shim is on PATH even if it leads to no interpreter.
    old = [
        path
        for path in found
        if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0
    ]
    return [sys.executable, *old[:1]]


@pytest.mark.parametrize("python", interpreters())
def test_it_works_from_a_zipapp_with_nothing_installed(tmp_path: Path, python: str) -> None:
    archive = tmp_path / "node.pyz"
    with zipfile.ZipFile(archive, "w") as zipped:
        for path in [
            PACKAGE / "__init__.py",
            PACKAGE / "untrusted_files.py",
            *(PACKAGE / "training").rglob("*.py"),
        ]:
            zipped.write(path, "outlast/%s" % path.relative_to(PACKAGE))
    environment = {
        "PYTHONPATH": str(archive),
        "OUTLAST_TOKEN": "t",
        "OUTLAST_CHECKPOINT_DIR": str(tmp_path / "c"),
    }
    command = [python, "-S", "-c", FROM_ZIPAPP]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stderr) == (85, "")


@pytest.mark.parametrize(
    "seconds", [0.0, 0.04, 0.97, 1.0, 59.9, 60.0, 258.0, 3600.0, 46800.0, 172799.0, 216000.0]
)
def test_training_and_node_program_show_durations_alike(seconds: float) -> None:
    assert save_interval.show_duration(seconds) == quantities.show_rounded_duration(seconds)

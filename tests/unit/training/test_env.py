"""What scripts rely on: the public names, the environment, and that nothing else need be installed."""

from __future__ import annotations

import math
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
from outlast.node import protocol
from outlast.training import env
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


def test_the_environment_has_the_names_that_the_node_program_sets() -> None:
    ours = {name: value for name, value in vars(env).items() if str(value).startswith("OUTLAST_")}
    assert len(ours) == 16
    assert ours == {name: getattr(protocol.Variable, name) for name in ours}
    assert env.EXIT_CONTINUE == protocol.EXIT_CONTINUE


@pytest.mark.parametrize("name", ["/x/progress.jsonl", "told", "/x.jsonl/told.json", "a.json.jsonl"])
def test_the_newest_progress_is_where_the_controller_looks_for_it(name: str) -> None:
    assert env.newest_progress(name) == str(attempt_log.newest_progress(Path(name)))
    assert env.newest_progress(name) != name


def test_an_empty_environment_gives_the_defaults() -> None:
    assert read_settings({}) == SessionSettings("checkpoints", 3, None, 0.0, None, None, None)


def test_the_token_in_the_environment_makes_processes_one_attempt() -> None:
    assert read_settings({env.TOKEN: "t1"}).token == "t1"
    assert read_settings({env.TOKEN: ""}).token is None


def test_a_number_that_is_none_is_reported_and_ignored(capsys: pytest.CaptureFixture[str]) -> None:
    settings = read_settings({env.DEADLINE: "soon", env.GRACE: "nan", env.CHECKPOINT_KEEP: "5"})
    assert (settings.deadline, settings.grace, settings.keep) == (None, 0.0, 5)
    assert capsys.readouterr().err.count("is no number") == 2


def test_outside_a_job_there_is_no_end_and_no_wish_to_stop(tmp_path: Path) -> None:
    script = "import math, outlast; assert outlast.time_left() == math.inf; assert not outlast.should_stop()"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OUTLAST_")}
    subprocess.run([sys.executable, "-c", script], env=environment, cwd=tmp_path, check=True, timeout=60)
    assert math.isinf(SessionSettings().deadline or math.inf)
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
    """The running Python and the oldest one that is promised to work, where it is there."""
    found = [shutil.which("python3.8"), *map(str, Path.home().glob(".pyenv/versions/3.8.*/bin/python"))]
    # A pyenv shim is on PATH also where it leads to no interpreter.
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
        for path in [PACKAGE / "__init__.py", *(PACKAGE / "training").rglob("*.py")]:
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

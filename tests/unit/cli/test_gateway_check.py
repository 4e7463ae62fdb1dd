"""`outlast gateway check`: what would fail when the first request comes, by subject."""

from __future__ import annotations

import json
import sys
from collections import namedtuple
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

from outlast.cli import gateway_checks, group
from outlast.errors import BadInput
from outlast.gateway.web_application import login
from support.gateways import SETTINGS, GatewayFiles, write_gateway


class Level(str, Enum):
    """The levels of the broker's findings."""

    OK, WARNING, ERROR = "ok", "warning", "error"


Finding = namedtuple("Finding", "level subject text advice")
DiskUsage = namedtuple("DiskUsage", "free")
Answer = Callable[..., Sequence[Finding]]


@pytest.fixture
def files(tmp_path: Path) -> GatewayFiles:
    found = write_gateway(tmp_path / "lab")
    found.directory.credentials.chmod(0o700)
    found.write("templates/pages/train.py", "import outlast\n")
    return found


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let the broker and the application accept everything."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(login, "fetch_token", lambda *_: "token")
    let_broker(monkeypatch, lambda *_: [Finding(Level.OK, "broker", "RabbitMQ 4.0.5", "")])


def let_broker(monkeypatch: pytest.MonkeyPatch, answer: Answer) -> None:
    checks = ModuleType("outlast.gateway.broker.checks")
    checks.check_broker = answer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, checks.__name__, checks)


def check(files: GatewayFiles) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit code, and what is no matter of course."""
    done = CliRunner().invoke(group, ["gateway", "check", str(files.directory.root), "--json"])
    assert done.stdout, done.exception
    found = json.loads(done.stdout)
    assert found["ok"] == (done.exit_code == 0)
    return done.exit_code, [one for one in found["results"] if one["level"] != "ok"]


def test_a_gateway_without_faults_can_be_started(files: GatewayFiles) -> None:
    done = CliRunner().invoke(group, ["gateway", "check", str(files.directory.root)])
    assert done.exit_code == 0, done.output
    for expected in (
        "broker\n  ok       RabbitMQ 4.0.5",
        "template pages\n  ok       valid",
        "outlast gateway up",
    ):
        assert expected in done.output


def test_every_mistake_in_the_settings_has_its_line(files: GatewayFiles) -> None:
    files.write("gateway.yaml", SETTINGS.replace("dialect: rodan", "dialect: latin").replace("12MB", "12"))
    code, found = check(files)
    assert code == 2
    assert [one["subject"] for one in found] == ["gateway.yaml"] * 2
    assert found[0]["text"].startswith("gateway.yaml:4: ") and found[1]["text"].startswith(
        "gateway.yaml:11: "
    )


def test_mistakes_of_a_template_are_listed_below_its_name(files: GatewayFiles) -> None:
    files.write("templates/pages/params.yaml", "name: pages\ncommand: [x\n")
    code, found = check(files)
    assert code == 2 and {one["subject"] for one in found} == {"template pages"}
    assert found[0]["text"].startswith("templates/pages/params.yaml:")


def test_a_template_is_checked_as_an_experiment_is(files: GatewayFiles) -> None:
    params = files.directory.template("pages") / "params.yaml"
    files.write("templates/pages/params.yaml", params.read_text() + "cluster: farm\n")
    files.write("templates/pages/clusters.yaml", "farm: {scheduler: slurm, queue: gpu}\n")
    code, found = check(files)
    assert code == 0 and any("sbatch" in one["text"] for one in found), found


def test_what_the_broker_lacks_is_shown_under_its_subject(
    files: GatewayFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    finding = Finding(Level.ERROR, "queue train", "no right to read it", "grant it")

    def answer(*arguments: Any) -> Sequence[Finding]:
        given.extend(arguments)
        return [finding]

    let_broker(monkeypatch, answer)
    code, found = check(files)
    assert code == 2 and found == [{**finding._asdict(), "level": "error"}]
    settings = files.settings()
    assert given == [settings.broker, settings.queues, "progress"]


def test_an_error_of_one_check_does_not_end_the_others(
    files: GatewayFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise BadInput("no broker")

    def refuse(*_: Any) -> str:
        raise login.LoginError(False, "the application refused the log-in")

    let_broker(monkeypatch, fail)
    monkeypatch.setattr(login, "fetch_token", refuse)
    files.write("templates/pages/template.yaml", "parameters: [")
    code, found = check(files)
    assert code == 2
    assert list(dict.fromkeys(one["subject"] for one in found)) == ["broker", "application", "template pages"]


def test_files_with_passwords_that_others_can_read_are_errors(files: GatewayFiles) -> None:
    files.directory.credentials.chmod(0o755)
    (files.directory.credentials / "broker.yaml").chmod(0o644)
    code, found = check(files)
    assert code == 2
    assert [one["subject"] for one in found] == ["credentials", "gateway.yaml"]
    assert found[0]["advice"] == "type `chmod 700 %s`" % files.directory.credentials
    assert "chmod 600" in found[1]["advice"]


@pytest.mark.parametrize(("free", "level"), [(10**9, "warning"), (10**6, "error")])
def test_a_disk_that_is_almost_full_is_reported(
    files: GatewayFiles, monkeypatch: pytest.MonkeyPatch, free: int, level: str
) -> None:
    monkeypatch.setattr(gateway_checks.shutil, "disk_usage", lambda path: DiskUsage(free))
    _, found = check(files)
    assert [one["level"] for one in found if one["subject"] == "disk"] == [level]

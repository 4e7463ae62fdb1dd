"""`gateway.yaml`: its meaning, and all mistakes in it at once, each with its line and a hint."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outlast.errors import BadInput
from outlast.gateway.configuration.private_files import read_credentials
from outlast.gateway.configuration.settings_file import matches
from outlast.gateway.settings import QueueSettings
from outlast.spec import BadSpec
from support.gateways import SETTINGS, GatewayFiles, write_gateway


@pytest.fixture
def files(tmp_path: Path) -> GatewayFiles:
    return write_gateway(tmp_path / "lab")


def mistakes(files: GatewayFiles, text: str) -> list[str]:
    files.write("gateway.yaml", text)
    with pytest.raises(BadSpec) as caught:
        files.settings()
    return str(caught.value).splitlines()


def test_every_key_is_read(files: GatewayFiles) -> None:
    files.write("credentials/metrics", "token")
    files.write("ca.pem", "")
    found = (
        files.write(
            "gateway.yaml",
            SETTINGS.replace(
                "tls: yes", "tls: yes, ca_file: ca.pem, heartbeat: 20s, prefetch: 7, virtual_host: lab"
            )
            + "metrics: {port: 9100, token: credentials/metrics}\n",
        )
        and files.settings()
    )
    root = files.directory.root
    given = found.broker
    assert (given.host, given.port, given.tls, given.heartbeat) == ("broker.example.org", 5671, True, 20)
    assert (given.prefetch, given.virtual_host, given.ca_file) == (7, "lab", root / "ca.pem")
    assert given.credentials == root / "credentials/broker.yaml"
    assert found.queues == (
        QueueSettings("train", reply_to=("results", "results.*"), dead_letters="train.dead"),
        QueueSettings("hpc-jobs", "rodan", "pages", ("hpc-results",)),
    )
    assert (found.templates, found.progress_exchange) == (("pages",), "progress")
    assert (found.largest_answer, found.keep) == (12 * 10**6, 30 * 86400.0)
    assert found.application.url == "https://app.example.org"
    assert (found.application.login, found.application.scheme) == ("/api/auth/token/", "Token")
    assert (found.metrics_port, found.metrics_token) == (9100, root / "credentials/metrics")


def test_the_usual_port_depends_on_tls(files: GatewayFiles) -> None:
    files.write("gateway.yaml", SETTINGS.replace("tls: yes", "tls: no"))
    assert files.settings().broker.port == 5672


def test_all_mistakes_are_reported_at_once_with_their_lines(files: GatewayFiles) -> None:
    text = """\
broker: {hots: broker.example.org, port: 70000}
queues:
  - {dialect: rodan, reply_to: [results]}
  - {name: train, dialect: rodna, template: page}
templates: [pages]
limits: {keep: 30}
"""
    found = mistakes(files, text)
    assert [": ".join(line.split(": ")[:2]) for line in found] == [
        "gateway.yaml:1: broker.port",
        "gateway.yaml:1: broker.hots",
        "gateway.yaml:1: broker",
        "gateway.yaml:3: queues[1]",
        "gateway.yaml:3: queues[1]",
        "gateway.yaml:4: queues[2].dialect",
        "gateway.yaml:4: queues[2].template",
        "gateway.yaml:6: limits.keep",
    ]
    text = "\n".join(found)
    assert 'did you mean "host"?' in text and 'did you mean "rodan"?' in text and 'mean "pages"?' in text


@pytest.mark.parametrize(
    ("before", "after", "mistake"),
    [
        ("queues:", "queue:", "unknown key"),
        ("host: broker.example.org", "host: 'amqps://me:s3cret@broker'", "contains a user or password"),
        ("host: broker.example.org", "host: 'broker:5671'", "has a port"),
        ("https://app.example.org", "https://me:s3cret@app.example.org", "contains a user or password"),
        ("https://app.example.org", "http://app.example.org", "plain http"),
        ("https://app.example.org", "https://app.example.org/?next=1", "query"),
        ("login: /api", "login: api", "is not a path"),
        ("name: train,", "name: amq.train,", "the broker's own"),
        ("dead_letters: train.dead", "dead_letters: hpc-jobs", "is also in line"),
        ("[results, ", "[train, ", "answers would go to train"),
        ('"results.*"', '"t*"', "answers would go to train"),
        ('"results.*"', '"*"', "may only be at the end"),
        ("templates: [pages]", "templates: [../pages]", "is not a valid name"),
        ("credentials: credentials/broker.yaml", "ca_file: none.pem", "broker.credentials is missing"),
        ("credentials: credentials/broker.yaml", "password: s3cret", "unknown key"),
        ("credentials/broker.yaml", "credentials/none.yaml", "no such file"),
        ("progress: progress", "progress: amq.direct", "not a topic exchange"),
    ],
)
def test_a_mistake_is_reported(files: GatewayFiles, before: str, after: str, mistake: str) -> None:
    assert before in SETTINGS
    found = mistakes(files, SETTINGS.replace(before, after, 1))
    assert [line for line in found if mistake in line and line.startswith("gateway.yaml")], found
    assert "s3cret" not in "\n".join(found)


def test_a_metrics_port_needs_a_token(files: GatewayFiles) -> None:
    assert "token is missing" in mistakes(files, SETTINGS + "metrics: {port: 9100}\n")[0]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o700, 0o400])
def test_a_file_with_a_password_must_have_mode_600(files: GatewayFiles, mode: int) -> None:
    (files.directory.credentials / "broker.yaml").chmod(mode)
    found = mistakes(files, SETTINGS)
    assert len(found) == 1 and f"has mode {mode:03o}" in found[0] and "chmod 600" in found[0]


def test_a_file_with_a_password_must_be_a_regular_one_and_of_this_user(
    files: GatewayFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = files.directory.credentials / "broker.yaml"
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")
    assert "is not a regular file" in mistakes(files, SETTINGS)[0]
    monkeypatch.setattr(os, "geteuid", lambda: path.lstat().st_uid + 1)
    path.unlink()
    path.with_name("moved").rename(path)
    assert "belongs to another user" in mistakes(files, SETTINGS)[0]


@pytest.mark.parametrize(
    "text", ["{user: me}", "{user: me, password: }", "{user: me, password: 's3cret", "[s3cret]", ""]
)
def test_credentials_that_are_incomplete_are_a_mistake_that_quotes_nothing(
    files: GatewayFiles, text: str
) -> None:
    files.write("credentials/broker.yaml", text)
    found = mistakes(files, SETTINGS)
    assert len(found) == 1 and found[0].startswith("gateway.yaml:1: broker.credentials")
    assert "s3cret" not in found[0]


def test_credentials_are_read_as_they_are_written(files: GatewayFiles) -> None:
    path = files.write("credentials/broker.yaml", "user: me\npassword: 007\n")
    assert read_credentials(path, ("user", "password")) == {"user": "me", "password": "007"}
    with pytest.raises(BadInput):
        read_credentials(path, ("user", "token"))


def test_a_missing_file_names_the_command_that_writes_it(tmp_path: Path) -> None:
    files = write_gateway(tmp_path)
    files.directory.settings.unlink()
    with pytest.raises(BadSpec, match="outlast gateway init"):
        files.settings()


def test_a_star_at_the_end_matches_every_ending() -> None:
    assert matches("results.*", "results.me") and matches("a", "a")
    assert not matches("results.*", "result") and not matches("a", "ab")

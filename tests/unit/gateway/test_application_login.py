"""Log-in at the application, and the token's file: no storm of log-ins, and no secret anywhere else."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outlast.gateway.gateway_directory import GatewayDirectory
from outlast.gateway.settings import ApplicationSettings
from outlast.gateway.web_application.application import SHORTEST_PAUSE, Application
from outlast.gateway.web_application.login import LoginError
from outlast.gateway.web_application.web_request import WebTimeouts
from outlast.node.staging.sources.tokens import from_file
from servers.application import EMAIL, LOGIN, PASSWORD, USERNAME, ApplicationServer
from servers.behaviour import Behaviour
from servers.certificates import Authority

NOW = 1_800_000_000.0
PATIENT = WebTimeouts(connect=10, idle=20, total=40)


@pytest.fixture
def server() -> Iterator[ApplicationServer]:
    with ApplicationServer({}) as running:
        yield running


@pytest.fixture
def directory(tmp_path: Path) -> GatewayDirectory:
    root = tmp_path / "lab"
    (root / "credentials").mkdir(parents=True, mode=0o700)
    return GatewayDirectory(root)


def application(
    server: ApplicationServer,
    directory: GatewayDirectory,
    *,
    url: str = "",
    password: str = PASSWORD,
    ca_file: Path | None = None,
    timeouts: WebTimeouts = PATIENT,
) -> Application:
    credentials = directory.credentials / "application.yaml"
    credentials.write_text(f"username: {USERNAME}\nemail: {EMAIL}\npassword: {password}\n")
    credentials.chmod(0o600)
    settings = ApplicationSettings(url or server.url("").rstrip("/"), LOGIN, credentials, ca_file=ca_file)
    return Application(settings, directory, timeouts=timeouts)


def failed(call: Callable[[], object]) -> LoginError:
    with pytest.raises(LoginError) as raised:
        call()
    text = "%s %r" % (raised.value, raised.value)
    assert PASSWORD not in text and USERNAME not in text and EMAIL not in text
    return raised.value


@pytest.mark.parametrize("user_field", ["username", "email"])
@pytest.mark.parametrize("takes", [("json", "form"), ("form",), ("json",)])
def test_a_token_is_fetched_from_either_version_of_the_application(
    directory: GatewayDirectory, user_field: str, takes: tuple[str, ...]
) -> None:
    with ApplicationServer({}, user_field=user_field, login_takes=takes) as server:
        found = application(server, directory).token_file(NOW)
        token = from_file(str(found))
        assert token is not None and token.value == server.token
        assert len(server.received("login")) == (2 if takes == ("form",) else 1)


def test_the_token_is_in_a_file_of_mode_600_in_a_directory_of_mode_700(
    server: ApplicationServer, directory: GatewayDirectory
) -> None:
    old = os.umask(0)
    try:
        found = application(server, directory).token_file(NOW)
    finally:
        os.umask(old)
    assert stat.S_IMODE(found.stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.tokens.stat().st_mode) == 0o700
    assert sorted(one.name for one in directory.tokens.iterdir()) == [
        ".application.last-login",
        "application",
    ]


def test_there_is_one_log_in_as_long_as_there_is_a_token(
    server: ApplicationServer, directory: GatewayDirectory
) -> None:
    for _ in range(3):
        application(server, directory).token_file(NOW)
    assert application(server, directory).authorization(NOW) == "Token " + server.token
    assert len(server.received("login")) == 1


def test_over_tls_with_the_certificates_of_the_settings(
    authority: Authority, directory: GatewayDirectory, tmp_path: Path
) -> None:
    with ApplicationServer({}, authority.issue()) as server:
        other = Authority(tmp_path / "other")
        error = failed(lambda: application(server, directory, ca_file=other.bundle).token_file(NOW))
        assert "not trusted" in error.text and server.requests == []
        application(server, directory, ca_file=authority.bundle).token_file(NOW + SHORTEST_PAUSE)


def test_plain_http_to_another_machine_is_refused(
    server: ApplicationServer, directory: GatewayDirectory
) -> None:
    # An address for documentation: nothing is sent to it.
    error = failed(lambda: application(server, directory, url="http://192.0.2.1").token_file(NOW))
    assert not error.transient and "plain http" in error.text


# RequestRefused, and not available


def test_a_wrong_password_is_final_and_shows_the_reason_without_what_was_sent(
    server: ApplicationServer, directory: GatewayDirectory
) -> None:
    error = failed(lambda: application(server, directory, password="hunter2 not this").token_file(NOW))
    assert not error.transient
    assert "401" in error.text and "Wrong: … / …" in error.text
    assert "hunter2" not in error.text


@pytest.mark.parametrize("status", [403, 404, 400, 415])
def test_other_refusals_are_final(
    server: ApplicationServer, directory: GatewayDirectory, status: int
) -> None:
    server.always_for("login", Behaviour(status=status))
    assert not failed(lambda: application(server, directory).token_file(NOW)).transient


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour(status=500),
        Behaviour(status=429),
        Behaviour(rubbish=b"SSH-2.0\r\n"),
        Behaviour(endless_headers=True),
        Behaviour(rubbish=b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"),
        Behaviour(silent=True),
    ],
    ids=["500", "429", "not HTTP", "endless headers", "truncated", "hang"],
)
def test_trouble_is_transient(
    server: ApplicationServer, directory: GatewayDirectory, behaviour: Behaviour
) -> None:
    server.always_for("login", behaviour)
    timeouts = WebTimeouts(connect=10, idle=0.3, total=40) if behaviour.silent else PATIENT
    assert failed(lambda: application(server, directory, timeouts=timeouts).token_file(NOW)).transient


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'{"token": 7}',
        b'{"token": "a b"}',
        b'{"token": "a\\nb"}',
        b'{"token": ""}',
        b"[" * 60_000,
        b'{"token": "%s"}' % (b"a" * 9000),
        b'{"x": "%s", "token": "abc"}' % (b"a" * 70_000),
        b"\xff\xfe",
    ],
    ids=range(11),
)
def test_a_reply_without_a_usable_token_is_final_and_bounded(
    server: ApplicationServer, directory: GatewayDirectory, body: bytes
) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    server.always_for("login", Behaviour(rubbish=head + body))
    error = failed(lambda: application(server, directory).token_file(NOW))
    assert not error.transient and len(error.text) < 200
    assert not (directory.tokens / "application").exists()


def test_no_redirect_of_a_log_in_is_followed(server: ApplicationServer, directory: GatewayDirectory) -> None:
    with ApplicationServer({}) as other:
        server.always_for("login", Behaviour(redirect=other.url(LOGIN), status=307))
        error = failed(lambda: application(server, directory).token_file(NOW))
        assert not error.transient and "127.0.0.1:%d" % other.port in error.text
        assert other.requests == []


# No storm


def test_a_refused_token_is_fetched_anew_once(server: ApplicationServer, directory: GatewayDirectory) -> None:
    one = application(server, directory)
    one.token_file(NOW)
    server.token = "another"
    later = NOW + SHORTEST_PAUSE
    assert one.renew("401 from a download", later)
    assert one.authorization(later) == "Token another"
    # Ten jobs had the old token.
    assert [one.renew("401 from a download", later + second) for second in range(10)] == [False] * 10
    assert len(server.received("login")) == 2


def test_log_ins_that_fail_are_farther_and_farther_apart(
    server: ApplicationServer, directory: GatewayDirectory
) -> None:
    server.always_for("login", Behaviour(status=500))
    one = application(server, directory)
    for second in range(6 * 3600):
        with pytest.raises(LoginError):
            one.token_file(NOW + second)
    tries = len(server.received("login"))
    # After 30 s, then 60 s, 120 s and so on; at last every hour.
    assert tries == 12


def test_a_restart_does_not_begin_anew(server: ApplicationServer, directory: GatewayDirectory) -> None:
    server.always_for("login", Behaviour(status=500))
    for second in range(20):
        error = failed(lambda second=second: application(server, directory).token_file(NOW + second))
        assert error.transient
    assert len(server.received("login")) == 1
    # A clock that is set back by a day does not stop it for a day.
    failed(lambda: application(server, directory).token_file(NOW - 86400))
    assert len(server.received("login")) == 2


# The file


@pytest.mark.parametrize("damage", ["others can read it", "empty", "not a token", "link", "directory"])
def test_a_token_file_that_jobs_would_not_use_is_replaced(
    server: ApplicationServer, directory: GatewayDirectory, tmp_path: Path, damage: str
) -> None:
    one = application(server, directory)
    path = one.token_file(NOW)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    if damage == "others can read it":
        path.chmod(0o644)
    elif damage in ("empty", "not a token"):
        path.write_text({"empty": "", "not a token": "Internal Server Error"}[damage])
    else:
        path.unlink()
        path.symlink_to(victim) if damage == "link" else path.mkdir()
    later = NOW + SHORTEST_PAUSE
    if damage == "directory":
        assert "stored" in failed(lambda: one.token_file(later)).text
        return
    token = from_file(str(one.token_file(later)))
    assert token is not None and token.value == server.token
    assert not path.is_symlink() and victim.read_text() == "precious"


@pytest.mark.parametrize(
    "text",
    ["password: *hunter2\n", "password: hunter2\nusername: [\n", "username: x\n", "password: hunter2\n", ""],
)
def test_unusable_credentials_are_final_and_not_quoted(
    server: ApplicationServer, directory: GatewayDirectory, text: str
) -> None:
    one = application(server, directory)
    (directory.credentials / "application.yaml").write_text(text)
    error = failed(lambda: one.token_file(NOW))
    assert not error.transient and "hunter2" not in error.text
    assert server.requests == []


def test_without_a_log_in_path_there_is_none(directory: GatewayDirectory) -> None:
    assert not Application(ApplicationSettings("https://app.example.org"), directory).has_login
    assert not Application(ApplicationSettings(), directory).has_login


def test_no_log_has_the_token_the_user_or_the_password(
    server: ApplicationServer,
    directory: GatewayDirectory,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    one = application(server, directory)
    one.token_file(NOW)
    one.renew("401", NOW + SHORTEST_PAUSE)
    out, err = capfd.readouterr()
    for secret in (server.token, PASSWORD, USERNAME, EMAIL):
        assert secret not in caplog.text + out + err

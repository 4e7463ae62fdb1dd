"""The demo's stand-in for a web application serves a log-in, a download and an upload of the gateway's."""

from __future__ import annotations

from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from outlast.demo.demo_application import LOGIN, USERNAME, WebApplication
from outlast.gateway.answers.collect import collect
from outlast.gateway.answers.errors import UploadError
from outlast.gateway.answers.upload import UploadTarget, upload
from outlast.gateway.gateway_directory import GatewayDirectory
from outlast.gateway.requests import RequestFailure
from outlast.gateway.settings import ApplicationSettings
from outlast.gateway.web_application.application import Application
from outlast.gateway.web_application.login import LoginError


@pytest.fixture
def stand_in() -> Iterator[WebApplication]:
    with WebApplication({"/pages/book.zip": b"pages"}) as running:
        yield running


def application(stand_in: WebApplication, root: Path, password: str) -> Application:
    credentials = root / "application.yaml"
    credentials.touch(0o600)
    credentials.write_text(f"username: {USERNAME}\npassword: {password}\n")
    return Application(ApplicationSettings(stand_in.url, LOGIN, credentials), GatewayDirectory(root))


def test_log_in_download_and_upload(stand_in: WebApplication, tmp_path: Path) -> None:
    authorization = application(stand_in, tmp_path, stand_in.password).authorization(1e9)
    connection = HTTPConnection(stand_in.authority, timeout=30)
    connection.request("GET", "/pages/book.zip", headers={"Authorization": authorization})
    assert connection.getresponse().read() == b"pages"
    results = tmp_path / "results" / "run"
    results.mkdir(parents=True)
    (results / "model.npz").write_bytes(b"weights")
    files = collect(results, {"model": "model.npz"})
    assert not isinstance(files, RequestFailure)
    target = UploadTarget.parse(stand_in.url + "/models/1", [stand_in.authority])
    with pytest.raises(UploadError) as raised:
        upload(results, files[0], target)
    assert raised.value.status == 401
    upload(results, files[0], target, authorization=authorization)
    assert stand_in.uploaded == {"/models/1": b"weights"}


def test_a_wrong_password_and_a_missing_token_are_refused(stand_in: WebApplication, tmp_path: Path) -> None:
    with pytest.raises(LoginError):
        application(stand_in, tmp_path, "wrong").token_file(1e9)
    connection = HTTPConnection(stand_in.authority, timeout=30)
    connection.request("GET", "/pages/book.zip")
    assert connection.getresponse().status == 401

"""PUT of results: to listed hosts and checked addresses only, no redirects, bounded in time and bytes."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.gateway.answers.collect import collect
from outlast.gateway.answers.errors import ResultChanged, UploadError
from outlast.gateway.answers.upload import UploadTarget, timeouts_for, upload
from outlast.gateway.requests import RequestFailure, ResultFile
from outlast.gateway.web_application.web_request import WebTimeouts
from servers.application import ApplicationServer
from servers.behaviour import Behaviour, seeded
from servers.certificates import Authority

CONTENT = seeded(3_000_000)
#: Long enough for a busy machine, and only reached where the server never answers.
PATIENT = WebTimeouts(connect=10, idle=20, total=40)
HASTY = WebTimeouts(connect=10, idle=0.3, total=40)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    directory = tmp_path / "results" / "run-7"
    directory.mkdir(parents=True)
    (directory / "model.h5").write_bytes(CONTENT)
    return directory


@pytest.fixture
def file(results: Path) -> ResultFile:
    found = collect(results, {"Model 0": "model.h5"})
    assert not isinstance(found, RequestFailure)
    return found[0]


@pytest.fixture
def application() -> Iterator[ApplicationServer]:
    with ApplicationServer({}) as server:
        yield server


def target(server: ApplicationServer, url: str) -> UploadTarget:
    return UploadTarget.parse(url, ["127.0.0.1:%d" % server.port])


def failed(call: Callable[[], object]) -> UploadError:
    with pytest.raises(UploadError) as raised:
        call()
    assert "Signature" not in str(raised.value) and "?" not in str(raised.value)
    return raised.value


def test_a_file_is_put_to_a_presigned_url_with_its_digest_and_no_token(
    results: Path, file: ResultFile, application: ApplicationServer
) -> None:
    placed = upload(results, file, target(application, application.presigned("/store/a")), timeouts=PATIENT)
    assert application.uploaded["/store/a"] == CONTENT
    assert placed.place == application.url("/store/a")
    assert application.paths_with_token() == []


def test_a_file_is_put_over_tls_with_the_applications_token(
    results: Path, file: ResultFile, authority: Authority
) -> None:
    with ApplicationServer({}, authority.issue()) as server:
        url = server.url("/results/1/model")
        upload(
            results,
            file,
            target(server, url),
            authorization="Token " + server.token,
            ca_file=authority.bundle,
            timeouts=PATIENT,
        )
        assert server.uploaded["/results/1/model"] == CONTENT


def test_an_empty_file_is_put_too(results: Path, application: ApplicationServer) -> None:
    (results / "empty").write_bytes(b"")
    found = collect(results, {"e": "empty"})
    assert not isinstance(found, RequestFailure)
    upload(results, found[0], target(application, application.presigned("/e")), timeouts=PATIENT)
    assert application.uploaded["/e"] == b""


def test_a_certificate_that_is_not_trusted_stops_the_upload_before_a_byte_of_it(
    results: Path, file: ResultFile, authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other")
    with ApplicationServer({}, other.issue()) as server:
        url = target(server, server.presigned("/a"))
        error = failed(lambda: upload(results, file, url, ca_file=authority.bundle, timeouts=PATIENT))
        assert error.transient and "not trusted" in error.text
        assert server.requests == []


# Answers


@pytest.mark.parametrize(
    ("status", "transient"),
    [
        *((code, False) for code in (400, 401, 403, 404, 405, 409, 413)),
        *((code, True) for code in (408, 425, 429, 500, 502, 503, 507)),
    ],
)
@pytest.mark.parametrize("early", [False, True])
def test_4xx_is_final_and_5xx_is_transient(
    results: Path,
    file: ResultFile,
    application: ApplicationServer,
    status: int,
    transient: bool,
    early: bool,
) -> None:
    application.refuses_early = early
    application.plan_for("upload", Behaviour(status=status))
    url = target(application, application.presigned("/store/a"))
    error = failed(lambda: upload(results, file, url, timeouts=PATIENT))
    if early and error.status is None:
        # The refusal was lost with the connection: then nothing is known, and it is tried again.
        assert error.transient
    else:
        assert (error.transient, error.status) == (transient, status)
    assert len(application.received("upload")) == 1
    application.refuses_early = False
    upload(results, file, url, timeouts=PATIENT)
    assert application.uploaded["/store/a"] == CONTENT


@pytest.mark.parametrize("location", ["http://127.0.0.1:1/steal?X-Amz-Signature=abc", "/other", "//\x00"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed_and_the_token_goes_nowhere(
    results: Path, file: ResultFile, application: ApplicationServer, location: str, status: int
) -> None:
    application.always_for("upload", Behaviour(redirect=location, status=status))
    url = target(application, application.url("/a"))
    error = failed(lambda: upload(results, file, url, authorization="Token secret", timeouts=PATIENT))
    assert not error.transient
    assert "steal" not in error.text
    assert [request.path for request in application.requests] == ["/a"]


def test_a_redirect_to_another_host_does_not_reach_it(
    results: Path, file: ResultFile, application: ApplicationServer
) -> None:
    with ApplicationServer({}) as other:
        application.always_for("upload", Behaviour(redirect=other.url("/a"), status=307))
        url = target(application, application.url("/a"))
        error = failed(lambda: upload(results, file, url, authorization="Token secret", timeouts=PATIENT))
        assert "redirects to 127.0.0.1:%d" % other.port in error.text
        assert other.requests == []


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour(silent=True),
        Behaviour(rubbish=b"SSH-2.0-OpenSSH_9.2\r\n"),
        Behaviour(rubbish=b"HTTP/1.1 2"),
        Behaviour(endless_headers=True),
        Behaviour(rubbish=b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000),
        Behaviour(status=500, headers=(("X-Long", "y" * 60_000),)),
    ],
    ids=["hang", "not HTTP", "closed", "endless headers", "endless continue", "long header"],
)
def test_a_server_that_does_not_answer_properly_is_transient_and_bounded(
    results: Path, file: ResultFile, application: ApplicationServer, behaviour: Behaviour
) -> None:
    application.plan_for("upload", behaviour)
    timeouts = HASTY if behaviour.silent else PATIENT
    url = target(application, application.presigned("/store/a"))
    assert failed(lambda: upload(results, file, url, timeouts=timeouts)).transient


def test_an_endless_slow_body_of_a_reply_is_not_read(
    results: Path, file: ResultFile, application: ApplicationServer
) -> None:
    head = b"HTTP/1.1 201 Created\r\nContent-Length: 1000000000000\r\n\r\n"
    application.plan_for("upload", Behaviour(rubbish=head + b"x" * 100_000))
    upload(results, file, target(application, application.presigned("/store/a")), timeouts=PATIENT)


def test_the_whole_upload_has_a_deadline(
    results: Path, file: ResultFile, application: ApplicationServer
) -> None:
    application.plan_for("upload", Behaviour(silent=True))
    url = target(application, application.presigned("/store/a"))
    limits = WebTimeouts(connect=10, idle=1000, total=0.5)
    assert failed(lambda: upload(results, file, url, timeouts=limits)).transient


def test_a_server_that_does_not_read_is_left(results: Path, tmp_path: Path) -> None:
    (results / "large").write_bytes(bytes(40_000_000))
    found = collect(results, {"l": "large"})
    assert not isinstance(found, RequestFailure)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        url = UploadTarget.parse("http://127.0.0.1:%d/a" % port, ["127.0.0.1:%d" % port])
        assert failed(lambda: upload(results, found[0], url, timeouts=HASTY)).transient


def test_nobody_listening_is_transient(results: Path, file: ResultFile) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        url = UploadTarget.parse("http://127.0.0.1:%d/a" % port, ["127.0.0.1:%d" % port])
        assert failed(lambda: upload(results, file, url, timeouts=PATIENT)).transient


def test_timeouts_grow_with_the_size_and_are_bounded() -> None:
    assert timeouts_for(0).total < timeouts_for(10**8).total < timeouts_for(10**12).total == 6 * 3600


def test_a_file_that_changed_is_never_received_whole(
    results: Path, file: ResultFile, application: ApplicationServer
) -> None:
    file.path.write_bytes(bytes(len(CONTENT)))
    with pytest.raises(ResultChanged):
        upload(results, file, target(application, application.presigned("/a")), timeouts=PATIENT)
    assert application.uploaded == {}


# Where to


@pytest.mark.parametrize(
    "url",
    [
        "https://other.example.org/a",
        "https://store.example.org:8443/a",
        "file:///etc/passwd",
        "//store.example.org/a",
        "/uploads/a",
        "https://user@store.example.org/a",
        "https://store.example.org@other.example.org/a",
        "https://store.example.org/a/../admin",
        "https://store.example.org/a/%2E%2e/admin",
        "https://store.example.org/a b\r\nX: y",
        "https://store.example.org:99999/a",
        "ftp://store.example.org/a",
        "",
    ],
)
def test_a_url_that_is_not_on_a_listed_host_is_refused_before_a_name_is_resolved(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: pytest.fail("resolved"))
    signed = url + "?X-Amz-Signature=abc" if url else url
    error = failed(lambda: UploadTarget.parse(signed, ["store.example.org"]))
    assert not error.transient


def resolving(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Let every name have these addresses, one list for each question; return the questions."""
    asked: list[str] = []

    def look_up(host: str, port: int, *rest: Any, **more: Any) -> list[Any]:
        asked.append(host)
        found = answers[min(len(asked), len(answers)) - 1]
        return [
            (socket.AF_INET6 if ":" in each else socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port))
            for each in found
        ]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return asked


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "169.254.169.254", "10.0.0.5", "192.168.1.1", "100.64.0.1", "0.0.0.0", "224.0.0.1"),
        *("::1", "fe80::1", "fd00::1", "::ffff:127.0.0.1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::"),
    ],
)
def test_a_listed_name_with_an_address_that_is_not_public_is_refused(
    results: Path, file: ResultFile, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    connections: list[Any] = []
    monkeypatch.setattr(socket.socket, "connect", lambda self, where: connections.append(where))
    url = UploadTarget.parse("https://store.example.org/a", ["store.example.org"])
    for addresses in ([address], ["93.184.216.34", address]):
        resolving(monkeypatch, addresses)
        error = failed(lambda: upload(results, file, url, timeouts=PATIENT))
        assert not error.transient and "public" in error.text
    assert connections == []


def test_the_checked_address_is_the_one_that_is_contacted(
    results: Path, file: ResultFile, application: ApplicationServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that resolves to an allowed address, and to another one when it is asked again."""
    asked = resolving(monkeypatch, ["127.0.0.1"], ["127.0.0.99"])
    hosts = ["store.example.org:%d" % application.port, "127.0.0.1:%d" % application.port]
    signed = application.presigned("/a").replace("127.0.0.1", "store.example.org")
    upload(results, file, UploadTarget.parse(signed, hosts), timeouts=PATIENT)
    assert asked == ["store.example.org"]
    assert application.requests[0].headers["host"] == "store.example.org:%d" % application.port


def test_plain_http_is_for_this_machine_only(
    results: Path, file: ResultFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections: list[Any] = []
    monkeypatch.setattr(socket.socket, "connect", lambda self, where: connections.append(where))
    resolving(monkeypatch, ["93.184.216.34"])
    url = UploadTarget.parse("http://store.example.org/a", ["store.example.org"])
    assert "plain http" in failed(lambda: upload(results, file, url, timeouts=PATIENT)).text
    assert connections == []


def test_a_target_is_shown_without_its_query() -> None:
    shown = UploadTarget.parse("https://store.example.org/a?X-Amz-Signature=abc", ["store.example.org"])
    assert "abc" not in repr(shown)

"""TLS always proves the identity of a server, and a token is sent to no other."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.node.staging.http.connection import Connection
from outlast.node.staging.http.http_settings import HttpSettings
from outlast.node.staging.http.request import send_request
from outlast.node.staging.http.url import Url
from outlast.node.staging.sources.http_source import HttpSource
from outlast.node.staging.sources.tokens import Tokens
from servers.behaviour import Behaviour, seeded
from servers.certificates import Authority, Certificate
from servers.misbehaving import Misbehaving
from servers.proxy import Proxy
from support.fetching import read_all

CONTENT = seeded(300_000)

SECRET = "sesame-open-0123456789"


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "http_proxy",
        "https_proxy",
        "HTTPS_PROXY",
        "all_proxy",
        "ALL_PROXY",
        "no_proxy",
        "NO_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Certificate:
    return authority.issue()


@pytest.fixture
def server(certificate: Certificate) -> Iterator[Misbehaving]:
    with Misbehaving({"/a.bin": CONTENT}, certificate) as running:
        yield running


@pytest.fixture
def settings(authority: Authority) -> HttpSettings:
    return HttpSettings(
        connect_timeout=10, first_byte_timeout=5, stall_timeout=0.3, ca_file=str(authority.bundle)
    )


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(SECRET)
    path.chmod(0o600)
    return path


def read(source: HttpSource, start: int = 0, into: bytearray | None = None) -> bytes:
    return read_all(source.open(start), into)


def authorizations(server: Misbehaving) -> list[str]:
    """Return the Authorization header of each request; empty if it had none."""
    return [request.headers.get("authorization", "") for request in server.requests]


# The identity of a server


def test_a_file_arrives_over_tls_unchanged(server: Misbehaving, settings: HttpSettings) -> None:
    assert read(HttpSource(server.url("/a.bin"), settings), 7) == CONTENT[7:]
    assert read(HttpSource(server.url("/a.bin", "localhost"), settings)) == CONTENT


def test_the_environment_can_name_the_certificates(
    server: Misbehaving, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.bundle))

    assert read(HttpSource(server.url("/a.bin"))) == CONTENT


def test_an_unknown_authority_is_not_trusted_and_no_request_is_sent(
    server: Misbehaving, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path)
    with pytest.raises(SourceError, match="SSL_CERT_FILE") as caught:
        HttpSource(server.url("/a.bin"), HttpSettings(ca_file=str(stranger.bundle))).open(0)
    assert caught.value.kind is ErrorKind.UNTRUSTED
    assert server.requests == []


@pytest.mark.parametrize("options", [{"hosts": ["other.example"]}, {"days": -1}])
def test_a_certificate_for_another_host_or_out_of_date_is_not_trusted(
    authority: Authority, settings: HttpSettings, options: dict[str, object]
) -> None:
    with Misbehaving({"/a.bin": CONTENT}, authority.issue("bad", **options)) as server:  # type: ignore[arg-type]
        with pytest.raises(SourceError) as caught:
            HttpSource(server.url("/a.bin"), settings).open(0)
        assert caught.value.kind is ErrorKind.UNTRUSTED
        assert server.requests == []


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_certificates_that_cannot_be_read_are_reported_and_no_server_is_trusted(
    server: Misbehaving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    path = tmp_path / "bundle.pem"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    with pytest.raises(SourceError, match=str(path)) as caught:
        HttpSource(server.url("/a.bin")).open(0)
    assert caught.value.kind is ErrorKind.UNTRUSTED


def test_a_server_that_responds_to_https_in_plain_http_is_nonsense(settings: HttpSettings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def respond() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=respond)
        thread.start()
        with pytest.raises(SourceError, match="does not speak TLS") as caught:
            HttpSource("https://127.0.0.1:%d/a" % listener.getsockname()[1], settings).open(0)
        thread.join(30)
    assert caught.value.kind is ErrorKind.NONSENSE


def test_a_server_that_never_starts_tls_is_no_answer_in_bounded_time() -> None:
    with Misbehaving({}) as plain, pytest.raises(SourceError, match="the TLS handshake timed out") as caught:
        HttpSource(plain.url("/a").replace("http:", "https:"), HttpSettings(connect_timeout=0.3)).open(0)
    assert caught.value.kind is ErrorKind.NO_ANSWER


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        (Behaviour(stall_after=70_001), ErrorKind.STALL),
        (Behaviour(reset_after=70_001), ErrorKind.RESET),
        (Behaviour(close_after=70_001), ErrorKind.RESET),
        (Behaviour(close_after=70_001, chunked=True), ErrorKind.RESET),
    ],
)
def test_a_body_that_stops_early_over_tls_delivers_all_its_bytes_and_names_the_cause(
    server: Misbehaving, settings: HttpSettings, behaviour: Behaviour, kind: ErrorKind
) -> None:
    server.plan(behaviour)
    received = bytearray()
    with pytest.raises(SourceError) as caught:
        read(HttpSource(server.url("/a.bin"), settings), into=received)
    assert caught.value.kind is kind
    assert received == CONTENT[:70_001]


def test_closing_from_another_thread_wakes_a_read_and_never_returns_ciphertext(
    server: Misbehaving, authority: Authority
) -> None:
    server.plan(Behaviour(stall_after=10))
    settings = HttpSettings(stall_timeout=60, ca_file=str(authority.bundle))
    body = HttpSource(server.url("/a.bin"), settings).open(0)
    buffer = memoryview(bytearray(10))
    assert body.read_into(buffer) == 10
    received: list[object] = []

    def wait() -> None:
        try:
            received.append(body.read_into(memoryview(bytearray(100))))
        except SourceError as error:
            received.append(error.kind)

    reader = threading.Thread(target=wait)
    reader.start()
    body.close()
    reader.join(30)
    assert received == [ErrorKind.RESET]


# Tokens


def test_a_token_is_sent_to_its_host_and_read_again_for_each_request(
    server: Misbehaving, settings: HttpSettings, token_file: Path
) -> None:
    source = HttpSource(server.url("/a.bin"), settings, Tokens(("127.0.0.1",), file=str(token_file)))
    read(source)
    token_file.write_text("renewed")
    source.version()

    assert authorizations(server) == ["Bearer " + SECRET, "Bearer renewed"]


def test_a_token_is_not_sent_to_a_host_it_is_not_for(
    server: Misbehaving, settings: HttpSettings, token_file: Path
) -> None:
    for hosts in ((), ("other.example",), ("127.0.0.1:1",), ("0.0.1",), ("*.0.0.1:1",)):
        read(HttpSource(server.url("/a.bin"), settings, Tokens(hosts, file=str(token_file))))

    assert set(authorizations(server)) == {""}


def test_a_token_is_not_passed_on_to_a_redirects_other_host(
    server: Misbehaving, certificate: Certificate, settings: HttpSettings, token_file: Path
) -> None:
    with Misbehaving({"/b": CONTENT}, certificate) as other:
        tokens = Tokens(("127.0.0.1:%d" % server.port,), file=str(token_file))
        server.always(Behaviour(redirect=other.url("/b", "localhost")))
        read(HttpSource(server.url("/a.bin"), settings, tokens))
        HttpSource(server.url("/a.bin"), settings, tokens).version()
        assert authorizations(other) == ["", ""]
        assert set(authorizations(server)) == {"Bearer " + SECRET}

        both = Tokens((*tokens.hosts, "localhost"), file=str(token_file))
        read(HttpSource(server.url("/a.bin"), settings, both))
        assert authorizations(other)[-1] == "Bearer " + SECRET


def test_no_token_over_plain_http_even_to_its_own_host(settings: HttpSettings, token_file: Path) -> None:
    with Misbehaving({"/a.bin": CONTENT}) as plain:
        tokens = Tokens(("127.0.0.1",), file=str(token_file))
        read(HttpSource(plain.url("/a.bin"), settings, tokens))
        plain.plan(Behaviour(status=401))
        with pytest.raises(SourceError, match="requires https"):
            HttpSource(plain.url("/a.bin"), settings, tokens).open(0)
        send_request("GET", Url.parse(plain.url("/a.bin")), {}, settings, "Bearer " + SECRET).close()
        assert authorizations(plain) == ["", "", ""]


def test_a_redirect_from_https_to_plain_http_is_not_followed(
    server: Misbehaving, settings: HttpSettings, token_file: Path
) -> None:
    with Misbehaving({"/a.bin": CONTENT}) as plain:
        server.plan(Behaviour(redirect=plain.url("/a.bin")))
        with pytest.raises(SourceError, match="plain http") as caught:
            HttpSource(server.url("/a.bin"), settings, Tokens(("127.0.0.1",), file=str(token_file))).open(0)
        assert caught.value.kind is ErrorKind.UNTRUSTED
        assert plain.requests == []


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour(status=401, headers=(("WWW-Authenticate", "Bearer " + SECRET),)),
        Behaviour(rubbish=b"Bearer " + SECRET.encode()),
        Behaviour(redirect="https://%s.invalid/?%s" % ("x", SECRET)),
        Behaviour(status=302, headers=(("Location", "gopher:" + SECRET),)),
        Behaviour(close_after=10, headers=(("ETag", SECRET),)),
        Behaviour(headers=(("Content-Encoding", SECRET + "0123456789"),)),
        Behaviour(chunked=True, trailers=(("X-Transfer-Status", "500: %s0123456789" % SECRET),)),
    ],
)
def test_a_token_is_in_no_error_name_or_repr(
    server: Misbehaving, settings: HttpSettings, token_file: Path, behaviour: Behaviour
) -> None:
    server.plan(behaviour)
    tokens = Tokens(("127.0.0.1",), file=str(token_file))
    source = HttpSource(server.url("/a.bin"), settings, tokens)
    with pytest.raises(SourceError) as caught:
        read(source)

    error = caught.value
    shown = [str(error), repr(error), error.source, source.name, repr(source), repr(tokens)]
    shown += [repr(error.__cause__), repr(tokens.token_for("127.0.0.1", 443))]
    assert SECRET not in " ".join(shown)
    assert server.requests[0].headers["authorization"] == "Bearer " + SECRET


def test_an_expired_token_is_reported_before_a_request_is_sent(
    server: Misbehaving, settings: HttpSettings, token_file: Path
) -> None:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": time.time() - 7300}).encode()).decode().rstrip("=")
    token_file.write_text("e30.%s.c2ln" % claims)
    with pytest.raises(SourceError, match="expired 2 h ago") as caught:
        HttpSource(server.url("/a.bin"), settings, Tokens(("127.0.0.1",), file=str(token_file))).open(0)
    assert caught.value.kind is ErrorKind.REFUSED
    assert str(token_file) in str(caught.value)
    assert server.requests == []


def test_a_token_file_that_others_can_read_is_refused_before_a_request_is_sent(
    server: Misbehaving, settings: HttpSettings, token_file: Path
) -> None:
    token_file.chmod(0o644)
    with pytest.raises(SourceError, match="chmod 600") as caught:
        HttpSource(server.url("/a.bin"), settings, Tokens(("127.0.0.1",), file=str(token_file))).open(0)
    assert caught.value.kind is ErrorKind.REFUSED
    assert server.requests == []


# Proxies


def test_https_goes_through_the_proxy_unread(
    server: Misbehaving, settings: HttpSettings, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy() as proxy:
        monkeypatch.setenv("https_proxy", "http://user:pass%%40word@%s" % proxy.address)
        source = HttpSource(server.url("/a.bin"), settings, Tokens(("127.0.0.1",), file=str(token_file)))
        assert read(source) == CONTENT

    assert [request.line for request in proxy.requests] == ["CONNECT 127.0.0.1:%d HTTP/1.1" % server.port]
    assert base64.b64encode(b"user:pass@word").decode() in proxy.requests[0].head
    assert SECRET not in proxy.requests[0].head
    assert "proxy-authorization" not in server.requests[0].headers


def test_plain_http_requests_the_full_url_from_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with Misbehaving({"/a.bin": CONTENT}) as plain, Proxy() as proxy:
        monkeypatch.setenv("http_proxy", proxy.address)
        assert read(HttpSource(plain.url("/a.bin"))) == CONTENT
    assert [request.line for request in proxy.requests] == ["GET %s HTTP/1.1" % plain.url("/a.bin")]


@pytest.mark.parametrize(("status", "kind"), [(407, ErrorKind.PROXY_REFUSED), (502, ErrorKind.NO_ANSWER)])
def test_a_proxy_that_refuses_is_named_without_its_password(
    server: Misbehaving, settings: HttpSettings, monkeypatch: pytest.MonkeyPatch, status: int, kind: ErrorKind
) -> None:
    with Proxy(refuses=status) as proxy:
        monkeypatch.setenv("https_proxy", "http://user:sesame@%s" % proxy.address)
        with pytest.raises(SourceError, match="the proxy " + proxy.address) as caught:
            HttpSource(server.url("/a.bin"), settings).open(0)
    assert caught.value.kind is kind
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(("user", "problem"), [("", "requires a"), ("user:sesame@", "does not accept the")])
def test_a_proxy_that_requires_a_password_is_answered_with_how_to_set_it(
    server: Misbehaving,
    settings: HttpSettings,
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
    user: str,
    problem: str,
) -> None:
    with Misbehaving({"/a.bin": CONTENT}) as plain, Proxy(refuses=407) as proxy:
        monkeypatch.setenv(f"{scheme}_proxy", f"http://{user}{proxy.address}")
        url = (server if scheme == "https" else plain).url("/a.bin")
        with pytest.raises(SourceError) as caught:
            HttpSource(url, settings).open(0)
        advice = f"user and password in ${scheme}_proxy: set it to http://USER:PASSWORD@{proxy.address}"
    assert caught.value.kind is ErrorKind.PROXY_REFUSED
    assert f"{problem} {advice}" in str(caught.value)
    assert "token" not in str(caught.value)
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize("exempt", ["*", "127.0.0.1", "example.org, 127.0.0.0/8"])
def test_a_host_in_no_proxy_is_contacted_directly(
    server: Misbehaving, settings: HttpSettings, monkeypatch: pytest.MonkeyPatch, exempt: str
) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", exempt)

    assert read(HttpSource(server.url("/a.bin"), settings)) == CONTENT


class _Trickling:
    """A TLS socket that reads one byte at a time and never completes a record."""

    def __init__(self, plain: socket.socket) -> None:
        self.fileno, self.settimeout, self.close = plain.fileno, plain.settimeout, plain.close
        self._plain = plain

    def recv_into(self, buffer: memoryview) -> int:
        self._plain.recv(1)
        raise ssl.SSLWantReadError


def test_parts_of_a_record_that_trickle_in_do_not_postpone_a_stall() -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(bytes(100_000))
    connection = Connection(_Trickling(ours), "host")  # type: ignore[arg-type]
    connection._is_tls = True
    with theirs, pytest.raises(socket.timeout):
        connection.receive_into(memoryview(bytearray(10)), 0.01)
    assert ours.recv(1), "it did not wait for all bytes"
    ours.close()

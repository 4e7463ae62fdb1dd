"""One request, one body: the right bytes, or an error of the right kind that names the host and the cause."""

from __future__ import annotations

import contextlib
import gzip
import socket
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from typing import Any

import pytest

from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.node.staging.file_version import FileVersion
from outlast.node.staging.http import connect
from outlast.node.staging.http.body import HttpBody
from outlast.node.staging.http.connect import is_local_address
from outlast.node.staging.http.http_settings import MAX_REDIRECTS, HttpSettings
from outlast.node.staging.http.request import Response
from outlast.node.staging.sources.http_source import HttpSource
from servers.behaviour import PELICAN, Behaviour, digest_bytes, rfc3230, rfc9530, seeded
from servers.misbehaving import Misbehaving
from servers.proxy import Proxy
from support.clusters import not_here

CONTENT = seeded(300_000)
QUICK = HttpSettings(connect_timeout=5, first_byte_timeout=0.3, stall_timeout=0.3)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def server() -> Iterator[Misbehaving]:
    with Misbehaving({"/a.bin": CONTENT, "/empty": b""}) as running:
        yield running


def read(body: HttpBody, size: int = 10_000) -> bytes:
    """Read the whole body. The bytes before an error are in its `received`."""
    buffer, found = memoryview(bytearray(size)), bytearray()
    try:
        while count := body.read_into(buffer):
            found += buffer[:count]
    except SourceError as error:
        error.received = bytes(found)  # type: ignore[attr-defined]
        raise
    finally:
        body.close()
    return bytes(found)


def source(server: Misbehaving, *behaviours: Behaviour, path: str = "/a.bin") -> HttpSource:
    server.plan(*behaviours)
    return HttpSource(server.url(path), QUICK)


def error_when_opened(server: Misbehaving, behaviour: Behaviour, start: int = 0) -> SourceError:
    with pytest.raises(SourceError) as caught:
        source(server, behaviour).open(start)
    assert caught.value.source == server.url("/a.bin")
    assert "127.0.0.1:%d" % server.port in caught.value.detail
    return caught.value


def error_when_read(server: Misbehaving, behaviour: Behaviour, start: int = 0) -> tuple[SourceError, bytes]:
    body = source(server, behaviour).open(start)
    with pytest.raises(SourceError) as caught:
        read(body)
    assert caught.value.source == server.url("/a.bin")
    return caught.value, caught.value.received  # type: ignore[attr-defined]


def resolve_to_ports(monkeypatch: pytest.MonkeyPatch, *ports: int) -> None:
    """Resolve every name to loopback addresses that differ only in their port."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in ports]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)


# Bytes that arrive


@pytest.mark.parametrize("behaviour", [Behaviour(), Behaviour(chunked=True), Behaviour(rate=3_000_000)])
def test_a_file_arrives_unchanged(server: Misbehaving, behaviour: Behaviour) -> None:
    assert read(source(server, behaviour).open(0)) == CONTENT


@pytest.mark.parametrize("behaviour", [Behaviour(), Behaviour(chunked=True), Behaviour(ignore_range=True)])
@pytest.mark.parametrize(
    ("start", "stop"), [(0, 1), (0, 70_000), (5, 100_000), (299_999, None), (7, 300_000)]
)
def test_a_range_is_exactly_the_requested_one_or_begins_at_0(
    server: Misbehaving, behaviour: Behaviour, start: int, stop: int | None
) -> None:
    body = source(server, behaviour).open(start, stop)

    assert body.start == (0 if behaviour.ignore_range else start)
    assert read(body) == CONTENT[body.start : stop]


def test_a_range_at_the_end_of_the_file_is_empty_and_has_the_size(server: Misbehaving) -> None:
    body = source(server).open(300_000)

    assert (read(body), body.version.size) == (b"", 300_000)


def test_an_empty_file_is_an_empty_body(server: Misbehaving) -> None:
    assert read(source(server, path="/empty").open(0)) == b""


def test_the_response_has_the_size_and_the_version(server: Misbehaving) -> None:
    for body in (source(server).open(0), source(server).open(10, 20)):
        body.close()
        assert body.version.size == 300_000
        assert body.version.etag.startswith('"')
        assert body.version.modified == "Mon, 06 Jul 2026 10:00:00 GMT"


def test_a_weak_etag_is_ignored(server: Misbehaving) -> None:
    body = source(server, Behaviour(headers=(("ETag", 'W/"1"'),))).open(0)
    body.close()

    assert body.version.etag == ""


def test_a_file_arrives_over_ipv6() -> None:
    if not socket.has_ipv6:
        not_here("no IPv6 here")
    with Misbehaving({"/a": b"abc"}, host="::1") as server:
        assert read(HttpSource(server.url("/a"), QUICK).open(0)) == b"abc"


def test_an_address_that_refuses_does_not_hide_one_that_accepts(
    server: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as once:
        closed = once.getsockname()[1]
    resolve_to_ports(monkeypatch, closed, server.port)

    assert read(HttpSource("http://two.example/a.bin", QUICK).open(0)) == CONTENT


# Errors


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        (Behaviour(silent=True), ErrorKind.NO_ANSWER),
        (Behaviour(rubbish=b"220 ready\r\n"), ErrorKind.NONSENSE),
        (Behaviour(rubbish=b"\n" * 70_000), ErrorKind.NONSENSE),
        (Behaviour(rubbish=b"HTTP/1.1 200 OK\r\nno header\r\n\r\n"), ErrorKind.NONSENSE),
        (Behaviour(rubbish=b"HTTP/1.1 200 OK\r\nContent-Le"), ErrorKind.TRUNCATED),
        (Behaviour(rubbish=b"HTTP/1.1 100 Continue\r\n\r\n" * 50), ErrorKind.NONSENSE),
        (Behaviour(endless_headers=True), ErrorKind.NONSENSE),
        (Behaviour(status=500), ErrorKind.SERVER_ERROR),
        (Behaviour(status=502), ErrorKind.SERVER_ERROR),
        (Behaviour(status=503), ErrorKind.SERVER_ERROR),
        (Behaviour(status=503, headers=(("Retry-After", "7"),)), ErrorKind.BUSY),
        (Behaviour(status=429), ErrorKind.BUSY),
        (Behaviour(status=401), ErrorKind.REFUSED),
        (Behaviour(status=407), ErrorKind.PROXY_REFUSED),
        (Behaviour(status=403, server=PELICAN), ErrorKind.REFUSED),
        (Behaviour(status=404), ErrorKind.MISSING_FOR_NOW),
        (Behaviour(status=404, server=""), ErrorKind.MISSING_FOR_NOW),
        (Behaviour(status=404, server=PELICAN), ErrorKind.MISSING),
        (Behaviour(status=410), ErrorKind.MISSING),
        (Behaviour(status=418), ErrorKind.SERVER_ERROR),
        (Behaviour(status=204), ErrorKind.SERVER_ERROR),
        (Behaviour(gzip=True), ErrorKind.NONSENSE),
        (Behaviour(until_close=True), ErrorKind.NONSENSE),
        (Behaviour(headers=(("Content-Length", "many"),)), ErrorKind.NONSENSE),
        (Behaviour(headers=(("Content-Length", "5, 6"),)), ErrorKind.NONSENSE),
        (Behaviour(headers=(("Transfer-Encoding", "gzip, chunked"),)), ErrorKind.NONSENSE),
        (Behaviour(redirect="ftp://127.0.0.1/a"), ErrorKind.NONSENSE),
        (Behaviour(status=302), ErrorKind.NONSENSE),
    ],
)
def test_each_response_without_data_has_its_error_kind(
    server: Misbehaving, behaviour: Behaviour, kind: ErrorKind
) -> None:
    assert error_when_opened(server, behaviour).kind is kind


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        (Behaviour(other_range=5), ErrorKind.NONSENSE),
        (Behaviour(headers=(("Content-Range", "bytes 0-299999/300000"),)), ErrorKind.NONSENSE),
        (Behaviour(headers=(("Content-Range", "furlongs 1-2/3"),)), ErrorKind.NONSENSE),
        (Behaviour(announce=3), ErrorKind.NONSENSE),
        (Behaviour(announce=-3), ErrorKind.NONSENSE),
        (Behaviour(status=416, headers=(("Content-Range", "bytes */50"),)), ErrorKind.CHANGED),
        (Behaviour(status=416), ErrorKind.NONSENSE),
    ],
)
def test_another_range_than_requested_is_rejected(
    server: Misbehaving, behaviour: Behaviour, kind: ErrorKind
) -> None:
    assert error_when_opened(server, behaviour, start=100).kind is kind


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("start", [0, 1000])
def test_a_body_that_stops_early_delivers_all_its_bytes_and_names_the_cause(
    server: Misbehaving, chunked: bool, start: int
) -> None:
    for behaviour, kind in (
        (Behaviour(stall_after=70_001, chunked=chunked), ErrorKind.STALL),
        (Behaviour(reset_after=70_001, chunked=chunked), ErrorKind.RESET),
        (Behaviour(close_after=70_001, chunked=chunked), ErrorKind.TRUNCATED),
    ):
        error, received = error_when_read(server, behaviour, start)
        assert error.kind is kind
        assert received == CONTENT[start : start + 70_001]
        assert " after 70001 " in error.detail


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        (Behaviour(announce=10), ErrorKind.TRUNCATED),
        (Behaviour(chunked=True, no_last_chunk=True), ErrorKind.TRUNCATED),
        (
            Behaviour(chunked=True, trailers=(("X-Transfer-Status", "500: disk on fire"),)),
            ErrorKind.SERVER_ERROR,
        ),
        (
            Behaviour(rubbish=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
            ErrorKind.NONSENSE,
        ),
        (
            Behaviour(
                rubbish=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcde\r\n0\r\n\r\n"
            ),
            ErrorKind.NONSENSE,
        ),
        (
            Behaviour(rubbish=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;" + b"x" * 9000),
            ErrorKind.NONSENSE,
        ),
    ],
)
def test_an_incomplete_body_never_ends_like_a_complete_one(
    server: Misbehaving, behaviour: Behaviour, kind: ErrorKind
) -> None:
    assert error_when_read(server, behaviour)[0].kind is kind


def test_a_range_that_is_shorter_than_requested_is_read_and_then_truncated(server: Misbehaving) -> None:
    response = b"HTTP/1.1 206 Partial\r\nContent-Range: bytes 2-4/9\r\nContent-Length: 3\r\n\r\nabc"

    error, received = error_when_read(server, Behaviour(rubbish=response), start=2)

    assert (error.kind, received) == (ErrorKind.TRUNCATED, b"abc")


@pytest.mark.parametrize(
    ("ending", "kind"),
    [
        (b"0\r\nX-Transfer-Status: 500: no\r\n\r\n", ErrorKind.SERVER_ERROR),
        (b"1\r\nd\r\n0\r\n\r\n", ErrorKind.NONSENSE),
        (b"", ErrorKind.TRUNCATED),
    ],
)
def test_a_chunked_range_does_not_end_before_its_trailers_have_been_read(
    server: Misbehaving, ending: bytes, kind: ErrorKind
) -> None:
    head = b"HTTP/1.1 206 Partial\r\nContent-Range: bytes 2-4/5\r\nTransfer-Encoding: chunked\r\n\r\n"

    error, received = error_when_read(server, Behaviour(rubbish=head + b"3\r\nabc\r\n" + ending), start=2)

    assert (error.kind, received) == (kind, b"abc")


def test_more_than_was_announced_is_not_read(server: Misbehaving) -> None:
    assert read(source(server, Behaviour(announce=-10)).open(0)) == CONTENT[:-10]


def test_the_text_of_a_trailer_is_shown_without_what_looks_like_a_secret(server: Misbehaving) -> None:
    status = "500: disk on fire, token %s" % ("aB3." * 20)
    error, _ = error_when_read(server, Behaviour(chunked=True, trailers=(("X-Transfer-Status", status),)))

    assert "500: disk on fire" in str(error)
    assert "aB3." not in str(error)


def test_a_good_trailer_ends_the_body(server: Misbehaving) -> None:
    good = Behaviour(chunked=True, trailers=(("X-Transfer-Status", "200: OK"),))

    assert read(source(server, good).open(0)) == CONTENT


def test_trailers_are_requested_only_if_enabled_and_never_with_a_range(
    server: Misbehaving,
) -> None:
    with_trailers = HttpSource(server.url("/a.bin"), QUICK, trailers=True)
    for body in (source(server).open(0), with_trailers.open(0), with_trailers.open(5)):
        body.close()

    requested = [
        (request.headers.get("x-transfer-status"), request.headers.get("te")) for request in server.requests
    ]
    assert requested == [(None, None), ("true", "trailers"), (None, None)]


def test_a_body_of_unknown_length_is_accepted_if_that_is_allowed(server: Misbehaving) -> None:
    server.plan(Behaviour(until_close=True))
    settings = HttpSettings(allow_unknown_length=True)

    assert read(HttpSource(server.url("/a.bin"), settings).open(0)) == CONTENT


def test_a_compressed_file_may_be_announced_as_a_content_encoding(server: Misbehaving) -> None:
    content = gzip.compress(b"x" * 1000)
    server.put("/a.tar.gz", content)
    coding = Behaviour(headers=(("Content-Encoding", "gzip"),))

    assert read(source(server, coding, path="/a.tar.gz").open(0)) == content


def test_the_pause_that_a_busy_server_requests_is_passed_on(server: Misbehaving) -> None:
    seconds = error_when_opened(server, Behaviour(status=429, headers=(("Retry-After", "17"),)))
    later = formatdate(time.time() + 100, usegmt=True)
    date = error_when_opened(server, Behaviour(status=503, headers=(("Retry-After", later),)))
    rubbish = [
        error_when_opened(server, Behaviour(status=503, headers=(("Retry-After", value),))).retry_after
        for value in ("soon", "\xb2", "-1e9", "1, 2")
    ]

    assert seconds.retry_after == 17
    assert date.retry_after is not None and 0 < date.retry_after <= 100
    assert rubbish == [None] * 4


@pytest.mark.parametrize(
    "location", ["http://[bad", "http://a:b/", "http://a..b/", "http://.a/", "http://%s/" % ("a" * 64)]
)
def test_a_redirect_to_an_invalid_host_is_nonsense(server: Misbehaving, location: str) -> None:
    assert error_when_opened(server, Behaviour(redirect=location)).kind is ErrorKind.NONSENSE


def test_a_port_without_a_server_is_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as once:
        port = once.getsockname()[1]
    with pytest.raises(SourceError, match="connection refused") as caught:
        HttpSource("http://127.0.0.1:%d/a" % port, QUICK).open(0)
    assert caught.value.kind is ErrorKind.NO_ANSWER


@contextlib.contextmanager
def unresponsive_port() -> Iterator[int]:
    """Yield a port that neither accepts nor refuses connections, like a firewall that drops packets."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)), socket.socket() as second:
            second.setblocking(False)
            second.connect_ex(("127.0.0.1", port))
            yield port


def test_a_host_that_accepts_no_connections_is_no_answer_in_bounded_time() -> None:
    with (
        unresponsive_port() as port,
        pytest.raises(SourceError, match=r"no connection within 0\.2") as caught,
    ):
        HttpSource("http://127.0.0.1:%d/a" % port, HttpSettings(connect_timeout=0.2)).open(0)
    assert caught.value.kind is ErrorKind.NO_ANSWER


def test_an_address_that_drops_packets_does_not_hide_one_that_accepts(
    server: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    with unresponsive_port() as port:
        resolve_to_ports(monkeypatch, port, server.port)
        assert read(HttpSource("http://two.example/a.bin", QUICK).open(0)) == CONTENT


def test_a_name_service_that_does_not_respond_is_no_answer_in_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(30) and [])
    try:
        with pytest.raises(SourceError, match=r"no address for a\.example") as caught:
            HttpSource("http://a.example/a", HttpSettings(connect_timeout=0.1)).open(0)
    finally:
        over.set()
    assert caught.value.kind is ErrorKind.NO_ANSWER


def test_a_host_without_an_address_is_no_answer() -> None:
    with pytest.raises(SourceError, match=r"no address for nowhere\.invalid") as caught:
        HttpSource("http://nowhere.invalid/a", QUICK).open(0)
    assert caught.value.kind is ErrorKind.NO_ANSWER


# Redirects


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_followed_with_its_range(server: Misbehaving, status: int) -> None:
    with Misbehaving({"/b": CONTENT}) as other:
        moved = Behaviour(status=status, redirect=other.url("/b?signature=x"))
        assert read(source(server, moved).open(5, 1000)) == CONTENT[5:1000]
        assert other.requests[0].path == "/b?signature=x"


def test_a_redirect_may_be_relative(server: Misbehaving) -> None:
    assert read(source(server, Behaviour(redirect="../a.bin"), path="/x/y").open(0)) == CONTENT


def test_redirects_without_end_are_nonsense(server: Misbehaving) -> None:
    server.always(Behaviour(redirect=server.url("/a.bin")))

    assert error_when_opened(server, Behaviour(redirect=server.url("/a.bin"))).kind is ErrorKind.NONSENSE
    assert len(server.requests) == MAX_REDIRECTS + 1


def test_the_name_has_no_query_and_an_error_after_a_redirect_names_both_hosts(server: Misbehaving) -> None:
    with Misbehaving({}) as other:
        server.plan(Behaviour(redirect=other.url("/gone?key=sesame")))
        moved = HttpSource(server.url("/a.bin?key=sesame"), QUICK)
        with pytest.raises(SourceError) as caught:
            moved.open(0)

    assert moved.name == server.url("/a.bin")
    assert server.url("/a.bin") in str(caught.value) and str(other.port) in str(caught.value)
    assert "sesame" not in str(caught.value) + repr(caught.value) + repr(moved)


# The version of the file


SMALL = CONTENT[:500]


@pytest.mark.parametrize(
    ("digest_headers", "algorithms"),
    [
        ({"Digest": rfc3230(SMALL, "crc32c", hexadecimal=True)}, ["crc32c"]),
        ({"Digest": rfc3230(SMALL, "crc32c")}, ["crc32c"]),
        ({"Digest": rfc3230(SMALL, "md5") + "," + rfc3230(SMALL, "sha-256")}, ["md5", "sha256"]),
        ({"Digest": rfc3230(SMALL, "md5", hexadecimal=True)}, ["md5"]),
        ({"Repr-Digest": rfc9530(SMALL, "sha-256")}, ["sha256"]),
    ],
)
def test_digests_are_requested_and_parsed_in_every_notation(
    server: Misbehaving, digest_headers: dict[str, str], algorithms: list[str]
) -> None:
    server.put("/s", SMALL, digest_headers=digest_headers)

    found = HttpSource(server.url("/s"), QUICK).version()

    assert found.size == 500
    assert dict(found.digests) == {
        name: digest_bytes(SMALL, "sha-256" if name == "sha256" else name).hex() for name in algorithms
    }


def test_if_head_is_forbidden_a_request_for_one_byte_gets_the_size(server: Misbehaving) -> None:
    for status in (403, 405, 501):
        assert source(server, Behaviour(status=status)).version().size == 300_000


def test_the_version_of_a_missing_file_is_an_error(server: Misbehaving) -> None:
    with pytest.raises(SourceError) as caught:
        source(server, path="/none").version()
    assert caught.value.kind is ErrorKind.MISSING_FOR_NOW


def test_a_server_without_version_headers_yields_only_the_size() -> None:
    with Misbehaving({"/a": b"abc"}, etag=False) as server:
        assert HttpSource(server.url("/a"), QUICK).version() == FileVersion(size=3)


# Interrupted


def test_closing_from_another_thread_wakes_a_read(server: Misbehaving) -> None:
    server.plan(Behaviour(stall_after=10))
    body = HttpSource(server.url("/a.bin"), HttpSettings(stall_timeout=60)).open(0)
    assert body.read_into(memoryview(bytearray(10))) == 10
    woken: list[BaseException] = []

    def wait() -> None:
        try:
            body.read_into(memoryview(bytearray(10)))
        except SourceError as error:
            woken.append(error)

    reader = threading.Thread(target=wait)
    reader.start()
    body.close()
    body.close()
    reader.join(30)
    assert not reader.is_alive() and len(woken) == 1
    with pytest.raises(SourceError):
        body.read_into(memoryview(bytearray(10)))


@pytest.fixture
def elsewhere(server: Misbehaving, monkeypatch: pytest.MonkeyPatch) -> Misbehaving:
    """Let the server count as one on another machine."""
    port = int(server.url("/").rsplit(":", 1)[1].strip("/"))
    monkeypatch.setattr(Response, "is_local", property(lambda response: response.url.port != port))
    return server


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "127.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"]
)
def test_a_redirect_from_another_machine_to_this_one_is_not_followed(
    elsewhere: Misbehaving, host: str
) -> None:
    with Misbehaving({"/b": b"secret"}) as private:
        port = private.url("/").rsplit(":", 1)[1].strip("/")
        error = error_when_opened(elsewhere, Behaviour(redirect="http://%s:%s/b" % (host, port)))
        assert error.kind is ErrorKind.UNTRUSTED
        assert "this machine" in str(error)
        assert private.requests == []


def test_a_redirect_from_another_machine_to_its_link_is_not_followed(
    elsewhere: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = connect._start_connecting

    def only_to_the_server(address: Any, reason: str) -> Any:
        # Something may respond at a link-local address of the machine that runs the tests.
        return real(address, reason) if address[1][0] == "127.0.0.1" else (None, "blocked by the test")

    monkeypatch.setattr(connect, "_start_connecting", only_to_the_server)
    for host in ("169.254.169.254", "[fe80::1]"):
        error = error_when_opened(elsewhere, Behaviour(redirect="http://%s/latest" % host))
        assert error.kind is ErrorKind.UNTRUSTED


def test_a_redirect_of_a_server_on_this_machine_may_lead_to_this_machine(server: Misbehaving) -> None:
    with Misbehaving({"/b": CONTENT}) as other:
        assert read(source(server, Behaviour(redirect=other.url("/b"))).open(0)) == CONTENT


def test_a_redirect_through_a_proxy_to_this_machine_is_not_followed(
    elsewhere: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("no_proxy")
    with Proxy() as proxy:
        monkeypatch.setenv("http_proxy", proxy.address)
        error = error_when_opened(elsewhere, Behaviour(redirect="http://127.0.0.1:9/b"))
    assert error.kind is ErrorKind.UNTRUSTED
    assert len(proxy.requests) == 1


def test_addresses_of_this_machine_and_its_link_are_recognised() -> None:
    local = [
        "127.0.0.1",
        "127.8.9.10",
        "::1",
        "169.254.1.1",
        "fe80::1%eth0",
        "::ffff:127.0.0.1",
        "0.0.0.0",
        "::",
    ]
    others = ["10.0.0.1", "192.168.1.1", "8.8.8.8", "2001:db8::1", "example.org", ""]
    assert [is_local_address(address) for address in local] == [True] * len(local)
    assert [is_local_address(address) for address in others] == [False] * len(others)

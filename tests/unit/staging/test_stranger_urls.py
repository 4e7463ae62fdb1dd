"""Files whose URL a stranger chose: from listed hosts only, at public addresses, and within a size."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import socket
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.node.event_log import EventLog
from outlast.node.order import WorkOrder, read_order
from outlast.node.protocol import Outcome
from outlast.node.staging.cache.data_cache import DataCache
from outlast.node.staging.errors import ErrorKind, FetchFailed, SourceError
from outlast.node.staging.http import connect
from outlast.node.staging.http.host_rules import HostRules, is_private_address, is_private_name
from outlast.node.staging.http.http_settings import HttpSettings
from outlast.node.staging.http.url import Url
from outlast.node.staging.item import DataItem
from outlast.node.staging.phase import StagePhase, StagingFailed
from outlast.node.staging.plan import DataPlan
from outlast.node.staging.sources.http_source import HttpSource
from outlast.node.staging.stager import Stager, sources_from_plan
from servers.behaviour import Behaviour, seeded
from servers.certificates import Authority, Certificate
from servers.misbehaving import Misbehaving
from support.fetching import sha256

CONTENT = seeded(300_000)
SECRET = "k3y" * 12


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Certificate:
    return authority.issue()


@pytest.fixture
def server(certificate: Certificate) -> Iterator[Misbehaving]:
    with Misbehaving({"/a.bin": CONTENT}, certificate) as running:
        yield running


@pytest.fixture
def other(certificate: Certificate) -> Iterator[Misbehaving]:
    with Misbehaving({"/a.bin": CONTENT}, certificate) as running:
        yield running


def host(server: Misbehaving, name: str = "127.0.0.1") -> str:
    return "%s:%d" % (name, server.port)


def resolve(monkeypatch: pytest.MonkeyPatch, *answers: str) -> list[str]:
    """Resolve every name to the next of these addresses. Return a list to which each look-up is added."""
    looked_up: list[str] = []
    ahead = list(answers)

    def look_up(name: str, port: int, **_: Any) -> list[Any]:
        looked_up.append(name)
        address = ahead.pop(0) if len(ahead) > 1 else ahead[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return looked_up


def source(
    authority: Authority, url: str, hosts: tuple[str, ...], private: tuple[str, ...] = ()
) -> HttpSource:
    rules = HostRules(hosts, private)
    return HttpSource(url, HttpSettings(5.0, 5.0, 2.0, ca_file=str(authority.bundle), rules=rules))


def error_of(source: HttpSource) -> SourceError:
    with pytest.raises(SourceError) as caught:
        source.open(0)
    return caught.value


# Addresses


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.8.9.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.0.1", "169.254.169.254"),
        *("100.64.0.1", "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255"),
        *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::"),
        *("", "localhost", "127.1", "x"),
    ],
)
def test_an_address_that_is_not_public_is_recognised(address: str) -> None:
    assert is_private_address(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "8.8.8.8", "2606:4700::1111", "64:ff9b::101:101"])
def test_a_public_address_is_recognised(address: str) -> None:
    assert not is_private_address(address)


def test_a_name_is_private_only_if_that_is_certain_without_a_look_up() -> None:
    assert is_private_name("localhost") and is_private_name("a.localhost") and is_private_name("10.0.0.1")
    assert not is_private_name("example.org") and not is_private_name("1.1.1.1")


def test_only_listed_hosts_are_allowed_with_their_port_and_by_tls() -> None:
    rules = HostRules(("app.example.org", "Data.Example.org:8443"), ("127.0.0.1:8080",))
    for url in ("https://app.example.org/x", "https://data.example.org:8443/", "http://127.0.0.1:8080/x"):
        assert rules.refusal(Url.parse(url)) == ""
    for url in (
        *("https://evil.example.org/", "https://app.example.org:8443/", "http://app.example.org/"),
        *("https://127.0.0.1/", "http://127.0.0.1:8081/", "https://xapp.example.org/"),
    ):
        assert rules.refusal(Url.parse(url))
    assert HostRules(("10.0.0.1",)).refusal(Url.parse("https://10.0.0.1/x"))
    assert not HostRules((), ("10.0.0.1",)).refusal(Url.parse("https://10.0.0.1/x"))


# Connections


def test_a_listed_host_with_a_private_address_is_not_connected_to(
    authority: Authority, server: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = host(server, "app.example.org")
    resolve(monkeypatch, "127.0.0.1")
    error = error_of(source(authority, "https://%s/a.bin" % name, (name,)))
    assert error.kind is ErrorKind.FORBIDDEN and "not a public" in error.detail
    assert server.requests == []


def test_the_address_that_was_checked_is_the_one_that_is_connected_to(
    authority: Authority, server: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 127.0.0.1 stands for a public address, which a test must not connect to.
    monkeypatch.setattr(connect, "is_private_address", lambda address: address != "127.0.0.1")
    looked_up = resolve(monkeypatch, "127.0.0.1", "127.0.0.2")
    name = host(server, "localhost")
    rules = HostRules((name,))
    monkeypatch.setattr(HostRules, "refusal", lambda *_: "")
    settings = HttpSettings(5.0, 5.0, 2.0, ca_file=str(authority.bundle), rules=rules)
    source = HttpSource("https://%s/a.bin" % name, settings)
    source.open(0).close()
    assert looked_up == ["localhost"]  # not again for the connection
    assert error_of(source).kind is ErrorKind.FORBIDDEN  # now it resolves to the private one
    assert len(server.requests) == 1


def test_a_private_host_that_is_listed_as_such_may_be_read(authority: Authority, server: Misbehaving) -> None:
    source(authority, server.url("/a.bin"), (), (host(server),)).open(0).close()
    assert len(server.requests) == 1


def test_nothing_is_sent_to_a_host_that_is_not_listed(
    authority: Authority, server: Misbehaving, other: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The servers stand for public ones.
    monkeypatch.setattr(connect, "is_private_address", lambda _: False)
    server.plan(Behaviour(redirect=other.url("/a.bin")))
    error = error_of(source(authority, server.url("/x"), (), (host(server),)))
    assert error.kind is ErrorKind.FORBIDDEN and other.requests == []
    server.requests.clear()
    error = error_of(source(authority, server.url("/a.bin"), ("app.example.org",)))
    assert error.kind is ErrorKind.FORBIDDEN
    assert server.requests == []


# Redirects


def test_a_redirect_to_a_host_that_is_not_listed_is_refused(
    authority: Authority, server: Misbehaving, other: Misbehaving
) -> None:
    server.plan(Behaviour(redirect=other.url("/a.bin")))
    assert error_of(source(authority, server.url("/x"), (), (host(server),))).kind is ErrorKind.FORBIDDEN
    assert other.requests == []


def test_a_redirect_to_a_listed_host_is_followed(
    authority: Authority, server: Misbehaving, other: Misbehaving
) -> None:
    server.plan(Behaviour(redirect=other.url("/a.bin")))
    source(authority, server.url("/x"), (), (host(server), host(other))).open(0).close()
    assert len(other.requests) == 1


@pytest.mark.parametrize("location", ["/x", "file:///etc/passwd", "//169.254.169.254/x", "gopher://x/"])
def test_a_redirect_that_leads_nowhere_is_refused_for_good(
    authority: Authority, server: Misbehaving, location: str
) -> None:
    server.always(Behaviour(redirect=location))
    assert error_of(source(authority, server.url("/x"), (), (host(server),))).kind is ErrorKind.FORBIDDEN


def test_a_redirect_to_plain_http_is_refused_even_on_a_listed_host(
    authority: Authority, server: Misbehaving
) -> None:
    with Misbehaving({"/a.bin": CONTENT}) as plain:
        server.plan(Behaviour(redirect=plain.url("/a.bin")))
        error = error_of(source(authority, server.url("/x"), (), (host(server), host(plain))))
        assert error.kind is ErrorKind.FORBIDDEN and plain.requests == []


# Whole items


class Scene:
    """A data directory, a cache, and items from a server."""

    def __init__(self, folder: Path, server: Misbehaving, authority: Authority) -> None:
        self.folder = folder
        self.server = server
        self.authority = authority
        (folder / "data").mkdir()

    def item(self, path: str = "/a.bin", **fields: Any) -> DataItem:
        given = {"private_hosts": (host(self.server),), "ca_file": str(self.authority.bundle), **fields}
        return DataItem((self.server.url(path),), method="http", **given)

    def plan(self, **fields: Any) -> DataPlan:
        return DataPlan(**{"patience": 5.0, "stall": 2.0, "cache": str(self.folder / "cache"), **fields})

    def stage(self, item: DataItem, **plan: Any) -> None:
        cache = DataCache(str(self.folder / "cache"))
        Stager(self.plan(**plan), str(self.folder / "data"), cache).stage(item)

    def fail(self, item: DataItem) -> FetchFailed:
        with pytest.raises(FetchFailed) as caught:
            self.stage(item)
        assert not any(path.is_file() for path in (self.folder / "data").rglob("*"))
        return caught.value

    def largest(self) -> int:
        """Return the size of the largest file that was left behind."""
        return max((path.stat().st_size for path in self.folder.rglob("*") if path.is_file()), default=0)


@pytest.fixture
def scene(tmp_path: Path, server: Misbehaving, authority: Authority) -> Scene:
    return Scene(tmp_path, server, authority)


def test_a_file_gets_the_name_that_the_site_chose(scene: Scene) -> None:
    scene.stage(scene.item(to="page", file_name="Image.png", most=len(CONTENT)))
    assert (scene.folder / "data/page/Image.png").read_bytes() == CONTENT


@pytest.mark.parametrize("digests", [{}, sha256(CONTENT)])
def test_a_file_that_announces_too_many_bytes_is_not_read(scene: Scene, digests: dict[str, str]) -> None:
    failed = scene.fail(scene.item(most=len(CONTENT) - 1, digests=digests))
    assert (failed.cause.kind, failed.outcome) == (ErrorKind.TOO_LARGE, Outcome.CORRUPT_INPUT)
    assert scene.largest() < 10_000
    gets = [request for request in scene.server.requests if request.method == "GET"]
    assert len(gets) == bool(digests)  # without a digest, the size is known before


@pytest.mark.parametrize(
    ("digests", "behaviour"),
    [
        ({}, Behaviour(chunked=True)),
        (sha256(CONTENT), Behaviour(chunked=True)),
        # Without a digest, a body without any length is not read at all.
        (sha256(CONTENT), Behaviour(until_close=True)),
    ],
)
def test_no_byte_over_the_limit_is_written_where_no_length_is_announced(
    scene: Scene, digests: dict[str, str], behaviour: Behaviour
) -> None:
    scene.server.always(behaviour)
    failed = scene.fail(scene.item(most=100_000, digests=digests))
    assert failed.cause.kind is ErrorKind.TOO_LARGE
    assert scene.largest() <= 100_000


def test_a_file_of_exactly_the_limit_arrives(scene: Scene) -> None:
    scene.server.always(Behaviour(chunked=True))
    scene.stage(scene.item(most=len(CONTENT), digests=sha256(CONTENT)))


def bomb_zip(size: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("big.txt", bytes(size))
    return buffer.getvalue()


@pytest.mark.parametrize("archive", [bomb_zip(20_000_000), gzip.compress(bytes(20_000_000))])
def test_an_archive_that_expands_beyond_the_limit_is_refused(scene: Scene, archive: bytes) -> None:
    scene.server.put("/bomb", archive)
    failed = scene.fail(scene.item("/bomb", unpack="yes", to="book", most=1_000_000))
    assert (failed.cause.kind, failed.outcome) == (ErrorKind.BAD_ARCHIVE, Outcome.CORRUPT_INPUT)
    assert scene.largest() < 4_000_000


def test_a_link_out_of_an_archive_is_refused(scene: Scene) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("../../evil.txt", b"x")
    scene.server.put("/evil", buffer.getvalue())
    assert scene.fail(scene.item("/evil", unpack="yes", to="book")).cause.kind is ErrorKind.BAD_ARCHIVE
    assert not list(scene.folder.rglob("evil.txt"))


def test_the_token_goes_to_the_application_alone_and_only_for_items_that_need_it(
    scene: Scene, other: Misbehaving
) -> None:
    token = scene.folder / "token"
    token.write_text(SECRET)
    token.chmod(0o600)
    hosts = (host(scene.server), host(other))
    site = {"token_file": str(token), "token_hosts": (host(scene.server),)}

    scene.server.always(Behaviour(redirect=other.url("/a.bin")))
    scene.stage(scene.item("/x", private_hosts=hosts, token_scheme="Token"), **site)
    assert {one.headers.get("authorization") for one in scene.server.requests} == {"Token " + SECRET}
    assert {one.headers.get("authorization") for one in other.requests} == {None}

    scene.server.always(Behaviour())
    before = len(scene.server.requests)
    scene.stage(scene.item(token_scheme="", to="other"), **site)
    assert {one.headers.get("authorization") for one in scene.server.requests[before:]} == {None}


@pytest.mark.parametrize("url", ["file:///etc/hosts", "/etc/hosts", "osdf:///x/y"])
def test_a_restricted_item_is_read_over_http_alone(url: str) -> None:
    with pytest.raises(ValueError, match="only http and https"):
        sources_from_plan(DataPlan(), DataItem((url,), hosts=("app.example.org",)))


@pytest.mark.parametrize(
    ("fields", "kind", "lasting"),
    [
        ({"hosts": ("app.example.org",), "private_hosts": ()}, ErrorKind.FORBIDDEN, True),
        ({"most": 5}, ErrorKind.TOO_LARGE, True),
        ({"digests": {"sha256": "ab" * 32}}, ErrorKind.WRONG_DIGEST, True),
    ],
)
def test_the_log_says_by_a_field_why_a_file_did_not_arrive(
    scene: Scene, fields: dict[str, Any], kind: ErrorKind, lasting: bool
) -> None:
    log = scene.folder / "events.jsonl"
    plan = scene.plan(items=(scene.item(**fields),))
    with contextlib.closing(EventLog(str(log))) as events:
        phase = StagePhase(plan, str(scene.folder / "data"), str(scene.folder / "progress"), events)
        with pytest.raises(StagingFailed) as caught:
            phase.run(lambda: None)
    assert bool(caught.value.failure_key) is lasting
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["failed"] for line in lines if line["event"] == "data"] == [kind.value]


def test_a_work_order_carries_the_rules(tmp_path: Path) -> None:
    item = DataItem(
        ("https://a/b",),
        hosts=("a",),
        private_hosts=("b",),
        most=7,
        token_scheme="",
        file_name="x",
        ca_file="/c",
    )
    paths = dict.fromkeys(("exchange", "scratch", "checkpoints", "log"), str(tmp_path))
    order = WorkOrder("t", "e", "r", 1, ("true",), **paths, data=DataPlan(items=(item, DataItem(("/x",)))))
    path = tmp_path / "order.json"
    path.write_text(order.to_json())
    assert read_order(str(path)).data.items == order.data.items
    assert "private_hosts" not in json.loads(path.read_text())["data"]["items"][1]

"""http and https against a real nginx on loopback."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.node.staging.errors import ErrorKind, FetchFailed, SourceError
from outlast.node.staging.item import DataItem
from outlast.node.staging.sources.tokens import Tokens
from servers.behaviour import seeded
from servers.certificates import Authority
from servers.nginx import Nginx
from support.fetching import NO_TOKENS, Died, fetch_to, read_all, sources

SIZE = 5_000_000
CONTENT = seeded(SIZE)
SHA256 = {"sha256": hashlib.sha256(CONTENT).hexdigest()}


@pytest.fixture(scope="module")
def nginx(authority: Authority) -> Iterator[Nginx]:
    with Nginx(authority) as server:
        (server.files / "set.bin").write_bytes(CONTENT)
        (server.files / "empty").touch()
        yield server


@pytest.fixture
def token(nginx: Nginx, tmp_path: Path) -> Iterator[Path]:
    """A file with a token that nginx accepts until the end of the test."""
    file = tmp_path / "token"
    file.touch(mode=0o600)
    file.write_text("right.token\n")
    nginx.accept("right.token")
    yield file
    nginx.refuse("right.token")


@pytest.mark.parametrize("tls", [True, False], ids=["https", "http"])
def test_a_file_arrives_whole_and_checked(
    nginx: Nginx, authority: Authority, tmp_path: Path, tls: bool
) -> None:
    url = nginx.url("/set.bin", tls)
    receipt = fetch_to(tmp_path / "a", DataItem((url,), SHA256), sources(url, authority.bundle))
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert (receipt.vouched, receipt.checked) == ("pinned", ("sha256",))


@pytest.mark.parametrize("tls", [True, False], ids=["https", "http"])
@pytest.mark.parametrize("span", [(0, None), (1, None), (SIZE - 1, None), (SIZE, None), (1000, 2000)])
def test_every_range_is_the_requested_one(
    nginx: Nginx, authority: Authority, tls: bool, span: tuple[int, int | None]
) -> None:
    body = sources(nginx.url("/set.bin", tls), authority.bundle)[0].open(*span)
    assert body.start == span[0]
    assert body.version.size == SIZE
    assert read_all(body) == CONTENT[span[0] : span[1]]


def test_an_empty_file_is_a_file(nginx: Nginx, authority: Authority, tmp_path: Path) -> None:
    url = nginx.url("/empty")
    assert fetch_to(tmp_path / "a", DataItem((url,)), sources(url, authority.bundle)).bytes == 0
    assert (tmp_path / "a").read_bytes() == b""


def test_bytes_that_an_earlier_process_fetched_are_not_fetched_again(
    nginx: Nginx, authority: Authority, tmp_path: Path
) -> None:
    url = nginx.url("/set.bin")
    item = DataItem((url,), SHA256)

    found = sources(url, authority.bundle)
    with pytest.raises(Died):
        fetch_to(tmp_path / "a", item, found, dies_after=SIZE // 2)
    receipt = fetch_to(tmp_path / "a", item, found)
    assert receipt.resumed_from >= SIZE // 2
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert sum(share.bytes for share in receipt.sources.values()) == SIZE - receipt.resumed_from


def test_a_file_that_was_replaced_has_another_etag(nginx: Nginx, authority: Authority) -> None:
    source = sources(nginx.url("/changing"), authority.bundle)[0]
    (nginx.files / "changing").write_bytes(b"one")
    before = source.version()
    (nginx.files / "changing").write_bytes(b"three")
    assert before.etag
    assert source.version().etag not in {"", before.etag}


class TestTokens:
    def test_the_token_opens_what_is_private(self, nginx: Nginx, authority: Authority, token: Path) -> None:
        tokens = Tokens(hosts=("localhost",), file=str(token))
        source = sources(nginx.url("/private/set.bin"), authority.bundle, tokens)[0]
        assert read_all(source.open(0)) == CONTENT

    @pytest.mark.parametrize("tls", [True, False], ids=["https", "http"])
    def test_without_a_token_or_without_tls_it_is_refused(
        self, nginx: Nginx, authority: Authority, token: Path, tls: bool
    ) -> None:
        tokens = NO_TOKENS if tls else Tokens(hosts=("localhost",), file=str(token))
        with pytest.raises(SourceError, match="401") as found:
            sources(nginx.url("/private/set.bin", tls), authority.bundle, tokens)[0].open(0)
        assert found.value.kind is ErrorKind.REFUSED

    def test_a_token_that_nginx_rejects_ends_the_fetch_and_is_not_shown(
        self, nginx: Nginx, authority: Authority, token: Path, tmp_path: Path
    ) -> None:
        token.write_text("wrong.token")
        tokens = Tokens(hosts=("localhost",), file=str(token))
        url = nginx.url("/private/set.bin")
        with pytest.raises(FetchFailed) as found:
            fetch_to(tmp_path / "a", DataItem((url,), SHA256), sources(url, authority.bundle, tokens))
        assert found.value.cause.kind is ErrorKind.REFUSED
        assert "403" in str(found.value)
        assert "wrong.token" not in str(found.value)

    def test_a_token_that_others_can_read_is_not_sent(
        self, nginx: Nginx, authority: Authority, token: Path
    ) -> None:
        token.chmod(0o644)
        tokens = Tokens(hosts=("localhost",), file=str(token))
        before = len(nginx.requests)
        with pytest.raises(SourceError, match="chmod 600") as found:
            sources(nginx.url("/private/set.bin"), authority.bundle, tokens)[0].open(0)
        assert found.value.kind is ErrorKind.REFUSED
        assert len(nginx.requests) == before


def test_a_rate_limited_server_delivers_the_right_bytes(
    nginx: Nginx, authority: Authority, tmp_path: Path
) -> None:
    url = nginx.url("/capped/set.bin")
    receipt = fetch_to(tmp_path / "a", DataItem((url,), SHA256), sources(url, authority.bundle))
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert receipt.bytes == SIZE


def test_a_restarted_server_is_used_again(nginx: Nginx, authority: Authority, tmp_path: Path) -> None:
    url = nginx.url("/set.bin")
    nginx.stop()
    try:
        with pytest.raises(SourceError) as found:
            sources(url, authority.bundle)[0].open(0)
        assert found.value.kind is ErrorKind.NO_ANSWER
    finally:
        nginx.start()
    fetch_to(tmp_path / "a", DataItem((url,), SHA256), sources(url, authority.bundle))
    assert (tmp_path / "a").read_bytes() == CONTENT

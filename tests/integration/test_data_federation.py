"""osdf: and pelican: URLs against real XRootD (an origin, two caches) behind a director, on loopback.

The protocol is Pelican's, the servers are XRootD's; pelicanfs is the second opinion on both.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.node.staging.errors import ErrorKind, FetchFailed, SourceError
from outlast.node.staging.http.http_settings import HttpSettings
from outlast.node.staging.http.request import send_request
from outlast.node.staging.http.url import Url
from outlast.node.staging.item import DataItem
from outlast.node.staging.sources.http_source import HttpSource
from outlast.node.staging.sources.resolve import sources_for
from outlast.node.staging.sources.tokens import Tokens
from servers.behaviour import Behaviour, seeded
from servers.certificates import Authority
from servers.director import ORIGINS, Mood, Namespace
from servers.federation import PREFIX, Federation
from servers.misbehaving import Misbehaving
from servers.nginx import Nginx
from support.fetching import NO_TOKENS, Died, fetch_to, read_all, sources

SIZE = 3_000_000
CONTENT = seeded(SIZE)
PATH = PREFIX + "/sets/train.tar"
#: A server that does not exist: nothing listens on port 1.
DEAD = "https://localhost:1"
PELICANFS = """
import sys
from pelicanfs.core import PelicanFileSystem
sys.stdout.buffer.write(PelicanFileSystem(sys.argv[1]).cat(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def servers(authority: Authority) -> Iterator[Federation]:
    with Federation(authority) as federation:
        federation.origin.put(PATH, CONTENT)
        federation.origin.put(PREFIX + "/other.txt", b"another file\n")
        yield federation


@pytest.fixture
def federation(servers: Federation) -> Federation:
    """The federation, reset to its initial state."""
    servers.restore()
    servers.director.requests.clear()
    servers.director.moods.clear()
    servers.director.mood = Mood.WELL
    servers.director.missing.clear()
    return servers


def name_servers(federation: Federation, caches: list[str], origins: list[str] | None = None) -> Namespace:
    space = federation.director.namespaces[0]
    space.caches = caches
    if origins is not None:
        space.origins = origins
    return space


def first_kind(url: str, authority: Authority, tokens: Tokens = NO_TOKENS) -> tuple[ErrorKind, str]:
    with pytest.raises(SourceError) as found:
        sources(url, authority.bundle, tokens)[0].open(0)
    return found.value.kind, str(found.value)


def test_the_bytes_are_the_origins_and_those_that_pelicanfs_gets(
    federation: Federation, tmp_path: Path
) -> None:
    pytest.importorskip("pelicanfs", reason="it has no version for this Python")
    second_opinion = subprocess.run(
        [sys.executable, "-c", PELICANFS, federation.url(""), PATH],
        env={**os.environ, "SSL_CERT_FILE": str(federation.authority.bundle)},
        capture_output=True,
        timeout=120,
        check=True,
    ).stdout
    url = federation.url(PATH)
    receipt = fetch_to(tmp_path / "a", DataItem((url,)), sources(url, federation.authority.bundle))
    assert (tmp_path / "a").read_bytes() == second_opinion == CONTENT
    assert receipt.resumed_from == 0


def test_an_osdf_url_means_the_federation_that_the_environment_names(federation: Federation) -> None:
    for url in ("osdf://" + PATH, "osdf:/" + PATH):
        found = sources_for(
            DataItem((url,)),
            HttpSettings(ca_file=str(federation.authority.bundle)),
            NO_TOKENS,
            {"OSDF_FEDERATION_DISCOVERYURL": "https://" + federation.director.host},
        )
        assert read_all(found[0].open(0)) == CONTENT


def test_no_server_is_contacted_before_the_first_read(federation: Federation) -> None:
    found = sources(federation.url(PATH), federation.authority.bundle)
    assert len(found) == 4
    assert federation.director.requests == []
    read_all(found[0].open(0))
    read_all(found[1].open(0))
    assert [path for path, _ in federation.director.requests] == ["/.well-known/pelican-configuration", PATH]


def test_the_digest_that_xrootd_vouches_for_is_checked(federation: Federation, tmp_path: Path) -> None:
    url = federation.url(PATH)
    receipt = fetch_to(tmp_path / "a", DataItem((url,)), sources(url, federation.authority.bundle))
    assert receipt.vouched == "source"
    assert receipt.digests["md5"] == hashlib.md5(CONTENT).hexdigest()


def test_a_stale_digest_from_xrootd_is_not_trusted(federation: Federation) -> None:
    limits = HttpSettings(ca_file=str(federation.authority.bundle))
    url = federation.origin.url(PREFIX + "/other.txt")
    answer = send_request("GET", Url.parse(url), {"Want-Digest": "md5"}, limits)
    answer.close()
    assert "digest" in answer.head.headers, "XRootD answers a GET with a digest when asked for one"
    origin = sources(federation.url(PATH), federation.authority.bundle)[3]
    for _ in range(4):  # any of XRootD's connections may have kept it
        assert not origin.open(0).version.digests
    assert origin.version().digests == {"md5": hashlib.md5(CONTENT).hexdigest()}


def test_if_a_cache_is_down_the_next_one_and_then_the_origin_is_used(
    federation: Federation, tmp_path: Path
) -> None:
    url, cache, origin = federation.url(PATH), federation.caches[1].url(""), federation.origin.url("")
    for caches, giver in (([DEAD, cache], cache), ([DEAD], origin)):
        name_servers(federation, caches, [origin])
        target, found = tmp_path / str(len(caches)), sources(url, federation.authority.bundle)
        receipt = fetch_to(target, DataItem((url,)), found)
        assert target.read_bytes() == CONTENT
        assert list(receipt.sources) == [url + " (choice 2)"]
        assert found[1].name == giver + PATH
    assert federation.director.request_count(ORIGINS + PATH) == 1


def test_a_range_is_resumed_where_it_was_left_although_xrootd_has_no_etag(federation: Federation) -> None:
    for source in sources(federation.url(PATH), federation.authority.bundle):
        body = source.open(SIZE - 1_000_001)
        assert body.start == SIZE - 1_000_001
        assert body.version.size == SIZE
        assert not body.version.etag
        assert read_all(body) == CONTENT[-1_000_001:]
        assert read_all(source.open(10, 20)) == CONTENT[10:20]


def test_after_the_last_byte_there_is_nothing_and_beyond_it_another_file(federation: Federation) -> None:
    source = sources(federation.url(PATH), federation.authority.bundle)[0]
    body = source.open(SIZE)
    assert (body.start, body.version.size, read_all(body)) == (SIZE, SIZE, b"")
    with pytest.raises(SourceError) as found:
        source.open(SIZE + 1)
    assert found.value.kind is ErrorKind.CHANGED


def test_bytes_that_an_earlier_process_fetched_are_not_fetched_again(
    federation: Federation, tmp_path: Path
) -> None:
    url = federation.url(PATH)
    wanted = DataItem((url,), {"sha256": hashlib.sha256(CONTENT).hexdigest()})
    for life in (SIZE // 2, SIZE):  # the second one has all of it, and cannot say so any more
        with pytest.raises(Died):
            fetch_to(tmp_path / "a", wanted, sources(url, federation.authority.bundle), dies_after=life)
        receipt = fetch_to(tmp_path / "a", wanted, sources(url, federation.authority.bundle))
        assert receipt.resumed_from >= life
        assert sum(share.bytes for share in receipt.sources.values()) == SIZE - receipt.resumed_from
        assert (tmp_path / "a").read_bytes() == CONTENT


def test_a_cache_that_dies_in_the_middle_costs_no_byte_that_came(
    federation: Federation, tmp_path: Path
) -> None:
    with Misbehaving({PATH: CONTENT}, federation.authority.issue("dying"), etag=False) as dying:
        name_servers(federation, [dying.url("", "localhost"), federation.caches[0].url("")])
        dying.always(Behaviour(close_after=2_000_000))
        url = federation.url(PATH)
        receipt = fetch_to(
            tmp_path / "a",
            DataItem((url,), {"sha256": hashlib.sha256(CONTENT).hexdigest()}),
            sources(url, federation.authority.bundle),
        )
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert sum(share.bytes for share in receipt.sources.values()) == SIZE
    assert set(receipt.costs.by_kind) <= {ErrorKind.TRUNCATED, ErrorKind.RESET}, receipt.to_dict()
    assert receipt.costs.by_kind


def test_an_error_in_the_trailer_is_an_error_of_the_server(federation: Federation) -> None:
    with Misbehaving({PATH: CONTENT[:5000]}, federation.authority.issue("trailing")) as cache:
        name_servers(federation, [cache.url("", "localhost")])
        cache.plan(Behaviour(chunked=True, trailers=(("X-Transfer-Status", "500: origin went away"),)))
        body = sources(federation.url(PATH), federation.authority.bundle)[0].open(0)
        with pytest.raises(SourceError, match="origin went away") as found:
            read_all(body)
        asked = cache.requests[0].headers
    assert found.value.kind is ErrorKind.SERVER_ERROR
    assert {key.lower(): value for key, value in asked.items()}["x-transfer-status"] == "true"


def test_a_restarting_director_is_waited_for(federation: Federation, tmp_path: Path) -> None:
    federation.director.moods.extend([Mood.RESTARTING] * 12 + [Mood.BUSY] * 2 + [Mood.BROKEN])
    url = federation.url(PATH)
    receipt = fetch_to(tmp_path / "a", DataItem((url,)), sources(url, federation.authority.bundle))
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert receipt.costs.by_kind[ErrorKind.MISSING_FOR_NOW].count >= 12
    assert receipt.costs.by_kind[ErrorKind.BUSY].count >= 1


@pytest.mark.parametrize(
    ("mood", "kind"),
    [
        (Mood.RESTARTING, ErrorKind.MISSING_FOR_NOW),
        (Mood.BUSY, ErrorKind.BUSY),
        (Mood.BROKEN, ErrorKind.SERVER_ERROR),
    ],
)
@pytest.mark.parametrize("healthy_requests", [0, 1], ids=["discovery", "director"])
def test_trouble_of_the_director_is_passing(
    federation: Federation, mood: Mood, kind: ErrorKind, healthy_requests: int
) -> None:
    federation.director.moods.extend([Mood.WELL] * healthy_requests)
    federation.director.mood = mood
    assert first_kind(federation.url(PATH), federation.authority)[0] is kind


def test_what_the_director_does_not_know_is_missing_at_once(federation: Federation, tmp_path: Path) -> None:
    federation.director.missing.add(PREFIX + "/absent")
    url = federation.url(PREFIX + "/absent")
    with pytest.raises(FetchFailed) as found:
        fetch_to(tmp_path / "a", DataItem((url,)), sources(url, federation.authority.bundle))
    assert found.value.cause.kind is ErrorKind.MISSING
    assert found.value.outcome.value == "not-found"
    assert not (tmp_path / "a").exists()


def test_what_xrootd_does_not_have_may_be_there_yet(federation: Federation) -> None:
    for source in sources(federation.url(PREFIX + "/not-yet"), federation.authority.bundle):
        with pytest.raises(SourceError) as found:
            source.open(0)
        assert found.value.kind is ErrorKind.MISSING_FOR_NOW


def test_the_director_is_asked_again_when_all_that_it_named_have_failed(federation: Federation) -> None:
    name_servers(federation, [DEAD])
    source = sources(federation.url(PATH), federation.authority.bundle)[0]
    with pytest.raises(SourceError):
        source.open(0)
    federation.restore()
    assert read_all(source.open(0)) == CONTENT
    assert federation.director.request_count(PATH) == 2


def test_directread_asks_the_origin_alone_and_is_passed_on_but_not_shown(federation: Federation) -> None:
    found = sources(federation.url(PATH) + "?directread&key=hidden", federation.authority.bundle)
    assert len(found) == 1
    assert read_all(found[0].open(0)) == CONTENT
    assert found[0].name == federation.origin.url(PATH)
    assert federation.director.request_count(ORIGINS + PATH) == 1


def test_a_description_over_plain_http_is_not_asked_for_and_a_director_without_tls_not_believed(
    federation: Federation,
) -> None:
    federation.director.endpoint = "http://%s/" % federation.director.host
    try:
        kind, words = first_kind(federation.url(PATH), federation.authority)
    finally:
        federation.director.endpoint = None
    assert kind is ErrorKind.NONSENSE
    assert "https" in words


def test_a_federation_whose_certificate_proves_nothing_is_not_trusted(
    federation: Federation, tmp_path: Path
) -> None:
    kind, _ = first_kind(federation.url(PATH), Authority(tmp_path))
    assert kind is ErrorKind.UNTRUSTED


@pytest.mark.parametrize(
    "answer",
    [Behaviour(status=404, server="XrootD/v5.5.3"), Behaviour(silent=True)],
    ids=["404 for want of a digest", "the digest takes too long"],
)
def test_a_cache_that_gives_no_digest_still_says_the_size(federation: Federation, answer: Behaviour) -> None:
    with Misbehaving({PATH: CONTENT[:5000]}, federation.authority.issue("ignorant")) as cache:
        name_servers(federation, [cache.url("", "localhost")])
        cache.plan(answer)
        version = sources(federation.url(PATH), federation.authority.bundle, seconds=1.0)[0].version()
    assert version.size == 5000
    assert not version.digests


class TestTokens:
    """A namespace that needs a token, on an nginx that checks it."""

    @pytest.fixture
    def guarded(self, federation: Federation) -> Iterator[Nginx]:
        with Nginx(federation.authority) as nginx:
            (nginx.files / "set.bin").write_bytes(CONTENT[:100_000])
            federation.director.namespaces.append(
                Namespace("/private", [nginx.url("")], [nginx.url("")], requires_token=True)
            )
            yield nginx

    @staticmethod
    def token(expires_in: float) -> str:
        """A JSON Web Token as far as a client looks into it."""

        def part(text: str) -> str:
            return urlsafe_b64encode(text.encode()).decode().rstrip("=")

        return ".".join([part("{}"), part('{"exp": %d}' % (time.time() + expires_in)), "c2lnbmVk"])

    @staticmethod
    def kept(folder: Path, token: str) -> Path:
        file = folder / "token"
        file.touch(mode=0o600)
        file.write_text(token)
        return file

    def tokens(self, federation: Federation, file: Path) -> Tokens:
        return Tokens(hosts=(federation.director.host,), file=str(file))

    def test_the_federations_token_opens_what_the_director_named(
        self, federation: Federation, guarded: Nginx, tmp_path: Path
    ) -> None:
        token = self.token(3600)
        guarded.accept(token)
        tokens = self.tokens(federation, self.kept(tmp_path, token))
        url = federation.url("/private/set.bin")
        fetch_to(tmp_path / "a", DataItem((url,)), sources(url, federation.authority.bundle, tokens))
        assert (tmp_path / "a").read_bytes() == CONTENT[:100_000]
        assert {header for _, header in federation.director.requests} == {""}

    def test_without_or_with_a_wrong_token_it_is_refused_in_words_without_the_token(
        self, federation: Federation, guarded: Nginx, tmp_path: Path
    ) -> None:
        url = federation.url("/private/set.bin")
        assert first_kind(url, federation.authority)[0] is ErrorKind.REFUSED
        token = self.token(3600)
        tokens = self.tokens(federation, self.kept(tmp_path, token))
        kind, words = first_kind(url, federation.authority, tokens)
        assert kind is ErrorKind.REFUSED
        assert token not in words
        expired = self.tokens(federation, self.kept(tmp_path, self.token(-86400)))
        kind, words = first_kind(url, federation.authority, expired)
        assert kind is ErrorKind.REFUSED
        assert "expired" in words

    def test_a_token_that_was_renewed_is_read_again(
        self, federation: Federation, guarded: Nginx, tmp_path: Path
    ) -> None:
        file = self.kept(tmp_path, self.token(-86400))
        source = sources(
            federation.url("/private/set.bin"), federation.authority.bundle, self.tokens(federation, file)
        )[0]
        with pytest.raises(SourceError):
            source.open(0)
        renewed = self.token(3600)
        guarded.accept(renewed)
        file.write_text(renewed)
        assert read_all(source.open(0)) == CONTENT[:100_000]

    def test_a_namespace_that_needs_none_gets_none(
        self, federation: Federation, guarded: Nginx, tmp_path: Path
    ) -> None:
        token = self.token(3600)
        guarded.accept(token)
        federation.director.namespaces[-1] = dataclasses.replace(
            federation.director.namespaces[-1], requires_token=False
        )
        tokens = self.tokens(federation, self.kept(tmp_path, token))
        kind, _ = first_kind(federation.url("/private/set.bin"), federation.authority, tokens)
        assert kind is ErrorKind.REFUSED

    def test_a_token_of_another_federation_goes_nowhere(
        self, federation: Federation, guarded: Nginx, tmp_path: Path
    ) -> None:
        token = self.token(3600)
        guarded.accept(token)
        tokens = Tokens(hosts=("elsewhere.example",), file=str(self.kept(tmp_path, token)))
        kind, _ = first_kind(federation.url("/private/set.bin"), federation.authority, tokens)
        assert kind is ErrorKind.REFUSED

    def test_a_cache_without_tls_is_not_asked_where_a_token_is_needed(
        self, federation: Federation, guarded: Nginx, tmp_path: Path
    ) -> None:
        token = self.token(3600)
        guarded.accept(token)
        federation.director.namespaces[-1].caches[:] = [guarded.url("", tls=False)]
        tokens = self.tokens(federation, self.kept(tmp_path, token))
        kind, words = first_kind(federation.url("/private/set.bin"), federation.authority, tokens)
        assert kind is ErrorKind.NONSENSE
        assert "TLS" in words
        assert guarded.requests == []


def test_a_resume_over_plain_https_from_xrootd_names_the_end_that_it_needs(
    federation: Federation, tmp_path: Path
) -> None:
    source = HttpSource(federation.origin.url(PATH), HttpSettings(ca_file=str(federation.authority.bundle)))
    body = source.open(SIZE - 1000)
    assert body.start == SIZE - 1000
    got, buffer = b"", memoryview(bytearray(600))
    while count := body.read_into(buffer):
        got += bytes(buffer[:count])
    assert got == CONTENT[-1000:]

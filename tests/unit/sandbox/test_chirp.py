"""The Chirp client sends files and names unchanged, and every failure is an error with its cause."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.node.sandbox.chirp import Chirp, ChirpError
from support.chirp_server import COOKIE, Pool, chirp_server


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    with chirp_server(tmp_path / "access-point") as pool:
        yield pool


@pytest.fixture
def chirp(pool: Pool) -> Iterator[Chirp]:
    connected = Chirp.connect(pool.environ, timeout=10.0)
    assert connected is not None
    with connected:
        yield connected


def test_without_a_chirp_service_there_is_no_connection(tmp_path: Path) -> None:
    assert Chirp.connect({}) is None
    assert Chirp.connect({"_CONDOR_CHIRP_CONFIG": str(tmp_path / "none")}) is None


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20])
def test_a_file_arrives_unchanged(tmp_path: Path, pool: Pool, chirp: Chirp, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "file").write_bytes(content)
    assert chirp.send(str(tmp_path / "file"), "there") == size
    assert (pool.root / "there").read_bytes() == content
    chirp.send_bytes(content[: size // 2], "there")
    assert (pool.root / "there").read_bytes() == content[: size // 2]


@pytest.mark.parametrize(
    "name", ["with space", "with\\backslash", "tab\there", "ümläut", os.fsdecode(b"\xff")]
)
def test_a_name_arrives_unchanged(pool: Pool, chirp: Chirp, name: str) -> None:
    chirp.send_bytes(b"x", name)
    assert [path.name for path in pool.root.iterdir()] == [name]


@pytest.mark.parametrize("name", ["two\nlines", "n" * 2000])
def test_a_name_that_no_request_can_contain_is_not_sent(pool: Pool, chirp: Chirp, name: str) -> None:
    with pytest.raises(ChirpError, match="cannot be sent"):
        chirp.send_bytes(b"x", name)
    assert pool.requests == []


def test_directories_and_links_are_created_renamed_and_removed(pool: Pool, chirp: Chirp) -> None:
    chirp.make_directory("a")
    chirp.make_directory("a")
    chirp.send_bytes(b"x", "a/one")
    chirp.link("a/one", "a/two")
    chirp.rename("a/two", "a/three")
    assert sorted(chirp.list_names("a")) == ["one", "three"]
    chirp.remove("a")
    chirp.remove("a")
    assert chirp.list_names("a") == []
    assert list(pool.root.iterdir()) == []


def test_a_refusal_names_action_and_cause_and_the_connection_stays_usable(pool: Pool, chirp: Chirp) -> None:
    with pytest.raises(ChirpError, match="writing none/file: no such file") as refused:
        chirp.send_bytes(b"x", "none/file")
    assert refused.value.code == -3
    chirp.send_bytes(b"x", "file")
    assert (pool.root / "file").read_bytes() == b"x"


def test_putfile_is_never_used(tmp_path: Path, pool: Pool, chirp: Chirp) -> None:
    (tmp_path / "file").write_bytes(b"x")
    chirp.send(str(tmp_path / "file"), "there")
    chirp.send_bytes(b"", "empty")
    assert not [request for request in pool.requests if request.startswith("putfile")]


def test_a_closed_connection_is_an_error(pool: Pool, chirp: Chirp) -> None:
    pool.hang_up_at = 0
    with pytest.raises(ChirpError, match="closed the connection"):
        chirp.make_directory("a")


def test_a_starter_that_does_not_respond_is_waited_for_until_the_timeout(pool: Pool) -> None:
    pool.wait_at = "mkdir"
    connected = Chirp.connect(pool.environ, timeout=0.2)
    assert connected is not None
    with connected, pytest.raises(ChirpError, match="timed out"):
        connected.make_directory("a")


def test_another_thread_can_abort_a_waiting_request(pool: Pool, chirp: Chirp) -> None:
    pool.wait_at = "mkdir"
    caught: list[BaseException] = []

    def request() -> None:
        try:
            chirp.make_directory("a")
        except ChirpError as error:
            caught.append(error)

    thread = threading.Thread(target=request)
    thread.start()
    assert pool.waiting.wait(10)
    chirp.abandon()
    thread.join(10)
    assert len(caught) == 1


def test_a_wrong_cookie_is_refused_and_never_shown(pool: Pool, tmp_path: Path) -> None:
    config = Path(pool.environ["_CONDOR_CHIRP_CONFIG"])
    config.write_text(config.read_text().replace(COOKIE, "wrong-cookie"))
    with pytest.raises(ChirpError) as refused:
        Chirp.connect(pool.environ)
    assert "the cookie was refused" in str(refused.value)
    assert "wrong-cookie" not in str(refused.value)
    config.write_text("secret-cookie not-a-port\n")
    with pytest.raises(ChirpError) as refused:
        Chirp.connect(pool.environ)
    assert "secret" not in "%r %r" % (refused.value, refused.value.__cause__)


def test_a_number_is_set_in_the_jobs_ad(pool: Pool, chirp: Chirp) -> None:
    chirp.set_job_attribute("ChirpOutlastStep", 42)
    assert pool.attributes == {"ChirpOutlastStep": "42"}

"""Data that HTCondor brings to a job with Outlast's plugin, before the job starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.experiment_runs import Play
from contract.htcondor_harness import HTCondorRehearsal
from outlast.domain.model import Outcome
from servers.behaviour import PELICAN, Behaviour, seeded
from servers.certificates import Authority
from servers.misbehaving import Misbehaving
from support.data_experiments import FILES, HASH_DATA_KEYS, digests, found, sha256
from support.experiments import Lab

pytestmark = pytest.mark.slow
MIB = 1 << 20
CONTENT = seeded(5 * MIB)


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[HTCondorRehearsal]:
    rehearsal = HTCondorRehearsal(tmp_path)
    yield rehearsal
    rehearsal.close()


@pytest.fixture
def play(pool: HTCondorRehearsal, lab: Lab) -> Play:
    return Play(pool, lab)


@pytest.fixture
def server() -> Iterator[Misbehaving]:
    with Misbehaving({"/a.bin": CONTENT}) as one:
        yield one


def native(play: Play, url: str, patience: str = "2s", **item: Any) -> Path:
    """An experiment whose one item is fetched by the plugin."""
    profile = {"transfers": {"stall": "2s", "patience": patience}}
    play.cluster.profile_keys = {**play.cluster.profile_keys, **profile}
    return play.set(files=FILES, data=[{"url": url, "method": "native", **item}], **HASH_DATA_KEYS)


def explained(play: Play) -> str:
    return play.lab.outlast("explain", play.directory / "play").stdout


def test_the_plugin_brings_the_right_bytes_from_a_server_that_closes_and_stalls(
    play: Play, server: Misbehaving
) -> None:
    server.always(Behaviour(close_after=2 * MIB))
    server.plan(Behaviour(stall_after=MIB))
    directory = native(play, server.url("/a.bin?signed=yes"), patience="10s", sha256=sha256(CONTENT))
    play.run()
    assert found(directory, "play") == digests({"a.bin": CONTENT})
    assert [request.start for request in server.requests] == [0, MIB, 3 * MIB]
    (attempt,) = play.attempts()
    (item,) = attempt.account.data
    assert item.carried and item.bytes == len(CONTENT) and item.vouched == "pinned"
    assert {kind: cost.count for kind, cost in item.troubles.items()} == {"stall": 1, "truncated": 1}
    (booking,) = play.lab.outlast("report", directory, "--json").json["attempts"]
    # HTCondor tells whole seconds.
    assert booking["slot"] >= 1 and booking["uses"]["data trouble"] >= 1
    assert sum(booking["uses"].values()) == pytest.approx(booking["slot"], abs=1.0)
    assert "stall 1×" in explained(play) and "before the job began" in explained(play)


@pytest.mark.parametrize(
    "behaviour, pinned, outcome, told",
    [
        (Behaviour(status=404, server=PELICAN), CONTENT, Outcome.NOT_FOUND, "responds with 404 Not Found"),
        (Behaviour(), b"another file", Outcome.CORRUPT_INPUT, "its sha256 is"),
    ],
    ids=["missing", "wrong pin"],
)
def test_what_the_plugin_will_never_get_ends_the_run_after_two_attempts_with_the_cause(
    play: Play, server: Misbehaving, behaviour: Behaviour, pinned: bytes, outcome: Outcome, told: str
) -> None:
    server.always(behaviour)
    native(play, server.url("/a.bin"), sha256=sha256(pinned))
    play.run(code=1)
    assert [attempt.outcome for attempt in play.attempts()] == [outcome] * 2
    assert "the same failure twice: a.bin did not arrive" in play.explain()["reason"]
    assert told in explained(play)
    play.assert_nothing_is_left()


def test_a_source_that_is_out_for_a_while_holds_the_job_which_then_goes_on(
    play: Play, server: Misbehaving
) -> None:
    server.always(Behaviour(status=404, server=""))
    directory = native(play, server.url("/a.bin"), sha256=sha256(CONTENT))
    process = play.lab.start("run", directory)
    play.until("a release", lambda: any(attempt.releases for attempt in play.attempts()))
    server.always(Behaviour())
    play.conclude(process)
    assert found(directory, "play") == digests({"a.bin": CONTENT})
    assert [attempt.outcome for attempt in play.attempts()] == [Outcome.FINISHED]
    assert play.attempts()[0].account.in_vain >= 1


def test_the_file_with_the_token_travels_with_the_job_is_used_there_and_does_not_come_back(
    play: Play,
) -> None:
    authority = Authority(play.lab.root / "certificates")
    token = "tok-%s" % os.urandom(12).hex()
    file = play.lab.root / "token"
    file.write_text(token)
    file.chmod(0o600)
    with Misbehaving({"/a.bin": CONTENT}, authority.issue(), host="localhost") as server:
        hosts = ["localhost:%d" % server.port]
        extra = {
            "token": {"file": str(file), "hosts": hosts},
            "before": "export SSL_CERT_FILE=%s" % authority.bundle,
        }
        play.cluster.profile_keys = {**play.cluster.profile_keys, **extra}
        item = {"url": server.url("/a.bin"), "sha256": sha256(CONTENT)}
        directory = play.set(files=FILES, data=[item], **HASH_DATA_KEYS)
        play.run()
        assert {request.headers.get("authorization") for request in server.requests} == {"Bearer " + token}
    assert found(directory, "play") == digests({"a.bin": CONTENT})
    places = [path for path in play.lab.root.rglob("*") if path.is_file() and path != file]
    assert [path for path in places if token.encode() in path.read_bytes()] == []

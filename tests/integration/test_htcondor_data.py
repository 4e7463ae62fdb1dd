"""Data that HTCondor transfers with Outlast's plugin, before the job starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.experiment_runs import ClusterExperiment
from contract.htcondor_harness import HTCondorHarness
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
def pool(tmp_path: Path) -> Iterator[HTCondorHarness]:
    harness = HTCondorHarness(tmp_path)
    yield harness
    harness.close()


@pytest.fixture
def experiment(pool: HTCondorHarness, lab: Lab) -> ClusterExperiment:
    return ClusterExperiment(pool, lab)


@pytest.fixture
def server() -> Iterator[Misbehaving]:
    with Misbehaving({"/a.bin": CONTENT}) as one:
        yield one


def native(experiment: ClusterExperiment, url: str, patience: str = "2s", **item: Any) -> Path:
    """Write an experiment whose only item is fetched by the plugin; return its directory."""
    profile = {"transfers": {"stall": "2s", "patience": patience}}
    experiment.cluster.profile_keys = {**experiment.cluster.profile_keys, **profile}
    return experiment.write(files=FILES, data=[{"url": url, "method": "native", **item}], **HASH_DATA_KEYS)


def explanation(experiment: ClusterExperiment) -> str:
    return experiment.lab.outlast("explain", experiment.directory / "train").stdout


def test_the_plugin_fetches_the_right_bytes_from_a_server_that_closes_and_stalls(
    experiment: ClusterExperiment, server: Misbehaving
) -> None:
    server.always(Behaviour(close_after=2 * MIB))
    server.plan(Behaviour(stall_after=MIB))
    directory = native(experiment, server.url("/a.bin?signed=yes"), patience="10s", sha256=sha256(CONTENT))
    experiment.run()
    assert found(directory, "train") == digests({"a.bin": CONTENT})
    assert [request.start for request in server.requests] == [0, MIB, 3 * MIB]
    (attempt,) = experiment.attempts()
    (item,) = attempt.account.data
    assert item.carried and item.bytes == len(CONTENT) and item.vouched == "pinned"
    assert {kind: cost.count for kind, cost in item.troubles.items()} == {"stall": 1, "truncated": 1}
    (booking,) = experiment.lab.outlast("report", directory, "--json").json["attempts"]
    # HTCondor logs whole seconds.
    assert booking["slot"] >= 1 and booking["uses"]["data trouble"] >= 1
    assert sum(booking["uses"].values()) == pytest.approx(booking["slot"], abs=1.0)
    assert "stall 1×" in explanation(experiment) and "before the job started" in explanation(experiment)


@pytest.mark.parametrize(
    "behaviour, pinned, outcome, message",
    [
        (Behaviour(status=404, server=PELICAN), CONTENT, Outcome.NOT_FOUND, "responds with 404 Not Found"),
        (Behaviour(), b"another file", Outcome.CORRUPT_INPUT, "its sha256 is"),
    ],
    ids=["missing", "wrong pin"],
)
def test_data_that_the_plugin_can_never_get_ends_the_run_after_two_attempts_with_the_cause(
    experiment: ClusterExperiment,
    server: Misbehaving,
    behaviour: Behaviour,
    pinned: bytes,
    outcome: Outcome,
    message: str,
) -> None:
    server.always(behaviour)
    native(experiment, server.url("/a.bin"), sha256=sha256(pinned))
    experiment.run(code=1)
    assert [attempt.outcome for attempt in experiment.attempts()] == [outcome] * 2
    assert "the same failure twice: a.bin could not be fetched" in experiment.explain()["reason"]
    assert message in explanation(experiment)
    experiment.assert_nothing_is_left()


def test_a_source_that_is_unavailable_for_a_while_holds_the_job_which_is_then_released(
    experiment: ClusterExperiment, server: Misbehaving
) -> None:
    server.always(Behaviour(status=404, server=""))
    directory = native(experiment, server.url("/a.bin"), sha256=sha256(CONTENT))
    process = experiment.lab.start("run", directory)
    experiment.wait_for("a release", lambda: any(attempt.releases for attempt in experiment.attempts()))
    server.always(Behaviour())
    experiment.finish(process)
    assert found(directory, "train") == digests({"a.bin": CONTENT})
    assert [attempt.outcome for attempt in experiment.attempts()] == [Outcome.FINISHED]
    assert experiment.attempts()[0].account.in_vain >= 1


def test_the_token_file_is_transferred_with_the_job_used_there_and_not_transferred_back(
    experiment: ClusterExperiment,
) -> None:
    authority = Authority(experiment.lab.root / "certificates")
    token = "tok-%s" % os.urandom(12).hex()
    file = experiment.lab.root / "token"
    file.write_text(token)
    file.chmod(0o600)
    with Misbehaving({"/a.bin": CONTENT}, authority.issue(), host="localhost") as server:
        hosts = ["localhost:%d" % server.port]
        extra = {
            "token": {"file": str(file), "hosts": hosts},
            "before": "export SSL_CERT_FILE=%s" % authority.bundle,
        }
        experiment.cluster.profile_keys = {**experiment.cluster.profile_keys, **extra}
        item = {"url": server.url("/a.bin"), "sha256": sha256(CONTENT)}
        directory = experiment.write(files=FILES, data=[item], **HASH_DATA_KEYS)
        experiment.run()
        assert {request.headers.get("authorization") for request in server.requests} == {"Bearer " + token}
    assert found(directory, "train") == digests({"a.bin": CONTENT})
    places = [path for path in experiment.lab.root.rglob("*") if path.is_file() and path != file]
    assert [path for path in places if token.encode() in path.read_bytes()] == []

"""Jobs on every cluster get their data, and only the right bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.experiment_runs import ClusterExperiment
from outlast.domain.model import Attempt, Outcome
from servers.behaviour import Behaviour, seeded
from servers.misbehaving import Misbehaving
from support.archives import tar
from support.data_experiments import CLASSES, FILES, HASH_DATA_KEYS, digests, found, sha256
from support.experiments import states

MIB = 1 << 20
NESTED = tar(
    {
        name + ".tar": {path.split("/")[1]: data for path, data in CLASSES.items() if path.startswith(name)}
        for name in ("cat", "dog")
    }
)
PLAIN = seeded(3 * MIB, 7)
WEIGHTS = seeded(MIB, 8)
#: Bytes that a process may have received and not written when the source stalls.
BLOCK = 2 * MIB


@pytest.fixture
def server() -> Iterator[Misbehaving]:
    with Misbehaving({"/train.tar": NESTED, "/plain.bin": PLAIN, "/weights.bin": WEIGHTS}) as one:
        yield one


def test_a_training_run_sees_the_right_bytes_from_every_kind_of_source(
    experiment: ClusterExperiment, server: Misbehaving
) -> None:
    """Test a nested archive, a file from two mirrors, one of them bad, and a local file."""
    with Misbehaving({"/plain.bin": PLAIN}) as bad:
        bad.always(Behaviour(flip=(MIB,)))
        server.plan(Behaviour(close_after=100_000))
        data: list[Any] = [
            {"url": server.url("/train.tar"), "sha256": sha256(NESTED), "unpack": "nested", "to": "train"},
            {"url": [bad.url("/plain.bin"), server.url("/plain.bin")], "sha256": sha256(PLAIN)},
            {"url": "weights.bin", "sha256": sha256(WEIGHTS), "to": "models"},
        ]
        directory = experiment.write(files=FILES, data=data, **HASH_DATA_KEYS)
        (directory / "weights.bin").write_bytes(WEIGHTS)
        experiment.run()
    unpacked = {"train/" + path: content for path, content in CLASSES.items()}
    wanted = digests({**unpacked, "plain.bin": PLAIN, "models/weights.bin": WEIGHTS})
    assert found(directory, "train") == wanted
    (attempt,) = experiment.attempts()
    items = {item.name: item for item in attempt.account.data}
    assert "truncated" in items["train.tar"].troubles
    assert "wrong digest" in items["plain.bin"].troubles
    experiment.assert_nothing_is_left()


def test_jobs_killed_while_data_arrives_and_is_unpacked_resume_the_transfer(
    experiment: ClusterExperiment,
) -> None:
    """The second item is unpacked while it arrives. The server counts what was fetched twice."""
    if experiment.cluster.name == "sge":
        return  # its hosts have names of their own, and the lock of another host expires only after a minute
    big = seeded(12 * MIB, 9)
    archive = tar({"big.tar": {"big.img": big}, "cat.tar": {"0.img": PLAIN}})
    cache, scratch = experiment.lab.root / "cache", experiment.lab.root / "scratch"
    for place in (cache, scratch):
        place.mkdir()
        place.chmod(0o1777)  # a pool may run jobs as another user
    places = {"cache": str(cache), "scratch": str(scratch)}
    if experiment.cluster.name == "htcondor":
        del places["scratch"]  # HTCondor gives jobs a directory of their own
    experiment.cluster.profile_keys = {**experiment.cluster.profile_keys, **places}
    with Misbehaving({"/big.bin": big, "/train.tar": archive}) as server:
        data = [
            {"url": server.url("/big.bin"), "sha256": sha256(big)},
            {"url": server.url("/train.tar"), "sha256": sha256(archive), "unpack": "nested", "to": "train"},
        ]
        directory = experiment.write(files=FILES, data=data, **HASH_DATA_KEYS)
        server.plan(Behaviour(stall_after=9 * MIB))
        process = experiment.lab.start("run", directory)
        for most in (9 * MIB, len(big) + 9 * MIB):
            experiment.wait_for("most of it", lambda most=most: _sent(server) >= most)
            experiment.wait_for("it on disk", lambda: _size(cache) >= _sent(server) - BLOCK)
            server.plan(Behaviour(), Behaviour(stall_after=9 * MIB))
            experiment.cluster.kill_without_warning(experiment.running_job().token)
        experiment.finish(process)
    assert found(directory, "train") == digests(
        {"big.bin": big, "train/big/big.img": big, "train/cat/0.img": PLAIN}
    )
    for path, content in (("/big.bin", big), ("/train.tar", archive)):
        first, second = [request for request in server.requests if request.path == path]
        assert first.start == 0 and second.start >= first.sent - BLOCK
        assert first.sent + second.sent <= len(content) + BLOCK
    assert [path for path in (directory / "workdir").rglob("*") if path.is_file()] == []
    assert list(scratch.iterdir()) == []
    experiment.assert_nothing_is_left()


def test_twenty_runs_with_the_same_data_download_it_once(
    experiment: ClusterExperiment, server: Misbehaving
) -> None:
    if experiment.cluster.name not in ("local", "slurm"):
        return  # the cache is the same code everywhere; two clusters are enough
    data = [
        {"url": server.url("/plain.bin"), "sha256": sha256(PLAIN)},
        {"url": server.url("/train.tar"), "sha256": sha256(NESTED), "unpack": "nested", "to": "train"},
    ]
    # Slow enough for other jobs to start meanwhile.
    server.plan(Behaviour(rate=2 * MIB))
    directory = experiment.write(files=FILES, data=data, runs=20, **HASH_DATA_KEYS)
    experiment.run()
    unpacked = {"train/" + path: content for path, content in CLASSES.items()}
    wanted = digests({**unpacked, "plain.bin": PLAIN})
    assert [found(directory, run) for run in states(directory)] == [wanted] * 20
    assert [(request.path, request.sent) for request in server.requests] == [
        ("/plain.bin", len(PLAIN)),
        ("/train.tar", len(NESTED)),
    ]


def test_an_outage_of_the_source_uses_no_attempt_of_a_run_and_all_finish_after_it(
    experiment: ClusterExperiment, server: Misbehaving
) -> None:
    if experiment.cluster.name != "slurm":
        return  # tests/integration/test_data_outages.py tests the local cluster
    server.always(Behaviour(status=404, server=""))
    transfers = {"patience": "1s", "stall": "1s"}
    experiment.cluster.profile_keys = {**experiment.cluster.profile_keys, "transfers": transfers}
    data = [{"url": server.url("/plain.bin"), "sha256": sha256(PLAIN)}]
    directory = experiment.write(files=FILES, data=data, runs=20, limits={"attempts": 1}, **HASH_DATA_KEYS)
    process = experiment.lab.start("run", directory)
    experiment.wait_for("a scout that was turned back", lambda: len(_turned_back(experiment)) > 20)
    server.always(Behaviour())
    experiment.finish(process)
    assert experiment.states == {"finished"}
    back = _turned_back(experiment)
    assert sum(attempt.number > 1 for attempt in back) <= 2
    assert len(experiment.attempts()) == len(back) + 20


def _turned_back(experiment: ClusterExperiment) -> list[Attempt]:
    return [attempt for attempt in experiment.attempts() if attempt.outcome is Outcome.NOT_FOUND]


def _sent(server: Misbehaving) -> int:
    return sum(request.sent for request in server.requests)


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # the file was moved meanwhile
            total += path.stat().st_size if path.is_file() else 0
    return total

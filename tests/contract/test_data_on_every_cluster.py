"""Data gets into jobs, and only the right bytes, whichever cluster they run on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.experiment_runs import Play
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
#: What a process may have received and not written when nothing more comes.
BLOCK = 2 * MIB


@pytest.fixture
def server() -> Iterator[Misbehaving]:
    with Misbehaving({"/train.tar": NESTED, "/plain.bin": PLAIN, "/weights.bin": WEIGHTS}) as one:
        yield one


def test_a_training_sees_the_right_bytes_by_every_way_in(play: Play, server: Misbehaving) -> None:
    """An archive in an archive, unpacked; a file from two mirrors of which one is bad; a file of ours."""
    with Misbehaving({"/plain.bin": PLAIN}) as bad:
        bad.always(Behaviour(flip=(MIB,)))
        server.plan(Behaviour(close_after=100_000))
        data: list[Any] = [
            {"url": server.url("/train.tar"), "sha256": sha256(NESTED), "unpack": "nested", "to": "train"},
            {"url": [bad.url("/plain.bin"), server.url("/plain.bin")], "sha256": sha256(PLAIN)},
            {"url": "weights.bin", "sha256": sha256(WEIGHTS), "to": "models"},
        ]
        directory = play.set(files=FILES, data=data, **HASH_DATA_KEYS)
        (directory / "weights.bin").write_bytes(WEIGHTS)
        play.run()
    unpacked = {"train/" + path: content for path, content in CLASSES.items()}
    wanted = digests({**unpacked, "plain.bin": PLAIN, "models/weights.bin": WEIGHTS})
    assert found(directory, "play") == wanted
    (attempt,) = play.attempts()
    items = {item.name: item for item in attempt.account.data}
    assert "truncated" in items["train.tar"].troubles
    assert "wrong digest" in items["plain.bin"].troubles
    play.assert_nothing_is_left()


def test_jobs_killed_while_data_arrives_and_is_unpacked_go_on_where_they_were(play: Play) -> None:
    """The second item is unpacked on the way. The server's counts tell what was fetched twice."""
    if play.cluster.name == "sge":
        return  # its hosts have names of their own, and the turn of another host is taken over after a minute
    big = seeded(12 * MIB, 9)
    archive = tar({"big.tar": {"big.img": big}, "cat.tar": {"0.img": PLAIN}})
    cache, scratch = play.lab.root / "cache", play.lab.root / "scratch"
    for place in (cache, scratch):
        place.mkdir()
        place.chmod(0o777)  # a pool may run jobs as somebody else
    places = {"cache": str(cache), "scratch": str(scratch)}
    if play.cluster.name == "htcondor":
        del places["scratch"]  # jobs have a directory of HTCondor's own
    play.cluster.profile_keys = {**play.cluster.profile_keys, **places}
    with Misbehaving({"/big.bin": big, "/train.tar": archive}) as server:
        data = [
            {"url": server.url("/big.bin"), "sha256": sha256(big)},
            {"url": server.url("/train.tar"), "sha256": sha256(archive), "unpack": "nested", "to": "train"},
        ]
        directory = play.set(files=FILES, data=data, **HASH_DATA_KEYS)
        server.plan(Behaviour(stall_after=9 * MIB))
        process = play.lab.start("run", directory)
        for most in (9 * MIB, len(big) + 9 * MIB):
            play.until("most of it", lambda most=most: _sent(server) >= most)
            play.until("it on disk", lambda: _size(cache) >= _sent(server) - BLOCK)
            server.plan(Behaviour(), Behaviour(stall_after=9 * MIB))
            play.cluster.kill_without_warning(play.view().token)
        play.conclude(process)
    assert found(directory, "play") == digests(
        {"big.bin": big, "train/big/big.img": big, "train/cat/0.img": PLAIN}
    )
    for path, content in (("/big.bin", big), ("/train.tar", archive)):
        first, second = [request for request in server.requests if request.path == path]
        assert first.start == 0 and second.start >= first.sent - BLOCK
        assert first.sent + second.sent <= len(content) + BLOCK
    assert [path for path in (directory / "workdir").rglob("*") if path.is_file()] == []
    assert list(scratch.iterdir()) == []
    play.assert_nothing_is_left()


def test_twenty_runs_that_want_the_same_data_at_once_download_it_once(
    play: Play, server: Misbehaving
) -> None:
    if play.cluster.name not in ("local", "slurm"):
        return  # the store is the same; two clusters show that jobs meet in it
    data = [
        {"url": server.url("/plain.bin"), "sha256": sha256(PLAIN)},
        {"url": server.url("/train.tar"), "sha256": sha256(NESTED), "unpack": "nested", "to": "train"},
    ]
    # Slow enough for others to come meanwhile.
    server.plan(Behaviour(rate=2 * MIB))
    directory = play.set(files=FILES, data=data, runs=20, **HASH_DATA_KEYS)
    play.run()
    unpacked = {"train/" + path: content for path, content in CLASSES.items()}
    wanted = digests({**unpacked, "plain.bin": PLAIN})
    assert [found(directory, run) for run in states(directory)] == [wanted] * 20
    assert [(request.path, request.sent) for request in server.requests] == [
        ("/plain.bin", len(PLAIN)),
        ("/train.tar", len(NESTED)),
    ]


def test_an_outage_of_the_source_costs_no_run_an_attempt_and_all_finish_after_it(
    play: Play, server: Misbehaving
) -> None:
    if play.cluster.name != "slurm":
        return  # tests/integration/test_data_outages.py has the local cluster
    server.always(Behaviour(status=404, server=""))
    transfers = {"patience": "1s", "stall": "1s"}
    play.cluster.profile_keys = {**play.cluster.profile_keys, "transfers": transfers}
    data = [{"url": server.url("/plain.bin"), "sha256": sha256(PLAIN)}]
    directory = play.set(files=FILES, data=data, runs=20, limits={"attempts": 1}, **HASH_DATA_KEYS)
    process = play.lab.start("run", directory)
    play.until("a scout that was turned back", lambda: len(_turned_back(play)) > 20)
    server.always(Behaviour())
    play.conclude(process)
    assert play.states == {"finished"}
    back = _turned_back(play)
    assert sum(attempt.number > 1 for attempt in back) <= 2
    assert len(play.attempts()) == len(back) + 20


def _turned_back(play: Play) -> list[Attempt]:
    return [attempt for attempt in play.attempts() if attempt.outcome is Outcome.NOT_FOUND]


def _sent(server: Misbehaving) -> int:
    return sum(request.sent for request in server.requests)


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # it was moved to its place meanwhile
            total += path.stat().st_size if path.is_file() else 0
    return total

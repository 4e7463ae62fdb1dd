"""Data gets into jobs, and only the right bytes, whichever cluster they run on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from contract.play import Play
from data_scene import CLASSES, FILES, LOOKING, digests, found, sha256
from packing import tar
from servers.behaviour import Behaviour, seeded
from servers.misbehaving import Misbehaving

MIB = 1 << 20
NESTED = tar(
    {
        name + ".tar": {path.split("/")[1]: data for path, data in CLASSES.items() if path.startswith(name)}
        for name in ("cat", "dog")
    }
)
PLAIN = seeded(3 * MIB, 7)
WEIGHTS = seeded(MIB, 8)


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
        directory = play.set(files=FILES, data=data, **LOOKING)
        (directory / "weights.bin").write_bytes(WEIGHTS)
        play.run()
    unpacked = {"train/" + path: content for path, content in CLASSES.items()}
    wanted = digests({**unpacked, "plain.bin": PLAIN, "models/weights.bin": WEIGHTS})
    assert found(directory, "play") == wanted
    (attempt,) = play.attempts()
    items = {item["name"]: item for item in attempt.account["data"]}
    assert "truncated" in items["train.tar"]["troubles"]
    assert "wrong digest" in items["plain.bin"]["troubles"]
    play.assert_nothing_is_left()

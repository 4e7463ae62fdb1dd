"""What data costs is seen while it arrives, and booked: every second of it once."""

from __future__ import annotations

import pytest

from servers.behaviour import Behaviour, seeded
from servers.misbehaving import Misbehaving
from support.data_experiments import digests, found, local_experiment, sha256
from support.experiments import Lab

CONTENT = seeded(400_000)
STALL = 3.0


def test_a_stall_is_shown_while_it_lasts_and_booked_with_its_seconds(lab: Lab) -> None:
    with Misbehaving({"/a.bin": CONTENT}) as server:
        server.plan(Behaviour(stall_after=100_000), Behaviour(reset_after=100_000))
        item = {"url": server.url("/a.bin"), "sha256": sha256(CONTENT)}
        directory = local_experiment(lab, [item], {"transfers": {"stall": "%gs" % STALL}})
        process = lab.start("run", directory)
        lab.until(
            "the transfer in status", lambda: "fetching a.bin" in lab.outlast("status", directory).stdout
        )
        ended = lab.finish(process)
    assert ended.returncode == 0, ended.output
    assert found(directory, "e") == digests({"a.bin": CONTENT})
    report = lab.outlast("report", directory, "--json").json
    (booking,) = report["attempts"]
    assert sum(booking["uses"].values()) == pytest.approx(booking["slot"], abs=0.01)
    (item_account,) = booking["data"]
    assert {kind: cost["count"] for kind, cost in item_account["troubles"].items()} == {
        "stall": 1,
        "reset": 1,
    }
    assert item_account["troubles"]["stall"]["seconds"] >= STALL
    assert booking["uses"]["data trouble"] >= STALL
    assert booking["uses"]["data"] + booking["uses"]["data trouble"] == pytest.approx(
        item_account["waited"], abs=0.01
    )
    assert "stall 1× (" in lab.outlast("explain", directory / "e").stdout

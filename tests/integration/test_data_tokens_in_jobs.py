"""A token for data reaches the host that it is meant for, and appears nowhere else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from servers.behaviour import Behaviour, seeded
from servers.certificates import Authority
from servers.misbehaving import Misbehaving
from support.data_experiments import HASH_DATA, digests, found, local_experiment, sha256
from support.experiments import Lab, processes_with, states

CONTENT, OTHER = seeded(100_000), seeded(100_000, 2)
TOKEN = "tok-%s" % os.urandom(12).hex()
#: The training script prints its environment.
NOSY = {"hash_data.py": "import os\nprint(dict(os.environ))\n" + HASH_DATA}


class Scene:
    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        authority = Authority(lab.root / "certificates")
        certificate = authority.issue()
        lab.environment["SSL_CERT_FILE"] = str(authority.bundle)
        self.private = Misbehaving({"/a.bin": CONTENT}, certificate, host="localhost")
        self.other = Misbehaving({"/a.bin": CONTENT, "/b.bin": OTHER}, certificate, host="localhost")
        self.file = lab.root / "token"
        self.file.write_text(TOKEN + "\n")
        self.file.chmod(0o600)

    def experiment(self, **token: Any) -> Path:
        data = [
            {"url": self.private.url("/a.bin"), "sha256": sha256(CONTENT)},
            {"url": self.other.url("/b.bin"), "sha256": sha256(OTHER)},
        ]
        hosts = ["localhost:%d" % self.private.port]
        transfers = {"stall": "3s", "patience": "20s"}
        profile = {"token": {**token, "hosts": hosts}, "transfers": transfers}
        return local_experiment(self.lab, data, profile, NOSY)

    def places(self) -> list[Path]:
        """Return the files that contain the token."""
        files = [path for path in self.lab.root.rglob("*") if path.is_file() and path != self.file]
        return [path for path in files if TOKEN.encode() in path.read_bytes()]


@pytest.fixture
def scene(lab: Lab) -> Iterator[Scene]:
    one = Scene(lab)
    with one.private, one.other:
        yield one


@pytest.mark.parametrize("by", ["file", "command"])
def test_a_token_reaches_its_host_only_and_is_in_no_file_no_process_and_no_environment(
    scene: Scene, by: str
) -> None:
    token = {"file": str(scene.file)} if by == "file" else {"command": ["cat", str(scene.file)]}
    # While the first response stalls, all processes are inspected.
    elsewhere = Behaviour(redirect=scene.other.url("/a.bin"))
    scene.private.plan(Behaviour(stall_after=10_000), elsewhere)
    directory = scene.experiment(**token)
    run = scene.lab.start("run", directory)
    scene.private.await_sent(10_000)
    assert processes_with(TOKEN) == []
    ended = scene.lab.finish(run)
    assert ended.returncode == 0, ended.output
    assert found(directory, "e") == digests({"a.bin": CONTENT, "b.bin": OTHER})
    assert {request.headers.get("authorization") for request in scene.private.requests} == {"Bearer " + TOKEN}
    assert len(scene.private.requests) == 2 and len(scene.other.requests) == 2
    assert {request.headers.get("authorization") for request in scene.other.requests} == {None}
    assert scene.places() == []
    shown = [scene.lab.outlast(word, directory, "--json").output for word in ("status", "report", "explain")]
    assert TOKEN not in ended.output + "".join(shown)


def test_a_token_file_that_others_can_read_is_refused_until_its_mode_is_corrected(
    scene: Scene,
) -> None:
    scene.file.unlink()
    directory, lab = scene.experiment(file=str(scene.file)), scene.lab
    process = lab.start("run", directory)
    lab.until("a job that fetches", lambda: list(directory.rglob("fetching*")))
    scene.file.write_text(TOKEN)
    scene.file.chmod(0o644)
    advice = "chmod 600 %s" % scene.file
    lab.until("the error in status", lambda: advice in lab.outlast("status", directory).stdout)
    assert scene.private.requests == []
    scene.file.chmod(0o600)
    ended = lab.finish(process)
    assert states(directory) == {"e": "finished"}, ended.output
    assert "refused" in lab.outlast("explain", directory).stdout

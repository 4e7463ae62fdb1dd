"""Jobs that get their data from a federation, and jobs whose disk is full."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.domain.model import Attempt, Outcome
from outlast.journal.sqlite_file import is_blank
from servers.behaviour import Behaviour, seeded
from servers.certificates import Authority
from servers.federation import PREFIX, Federation
from servers.misbehaving import Misbehaving
from support.archives import tar
from support.clusters import not_here
from support.data_experiments import digests, found, local_experiment, sha256
from support.experiments import Lab, open_journal

MIB = 1 << 20
CONTENT = seeded(6 * MIB)
#: Of the little disk: what is needed, what must be left free, and some.
DISK = 80 * MIB


def attempts(directory: Path) -> list[Attempt]:
    if is_blank(directory / "journal.sqlite"):
        return []
    with open_journal(directory) as journal:
        return list(journal.attempts())


def test_a_training_gets_its_data_from_a_federation_though_a_cache_of_it_is_down(lab: Lab) -> None:
    archive = tar({"cat.tar": {"0.img": CONTENT}})
    with Federation(Authority(lab.root / "certificates")) as federation:
        lab.environment["SSL_CERT_FILE"] = str(federation.authority.bundle)
        federation.origin.put(PREFIX + "/train.tar", archive)
        federation.director.namespaces[0].caches.insert(0, "https://localhost:1")  # nobody listens there
        url = federation.url(PREFIX + "/train.tar")
        item = {"url": url, "sha256": sha256(archive), "unpack": "nested", "to": "train"}
        directory = local_experiment(lab, [item], {})
        ended = lab.outlast("run", directory)
        assert ended.returncode == 0, ended.output
        assert found(directory, "e") == digests({"train/cat/0.img": CONTENT})
        (attempt,) = attempts(directory)
        (staged,) = attempt.account.data
        assert staged.sources == (url + " (choice 2)",)
        assert list(staged.troubles) == ["no answer"]


@pytest.fixture
def disk(lab: Lab) -> Iterator[Path]:
    place = lab.root / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=%d" % DISK, "none", place], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        not_here("no disk of our own can be mounted here: %s" % mounted.stderr.decode().strip())
    try:
        yield place
    finally:
        lab.close()  # nobody may be at work there
        subprocess.run(["umount", place], check=True)


def test_a_full_disk_keeps_the_fetched_bytes_and_the_next_attempt_resumes_once_there_is_space(
    lab: Lab, disk: Path
) -> None:
    ballast = disk / "ballast"
    with Misbehaving({"/a.bin": CONTENT}) as server:
        server.plan(Behaviour(stall_after=3 * MIB))
        item = {"url": server.url("/a.bin"), "sha256": sha256(CONTENT)}
        directory = local_experiment(lab, [item], {"cache": str(disk), "transfers": {"stall": "2s"}})
        process = lab.start("run", directory)
        lab.until("a part on disk", lambda: any(_size(path) >= 2 * MIB for path in disk.rglob("*.part")))
        _fill(ballast)
        lab.until("the end of an attempt", lambda: any(one.outcome for one in attempts(directory)))
        explained = lab.outlast("explain", directory / "e").stdout
        server.always(Behaviour())
        ballast.unlink()
        ended = lab.finish(process)

    assert ended.returncode == 0, ended.output
    assert found(directory, "e") == digests({"a.bin": CONTENT})
    outcomes = [one.outcome for one in attempts(directory)]
    assert outcomes[-1] is Outcome.FINISHED and set(outcomes[:-1]) == {Outcome.OUT_OF_DISK}
    assert "disk" in explained
    assert [request.start for request in server.requests][-1] >= MIB


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(64 * 1024))
        except OSError as error:
            assert error.errno == errno.ENOSPC

"""A process that fetches is killed with SIGKILL at random moments, again and again, until the file is whole.

A failed test prints its seed: `OUTLAST_KILL_SEED=17 pytest tests/crash/test_data_kills.py` repeats it.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from servers.behaviour import Behaviour, seeded
from servers.misbehaving import Misbehaving

SIZE = 3_000_000
BLOCK = 65536
#: Bytes that may be in the kernels when a process dies: a send buffer of 16 KiB, which Linux doubles, and a
#: receive window.
IN_FLIGHT = 256 * 1024
KILLS = 12
PATIENCE = 60.0

FETCH = (
    """
import sys
from outlast.node.staging.fetch.fetch import fetch
from outlast.node.staging.fetch.fetch_settings import FetchSettings
from outlast.node.staging.sources.http_source import HttpSource
from outlast.node.staging.fetch.part_file import PartFile
from outlast.node.staging.item import DataItem

url, folder, sha256 = sys.argv[1:]
settings = FetchSettings(block_size=%d, block_count=2, margin=0)
item = DataItem((url,), {"sha256": sha256})
print(fetch(item, [HttpSource(url)], PartFile(folder, "a"), settings).resumed_from)
"""
    % BLOCK
)


def test_a_fetch_that_is_killed_again_and_again_resumes_at_the_last_byte(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = int(os.environ.get("OUTLAST_KILL_SEED") or random.SystemRandom().randrange(10**6))
    record_property("seeds", "seed %d" % seed)
    print("seed %d" % seed)
    chance, content = random.Random(seed), seeded(SIZE, seed)
    part, target = tmp_path / ".a.part", tmp_path / "a"
    with Misbehaving({"/a": content}, send_buffer=16384) as server:
        server.always(Behaviour(rate=3_000_000))
        arguments = [server.url("/a"), str(tmp_path), hashlib.sha256(content).hexdigest()]
        kept = [0]
        for moment in sorted(chance.randrange(1, SIZE - IN_FLIGHT) for _ in range(KILLS)):
            _kill_at(moment - kept[-1], arguments, server)
            assert not target.exists()
            kept.append(part.stat().st_size)
        done = subprocess.run(
            [sys.executable, "-c", FETCH, *arguments],
            check=True, capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip
        starts = [request.start for request in server.requests]
        sent = sum(request.sent for request in server.requests)
    assert target.read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    # Each process begins at the byte at which the one before stopped.
    assert starts == kept
    assert int(done.stdout) == kept[-1]
    assert sent - SIZE <= KILLS * (BLOCK + IN_FLIGHT)


def _kill_at(count: int, arguments: list[str], server: Misbehaving) -> None:
    """Start a fetch and kill it when about `count` bytes, at least one, have been sent to it."""
    requests, sent = len(server.requests), sum(request.sent for request in server.requests)
    process = subprocess.Popen([sys.executable, "-c", FETCH, *arguments])
    try:
        server.await_requests(requests + 1)
        server.await_sent(sent + max(1, count))
    finally:
        process.kill()
        process.wait(PATIENCE)

"""A server that closes the connection every 20 MiB: what is on disk then, by whose hand?"""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from transfer_peers import LIMIT, with_python
from transfer_scene import MIB, Scene
from verdicts import Goal, Row

from servers.behaviour import Behaviour, seeded
from servers.misbehaving import Misbehaving

SIZE = 100 * MIB + 12345
CLUSTERS = Path(os.environ.get("CLUSTERS", "/var/tmp/outlast-clusters"))
STOCK = CLUSTERS / "htcondor/software/usr/libexec/condor/curl_plugin"
CLOSING = Behaviour(close_after=20 * MIB)
SMOKE = {"SIZE": MIB + 12345, "CLOSING": Behaviour(close_after=MIB // 2)}


def closing(scene: Scene) -> list[Row]:
    """How much of the file is right, of its bytes and of its length."""
    content = seeded(SIZE)
    with Misbehaving({"/a.bin": content}) as server:
        server.always(CLOSING)
        url = server.url("/a.bin")
        ours = scene.folder / "ours.bin"
        told = with_python("outlast", url, "--to", str(ours)).told
        twice = sum(cost["bytes"] for cost in told["troubles"].values())
        interruptions = sum(cost["count"] for cost in told["troubles"].values())
        rows = [
            _row("outlast", ours, content, Goal(least=1.0), "%d interruptions" % interruptions),
            Row("outlast: bytes fetched twice", twice / MIB, "MiB", Goal(most=0.0)),
        ]
        if not STOCK.exists():
            missing = "HTCondor is not here; `tests/clusters/htcondor up` brings it"
            return [*rows, Row("HTCondor's curl_plugin: right bytes", None, beside=missing)]
        theirs = scene.folder / "theirs.bin"
        said = stock_plugin(url, theirs)
        return [*rows, _row("HTCondor's curl_plugin", theirs, content, None, "it says: %s" % said)]


def _row(who: str, file: Path, content: bytes, goal: Goal | None, beside: str) -> Row:
    found = file.read_bytes() if file.exists() else b""
    share = _right(found, content) / len(content)
    length = "right length" if len(found) == len(content) else "%d of %d bytes" % (len(found), len(content))
    digest = "right" if hashlib.sha256(found).digest() == hashlib.sha256(content).digest() else "WRONG"
    return Row("%s: right bytes" % who, share, "of all", goal, "%s, sha256 %s; %s" % (length, digest, beside))


def _right(found: bytes, content: bytes) -> int:
    """Bytes in blocks of a MiB that are as they should be."""
    pairs = ((content[at : at + MIB], found[at : at + MIB]) for at in range(0, len(content), MIB))
    return sum(len(right) for right, is_there in pairs if right == is_there)


def stock_plugin(url: str, target: Path) -> str:
    """Called as the starter does; what its answer says of success."""
    asked, answered = target.with_suffix(".in"), target.with_suffix(".out")
    asked.write_text('[ Url = "%s"; LocalFileName = "%s" ]' % (url, target))
    answered.touch()
    done = subprocess.run(
        [str(STOCK), "-infile", str(asked), "-outfile", str(answered)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    parts = answered.read_text().strip("[] \n").split(";")
    said = [" ".join(part.split()) for part in parts if "TransferSuccess" in part]
    return ", ".join(["exit %d" % done.returncode, *said])

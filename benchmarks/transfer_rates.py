"""Downloads that nobody keeps: what a byte costs, next to other clients, and what a digest adds."""

from __future__ import annotations

import functools
import hashlib
import statistics
import time
from collections.abc import Callable

from transfer_peers import Download, peers, with_python
from transfer_scene import GB, GIB, MB, MIB, Scene
from verdicts import Goal, Row, in_turns, ratio

from servers.nginx import Nginx

SIZE = GIB
NAME = "large.bin"
OURS = "outlast"
GOALS = {"http": Goal(most=1.0), "https": Goal(most=1.2)}
#: Bytes a second of a network that leaves a core of two free: 4 Gbit/s.
HELD = 500 * MB
#: CPU seconds of one and the same download differ by half on a busy machine: a ratio takes so many times the
#: rounds of other measurements to settle.
SETTLING = 4
SMOKE = {"SIZE": 2 * MIB, "SETTLING": 1}


def rates(scene: Scene) -> list[Row]:
    """CPU seconds for a GB, as a ratio to curl's."""
    nowhere = scene.folder / "nowhere"
    nowhere.symlink_to("/dev/null")
    rows = []
    with scene.nginx(NAME, SIZE) as server:
        known = peers(scene.ca, nowhere)
        for scheme in ("http", "https"):
            url = server.url("/" + NAME, tls=scheme == "https")
            cases: dict[str, Callable[[], Download]] = {
                OURS: functools.partial(with_python, OURS, url, "--ca", str(scene.ca)),
                **{name: functools.partial(call, url) for name, call in known.items() if call},
            }
            found = in_turns(cases, SETTLING * scene.rounds)
            for name in (OURS, *known):
                rows.append(_row(scheme, name, found))
    return rows


def _row(scheme: str, name: str, found: dict[str, list[Download]]) -> Row:
    title = "%s, %s: CPU" % (scheme, name)
    if name not in found or "curl" not in found:
        return Row(title, None, beside="%s is not installed" % (name if name not in found else "curl"))
    ours, curl = found[name], found["curl"]
    started = ratio([one.cpu for one in ours], [one.cpu for one in curl])
    bare = ratio([one.cpu_without_start for one in ours], [one.cpu for one in curl])
    per_gb = statistics.median(one.cpu_without_start for one in ours) / SIZE * GB
    rate = SIZE / statistics.median(one.wall for one in ours) / MB
    beside = "%.2f s for a GB; %.0f MB/s" % (per_gb, rate)
    if name != "curl" and started - bare > 0.005:
        beside += "; %.2f with the start of the process" % started
    details = {"cpu_per_gb": per_gb, "with_start": started, "mb_per_second": rate}
    return Row(title, bare, "× curl", GOALS[scheme] if name == OURS else None, beside, details)


def digest(scene: Scene) -> list[Row]:
    """Wall time with sha256 as a ratio to that without."""
    alone = "sha256 alone takes %.2f s" % _hashing()
    with scene.nginx(NAME, SIZE, cap=HELD) as server:
        return [
            _digest_row("sha256, a server held to 500 MB/s", "/capped/", server, scene, Goal(most=1.1)),
            # Here the digest, or the second of two cores, is what everybody waits for.
            _digest_row("sha256, a server that gives all it can", "/", server, scene, beside=alone),
        ]


def _digest_row(
    title: str, place: str, server: Nginx, scene: Scene, goal: Goal | None = None, beside: str = ""
) -> Row:
    url = server.url(place + NAME, tls=False)
    cases = {
        "without": functools.partial(with_python, OURS, url),
        "with": functools.partial(with_python, OURS, url, "--digest", "sha256"),
    }
    found = in_turns(cases, scene.rounds)
    walls = {name: [one.told["wall"] for one in some] for name, some in found.items()}
    cpus = {name: statistics.median(one.cpu for one in some) for name, some in found.items()}
    more = (cpus["with"] - cpus["without"]) / SIZE * GB
    seconds = (statistics.median(walls["with"]), statistics.median(walls["without"]))
    told = "%.2f s against %.2f; %.2f CPU s for a GB more" % (*seconds, more)
    told = "; ".join(filter(None, (told, beside)))
    return Row(title, ratio(walls["with"], walls["without"]), "× without", goal, told)


def _hashing() -> float:
    block, state = bytes(2 * MIB), hashlib.sha256()
    began = time.monotonic()
    for _ in range(SIZE // len(block)):
        state.update(block)
    return time.monotonic() - began

"""A hostile compute node: runs in a job in place of the node program and attacks the access point.

    python hostile_node.py HOME

exits with 0 for an honest run (the job continues), else with 1 after the attack that the name of the run ends
with. HOME is the directory of the user on the access point that it is after.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent / "src")]

from outlast.node.sandbox import layout  # noqa: E402 - the job knows no path
from outlast.node.sandbox.chirp import CONFIG, Chirp  # noqa: E402 - the job knows no path
from unit.exchange import test_hostile_nodes as hostile  # noqa: E402 - the job knows no path

#: More than any clock or counter has, and deeper than anything can be parsed.
NUMBER, BRACKETS = "9" * 400, "[" * 60_000
#: Attacks that are made of files that a scheduler can transfer, not of links, pipes and devices.
ODD = (*(odd.__name__ for odd in hostile.ODD), "deep")


def is_transferable(name: str) -> bool:
    return not any(odd in name for odd in ODD)


# Requests to the access point.


class RawChirp:
    """Sends lines to the starter as they are."""

    def __init__(self) -> None:
        host, port, cookie = Path(os.environ[CONFIG]).read_text().split()[:3]
        self._socket = socket.create_connection((host, int(port)), 60)
        self._responses = self._socket.makefile("rb")
        self.ask("cookie " + cookie)

    def ask(self, line: str) -> int:
        """Return the response; what follows a success is not read, so it must be the last request."""
        self._socket.sendall(line.encode() + b"\n")
        return int(self._responses.readline())


def try_requests(home: Path, user: str) -> None:
    """Try to read and change the user's files with every request, and note the responses."""
    key, keys = "%s/id_ed25519" % user, "%s/authorized_keys" % user
    inbox, other = "../../../inbox", "../../other/checkpoints"
    names = [key, os.path.relpath(key, "/").join(["../" * 20, ""]), inbox, other, "committed/x", "order.json"]
    lines = ["%s %s" % (verb, name) for verb in ("getfile", "getdir", "getlongdir", "stat") for name in names]
    lines += ["open %s %s %d" % (name, flags, 0o666) for name in names for flags in ("r", "wct", "wa")]
    lines += ["mkdir %s/d 511" % inbox, "unlink %s" % key, "rmall %s" % other, "rmdir %s" % other]
    lines += ["link %s committed/l" % key, "link order.json %s/l" % user, "link %s %s/l" % (key, inbox)]
    lines += ["symlink %s committed/s" % user, "symlink x %s/s" % user, "symlink / %s/s" % inbox]
    lines += ["rename order.json %s/r" % user, "rename %s committed/r" % keys]
    lines += [
        "chmod %s 511" % key,
        "chown %s 65534 65534" % key,
        "utime %s 1 1" % key,
        "truncate %s 0" % keys,
    ]
    lines += ["access %s 4" % key, "lstat %s" % key, "readlink %s 99" % key, "putfile %s 438 0" % keys]
    for attribute, value in (("Iwd", "/"), ("Out", keys), ("TransferInput", key), ("Cmd", "/bin/sh")):
        lines.append('set_job_attr %s "%s"' % (attribute, value))
    lines += ["set_job_attr JobUniverse 12", "set_job_attr OnExitRemove false", "get_job_attr Owner"]
    lines += ['set_job_attr_delayed TransferInput "%s"' % key, "ulog x"]
    tried = {line: RawChirp().ask(line) for line in lines}
    (home / "travel/tried.json").write_text(json.dumps(tried))


# Files that come back.


def hostile_legs(home: Path) -> None:
    """Bring one leg with each hostile log, claim and record of a transfer."""
    attacks = [attack for name, attack in hostile.LOGS.items() if is_transferable(name)]
    attacks += [
        hostile.content("travel/%s" % file, text)
        for file in ("claim.json", "events.jsonl", "fetching.json", "progress.json", "serial.json")
        for text in ('{"at": %s, "mono": %s, "step": %s}' % (NUMBER, NUMBER, NUMBER), BRACKETS)
    ]
    for number, attack in enumerate(attacks, 2):
        with tempfile.TemporaryDirectory() as place:
            hostile.write_logs(Path(place) / "travel")
            attack(Path(place))
            shutil.copytree(Path(place) / "travel", home / ("travel/leg-%d" % number))


def long_logs(home: Path) -> None:
    """Bring 40 legs with logs of 4 MB each."""
    for number in range(2, 42):
        leg = home / ("travel/leg-%d" % number)
        hostile.write_logs(leg, *[{"event": "data", "name": "x" * 400, "mono": 5.0}] * 5000)
        size = (leg / "events.jsonl").stat().st_size
        shutil.copyfile(leg / "events.jsonl", leg / "progress.jsonl")
        with (leg / "events.jsonl").open("ab") as log:
            log.write(b"x" * (4_000_000 - size))


def hostile_manifests(home: Path) -> None:
    """Commit a state for each hostile manifest, and bring one back."""
    with chirp() as connection:
        for serial, (name, attack) in enumerate(hostile.MANIFESTS.items(), 100):
            if not is_transferable(name):
                continue
            with tempfile.TemporaryDirectory() as place:
                hostile.come_back(Path(place))
                attack(Path(place))
                send(connection, Path(place) / "travel", "committed/%s" % layout.commit_name(serial))
    hostile.MANIFESTS["a link that leads out through another"](home)


def planted_links(home: Path, user: str) -> None:
    """Plant links to the user's files, devices and endless paths under every name that is read."""
    with chirp() as connection:
        for directory in ("committed/news", "committed/commit-000300", "committed/commit-000301", "unusable"):
            connection.make_directory(directory)
        connection.make_directory("committed/commit-000301/checkpoints")
        targets = {
            "committed/news/training.log": "%s/id_ed25519" % user,
            "committed/news/claim.json": "/dev/zero",
            "committed/news/events.jsonl": "/dev/zero",
            "committed/news/leg-2": user,
            "committed/commit-000299": user,
            "committed/commit-000300/manifest.json": "/dev/zero",
            "committed/commit-000300/checkpoints": user,
            "committed/commit-000301/checkpoints/step": "%s/id_ed25519" % user,
            "committed/commit-000302": "commit-000302",
            "unusable/checkpoints": user,
            "published": "%s/authorized_keys" % user,
            ".travel.tmp": user,
        }
        for name, target in targets.items():
            connection._request(b"symlink %s %s" % (target.encode(), name.encode()), "planting " + name)


def long_names(home: Path, user: str) -> None:
    """Bring back names as long and as odd as HTCondor transfers them."""
    hostile.give_longest_name(home)
    for name in ("n" * 255, os.fsdecode(b"\xff\xfe"), "\x1b]0;x\x07", "-rf", "leg-" + "9" * 200, "..." * 80):
        hostile.put(home / "travel/checkpoints" / name)
        hostile.put(home / "travel/unfinished/output" / name)
    hostile.put(home / "travel/checkpoints" / "/".join(["d" * 200] * 12) / "x")
    layout.write_serial(str(home), 7)
    layout.pack(str(home))


def forged_seal(home: Path, user: str) -> None:
    """Bring back a checkpoint with a wrong trailer whose checksum is right."""
    hostile.seal(size=10**20, step=10**20, generation=10**20, sequence=10**20)(home)


def chirp() -> Chirp:
    connection = Chirp.connect(os.environ)
    assert connection is not None
    return connection


def send(connection: Chirp, source: Path, target: str) -> None:
    connection.make_directory("committed")
    connection.make_directory(target)
    for path in sorted(source.rglob("*")):
        name = "%s/%s" % (target, path.relative_to(source))
        if path.is_dir():
            connection.make_directory(name)
        else:
            connection.send(str(path), name)


ATTACKS: dict[str, Callable[[Path, str], None]] = {
    "chirp": try_requests,
    "legs": lambda home, user: hostile_legs(home),
    "logs": lambda home, user: long_logs(home),
    "manifests": lambda home, user: hostile_manifests(home),
    "links": planted_links,
    "names": long_names,
    "seal": forged_seal,
}


def main(user: str) -> int:
    attack = ATTACKS.get(json.loads(Path("order.json").read_text())["run"].rpartition("=")[2])
    if attack is None:
        return 0
    home = Path.cwd()
    hostile.come_back(home)
    attack(home, user)
    (home / "travel/planted").touch()
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

"""What the gateway and its commands cost while many requests wait in the record."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from gateway_scene import MANY, PATIENCE, Scene, fill, request_body
from measuring import cost
from verdicts import Row

from support.broker import until
from support.gateway_lab import GatewayLab, gateway_lab

REQUESTS = 10_000
#: Seconds for which the gateway is watched while nothing happens.
WATCHED = 20.0
SMOKE = {"REQUESTS": 20, "WATCHED": 1.0}


def waiting(scene: Scene) -> list[Row]:
    with scene.broker.own_virtual_host() as own, gateway_lab(own) as lab:
        lab.write_template("fast", quota={**MANY, "running": 1})
        fill(own, REQUESTS, lambda number: request_body("fast", number, seconds=600))
        began = time.monotonic()
        process = lab.up()
        until(lab._has_record, lab.log, PATIENCE)
        until(lambda: _accepted(lab) == REQUESTS, lab.log, PATIENCE)
        seconds = time.monotonic() - began
        before = _cpu(process.pid)
        time.sleep(WATCHED)
        idle = (_cpu(process.pid) - before) / WATCHED
        rows = [
            Row("gateway up: seconds until %d are accepted" % REQUESTS, seconds, "s"),
            Row("the same: CPU time", before, "s"),
            Row("gateway up: peak memory", _peak(process.pid), "MB"),
            Row("gateway up: CPU time while they wait", 100 * idle, "% of a core"),
        ]
        for words in (["status"], ["status", "--json"], ["requests", "--last", "20"], ["explain", "id-7"]):
            command = [sys.executable, "-m", "outlast", "gateway", words[0], str(lab.directory.root)]
            if words[0] == "explain":
                command = [*command[:-1], words[1], "-C", str(lab.directory.root)]
            else:
                command += words[1:]
            cost(command)  # compiles what it imports
            spent = cost(command)
            beside = "CPU time %.2f s, %.0f MB" % (spent.cpu, spent.memory)
            rows.append(Row("gateway %s" % " ".join(words), spent.wall, "s", None, beside))
        size = sum(path.stat().st_size for path in lab.directory.root.glob("requests.sqlite*"))
        rows.append(Row("the record, per request", size / REQUESTS / 1000, "kB"))
    return rows


def _accepted(lab: GatewayLab) -> int:
    time.sleep(0.2)  # looking takes the record's time
    with lab.record() as record:
        return record.open_requests("fast")


def _cpu(pid: int) -> float:
    """Return the seconds of CPU time that a process has had."""
    fields = Path("/proc/%d/stat" % pid).read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak(pid: int) -> float:
    """Return the peak resident memory of a process, in MB."""
    lines = Path("/proc/%d/status" % pid).read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

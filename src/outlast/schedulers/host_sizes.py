"""Memory and disk of the hosts of a cluster, as the scheduler reports them."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from dataclasses import dataclass

from outlast.schedulers.command_runner import CommandNotRun, CommandTimeout, run_command
from outlast.schedulers.profile import Profile

_MIB = 1 << 20
#: Grid Engine writes sizes of 1024: 31.3G.
_SGE_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SGE_SIZE = re.compile(r"([0-9.]+)([KMGT]?)")


@dataclass(frozen=True)
class HostSizes:
    """The largest host, in bytes; None: unknown."""

    memory: int | None = None
    disk: int | None = None


def query_host_sizes(scheduler: str, profile: Profile, directory: str, timeout: float) -> HostSizes:
    """Return what the largest host has; nothing if the scheduler does not respond within `timeout` seconds.

    On a local cluster it is this machine, with the disk of `directory`.
    """
    if scheduler == "local":
        return HostSizes(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), _free_disk(directory))
    try:
        if scheduler == "slurm":
            queue = ["--partition=%s" % profile.queue] if profile.queue else ["--all"]
            output = run_command(["sinfo", "--noheader", "--format=%m", *queue], timeout)
            return HostSizes() if output.code else parse_sinfo(output.out)
        if scheduler == "sge":
            output = run_command(["qhost"], timeout)
            return HostSizes() if output.code else parse_qhost(output.out)
        worker = [sys.executable, "-m", "outlast.schedulers.htcondor.worker"]
        output = run_command(worker, timeout, json.dumps({"do": "offer"}))
        return HostSizes() if output.code else parse_offer(output.out)
    except (CommandNotRun, CommandTimeout):
        return HostSizes()


def _free_disk(directory: str) -> int | None:
    try:
        return shutil.disk_usage(directory).free
    except OSError:
        return None


def parse_sinfo(text: str) -> HostSizes:
    """Read the memory of the nodes in MiB, one group of equal nodes per line: `64000` or `64000+`."""
    sizes = [int(line.strip().rstrip("+")) for line in text.split() if line.strip().rstrip("+").isdecimal()]
    # A plus sign: nodes of that line have at least that much.
    exact = sizes and "+" not in text
    # Slurm reports 1 MiB for nodes whose memory is not configured.
    return HostSizes(max(sizes) * _MIB if exact and max(sizes) > 1 else None)


def parse_qhost(text: str) -> HostSizes:
    """Read the column MEMTOT."""
    head, *rows = text.splitlines() or [""]
    titles = head.split()
    if "MEMTOT" not in titles:
        return HostSizes()
    column = titles.index("MEMTOT")
    found = [_sge_size(row.split()[column]) for row in rows if len(row.split()) > column]
    return HostSizes(max((size for size in found if size is not None), default=None))


def _sge_size(text: str) -> int | None:
    match = _SGE_SIZE.fullmatch(text)
    return int(float(match[1]) * _SGE_UNITS.get(match[2], 1)) if match else None


def parse_offer(text: str) -> HostSizes:
    """Read the slots of an HTCondor pool: memory in MiB, disk in KiB."""
    try:
        slots = json.loads(text.strip().splitlines()[-1])["offer"]
        memory = [slot["TotalSlotMemory"] * _MIB for slot in slots if "TotalSlotMemory" in slot]
        disk = [slot["TotalSlotDisk"] * 1024 for slot in slots if "TotalSlotDisk" in slot]
        return HostSizes(int(max(memory)) if memory else None, int(max(disk)) if disk else None)
    except (ValueError, IndexError, KeyError, TypeError):
        return HostSizes()

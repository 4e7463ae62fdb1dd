"""Saves what HTCondor keeps of a job in its spool directory: it is deleted there with the job.

A job that restarts in place, or that was evicted, has its files in the spool and not in its own directory on
the access point. A job that is removed brings nothing back, so its newest files are copied before.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from outlast.node.files import copy_tree
from outlast.node.sandbox import layout
from outlast.untrusted_files import remove

#: HTCondor's own number of directories per level.
_FAN_OUT = 10_000


def spooled_directory(spool: Path, job: str) -> Path:
    """Return the directory of the job (`CLUSTER.PROC`) in the spool; it need not exist. Raise ValueError."""
    cluster, proc = (int(part) for part in job.split("."))
    name = "cluster%d.proc%d.subproc0" % (cluster, proc)
    return spool / str(cluster % _FAN_OUT) / str(proc % _FAN_OUT) / name


def save_spooled(spool: Path, job: str, home: Path, pulse: Callable[[], None]) -> None:
    """Copy the job's spooled files to its directory `home`, unless newer ones are there. Raise OSError.

    `pulse` is called for every block and every file.
    """
    spooled = spooled_directory(spool, job)
    if layout.read_serial(str(spooled)) <= layout.read_serial(str(home)):
        return
    target = home / layout.TRAVEL
    temporary = home / (".%s.tmp" % layout.TRAVEL)
    remove(temporary)
    copy_tree(str(spooled / layout.TRAVEL), str(temporary), pulse)
    remove(target)
    temporary.rename(target)

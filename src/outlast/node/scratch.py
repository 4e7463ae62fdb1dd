"""The attempt's own directory: working directory, data, outputs in the making."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import stat
import time
from dataclasses import dataclass
from typing import Callable

from outlast.node.files import copy_tree
from outlast.node.locks import lock
from outlast.node.pulse import no_pulse

#: A longer row of attempts that were each killed while carrying outputs on does not come about.
_MOST_HOPS = 100
#: Locked by whoever works in a directory on the node; what has none was left by somebody if it is not young.
_ALIVE = ".alive"
_YOUNG = 86400.0


@dataclass(frozen=True)
class Scratch:
    """Where things are below an attempt's scratch directory, and on the node where that has room of its own.

    Unfinished outputs are in `top` in any case: the next attempt may run on another node.
    """

    top: str
    on_node: str | None = None

    @property
    def working(self) -> str:
        return os.path.join(self.on_node or self.top, "job")

    @property
    def data(self) -> str:
        return os.path.join(self.on_node or self.top, "data")

    @property
    def output(self) -> str:
        return os.path.join(self.top, "output")

    @property
    def carried_from(self) -> str:
        """Names the scratch whose outputs are still to be copied; gone once they are here."""
        return os.path.join(self.top, "carried-from")

    def prepare(self, previous: str | None) -> None:
        os.makedirs(self.top, exist_ok=True)
        if previous is not None:
            with open(self.carried_from, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(previous)
        os.makedirs(self.working, exist_ok=True)
        os.makedirs(self.data, exist_ok=True)

    def occupy(self) -> int | None:
        """Where the node has room of its own: keep it from being swept up, until the descriptor is closed."""
        if self.on_node is None:
            return None
        descriptor = os.open(os.path.join(self.on_node, _ALIVE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(OSError):  # no locks here: it is young, and that keeps it as well
            lock(descriptor)
        return descriptor

    def sweep_up(self, until: float, pulse: Callable[[], None] = no_pulse) -> None:
        """Remove what attempts that were killed on this node have left: nobody else comes by to do it."""
        if self.on_node is None:
            return
        place, prefix = os.path.split(self.on_node)[0], node_directory_name("")
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                if entry.name.startswith(prefix) and entry.path != self.on_node and _is_abandoned(entry):
                    _remove(entry.path, until, pulse)

    def carry_on(self, previous: str | None, pulse: Callable[[], None] = no_pulse) -> None:
        """Take over an earlier attempt's unfinished outputs, whole, then remove its scratch.

        They are copied, never moved: a process of that attempt may still live and write.
        """
        passed = []
        for _ in range(_MOST_HOPS):
            if previous is None or os.path.realpath(previous) == os.path.realpath(self.top):
                break
            passed.append(previous)
            earlier = Scratch(previous)
            if os.path.isdir(earlier.output):
                temporary = os.path.join(self.top, ".output.tmp")
                copy_tree(earlier.output, temporary, pulse)
                os.rename(temporary, self.output)
                break
            previous = earlier._still_to_carry()
        os.makedirs(self.output, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.carried_from)
        for done in passed:
            if os.path.isdir(done):
                _remove(done, math.inf, pulse)  # a remainder only costs space

    def _still_to_carry(self) -> str | None:
        try:
            with open(self.carried_from, encoding="utf-8", errors="surrogateescape") as file:
                return file.read() or None
        except OSError:
            return None

    def clear(self, keep_output: bool, until: float, pulse: Callable[[], None] = no_pulse) -> bool:
        """Remove it, all or all but the outputs. False: not everything could go, or not before `until`."""
        kept = {self.output, self.carried_from} if keep_output else set()
        try:
            doomed = [entry.path for entry in os.scandir(self.top) if entry.path not in kept]
        except FileNotFoundError:
            return True
        if self.on_node is not None and os.path.lexists(self.on_node):
            doomed.append(self.on_node)
        for path in doomed:
            if not _remove(path, until, pulse):
                return False
        if not keep_output:
            os.rmdir(self.top)
        return True


def node_directory_name(token: str) -> str:
    """What the directory of an attempt is called in the room that the node has for all."""
    return f"outlast-{token}"


def _is_abandoned(entry: os.DirEntry[str]) -> bool:
    status = entry.stat(follow_symlinks=False)
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
        return False
    is_old = time.time() - status.st_mtime > _YOUNG
    try:
        descriptor = os.open(os.path.join(entry.path, _ALIVE), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return is_old
    except OSError:
        return False
    try:
        return lock(descriptor) or is_old
    except BlockingIOError:
        return False
    except OSError:
        return is_old
    finally:
        os.close(descriptor)


def _remove(path: str, until: float, pulse: Callable[[], None]) -> bool:
    """As rmtree, but it looks at the clock: a job must not be killed at its limit over its litter."""
    if os.path.islink(path) or not os.path.isdir(path):
        os.unlink(path)
        return True
    for directory, _, files in os.walk(path):
        for name in files:
            pulse()
            if time.monotonic() >= until:
                return False
            with contextlib.suppress(OSError):  # whatever stays is noticed below
                os.unlink(os.path.join(directory, name))
    shutil.rmtree(path, ignore_errors=True)
    return not os.path.lexists(path)

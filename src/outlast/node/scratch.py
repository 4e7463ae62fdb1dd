"""The attempt's own directory: working directory, data, outputs in the making."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from dataclasses import dataclass

#: A longer row of attempts that were each killed while carrying outputs on does not come about.
_MOST_HOPS = 100


@dataclass(frozen=True)
class Scratch:
    """Where things are below an attempt's scratch directory."""

    top: str

    @property
    def working(self) -> str:
        return os.path.join(self.top, "job")

    @property
    def data(self) -> str:
        return os.path.join(self.top, "data")

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

    def carry_on(self, previous: str | None) -> None:
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
                _copy(earlier.output, temporary)
                os.rename(temporary, self.output)
                break
            previous = earlier._still_to_carry()
        os.makedirs(self.output, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.carried_from)
        for done in passed:
            shutil.rmtree(done, ignore_errors=True)  # a remainder only costs space

    def _still_to_carry(self) -> str | None:
        try:
            with open(self.carried_from, encoding="utf-8", errors="surrogateescape") as file:
                return file.read() or None
        except OSError:
            return None

    def clear(self, keep_output: bool, until: float) -> bool:
        """Remove it, all or all but the outputs. False: not everything could go before `until`."""
        kept = {self.output, self.carried_from} if keep_output else set()
        for directory, names, files in os.walk(self.top, topdown=True):
            if directory == self.top:
                names[:] = [name for name in names if os.path.join(directory, name) not in kept]
            for name in files:
                if time.monotonic() >= until:
                    return False
                path = os.path.join(directory, name)
                if path not in kept:
                    with contextlib.suppress(OSError):
                        os.unlink(path)
        if keep_output:
            for name in ("job", "data"):
                shutil.rmtree(os.path.join(self.top, name), ignore_errors=True)
            return True
        shutil.rmtree(self.top, ignore_errors=True)
        return not os.path.lexists(self.top)


def _copy(source: str, target: str) -> None:
    """Files, directories and links; what vanishes meanwhile was a temporary of a process still alive."""
    os.makedirs(target, exist_ok=True)
    for name in os.listdir(source):
        path, goal = os.path.join(source, name), os.path.join(target, name)
        with contextlib.suppress(FileNotFoundError):
            mode = os.lstat(path).st_mode
            if stat.S_ISDIR(mode):
                _copy(path, goal)
            elif stat.S_ISREG(mode) or stat.S_ISLNK(mode):
                shutil.copy2(path, goal, follow_symlinks=False)

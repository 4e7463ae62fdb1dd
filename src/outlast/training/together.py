"""How the parts of one checkpoint, written by several processes, become one: by files alone.

Messages between the processes belong to the training, which goes on meanwhile. Who finds that another has
died gives up; nothing counts until the directory has its name.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Callable

from outlast.training.files import descriptor
from outlast.training.image import part_name

#: Seconds after which a process that has not written its part is given up. A part is written in minutes.
_PATIENCE = 1800.0
#: Beside the name of a part: its process could not write it.
_FAILED = ".failed"
_PAUSES = (0.001, 0.01, 0.05, 0.2)


def await_parts(directory: str, world: int, check: Callable[[], None]) -> None:
    """Until all parts are there and durable. Raises OSError, and what `check` raises."""
    missing = [os.path.join(directory, part_name(rank, world)) for rank in range(world)]

    def there() -> bool:
        if not os.path.isdir(directory):
            raise FileNotFoundError("%s was removed" % directory)
        for path in missing:
            if os.path.exists(path + _FAILED):
                raise OSError("another process could not write its part, %s" % os.path.basename(path))
        missing[:] = [path for path in missing if not os.path.exists(path)]
        return not missing

    _until(there, check, lambda: "%s is not written by its process" % missing[0])


def give_up(part: str) -> None:
    """Tell the first process not to wait for this part; where not even that can be written, it waits."""
    with suppress(OSError), descriptor(part + _FAILED, os.O_WRONLY | os.O_CREAT):
        return


def await_commit(temporary: str, final: str) -> None:
    """Until the first process has given the whole its name. Raises OSError."""

    def gone() -> None:
        # Looked for in this order: it is renamed from the one to the other.
        if not os.path.exists(temporary) and not os.path.exists(final):
            raise OSError("the first process has given up this checkpoint")

    _until(lambda: os.path.exists(final), gone, lambda: "%s is not finished by the first process" % final)


def _until(happened: Callable[[], bool], check: Callable[[], None], complaint: Callable[[], str]) -> None:
    until = time.monotonic() + _PATIENCE
    looks = 0
    while not happened():
        if time.monotonic() > until:
            raise OSError(complaint())
        pause = _PAUSES[min(looks // 20, len(_PAUSES) - 1)]
        if looks % 20 == 19:
            check()
        looks += 1
        time.sleep(pause)

"""Threads that help, and are done without where none can be had."""

from __future__ import annotations

import os
import threading
from typing import Callable

#: For work that all cores can share: more of them gain little, and a node has other processes.
MOST = max(1, min(4, os.cpu_count() or 1))


def start(work: Callable[[], None]) -> threading.Thread | None:
    """A thread that does it; None where none can be had, as at the end of the interpreter."""
    thread = threading.Thread(target=work, name="outlast")
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread

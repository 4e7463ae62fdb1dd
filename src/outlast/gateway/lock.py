"""The lock of a gateway: one `up` or `tick` at a time takes messages and sends answers."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from outlast.errors import BadInput, NotWritable
from outlast.filesystem import describe_error
from outlast.gateway.gateway_directory import GatewayDirectory


@contextmanager
def hold_lock(directory: GatewayDirectory) -> Iterator[None]:
    """Hold the lock of a gateway. Raise BadInput, which names the process, if another one has it."""
    try:
        descriptor = os.open(directory.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise NotWritable("the gateway cannot be locked: %s" % describe_error(error)) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 200).decode("ascii", "replace").strip()
            raise BadInput(
                "%s: this gateway is running already (%s)" % (directory.root, holder or "unknown process")
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, ("pid %d on %s\n" % (os.getpid(), os.uname().nodename)).encode(), 0)
        yield
    finally:
        os.close(descriptor)

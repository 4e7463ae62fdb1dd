"""Commands and functions that are subject to file permissions, also if root runs the tests."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator

_PR_CAPBSET_DROP = 24
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2
#: Version 3 of the kernel's capability sets: effective, permitted and inheritable, in two halves.
_VERSION_3 = 0x20080522
_libc = ctypes.CDLL(None, use_errno=True)


def without_privileges() -> None:
    """Make root subject to file permissions from the next exec on."""
    if os.geteuid() == 0:
        for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
            assert _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0


@contextlib.contextmanager
def permissions_apply() -> Iterator[None]:
    """Make this thread subject to file permissions, as those of a plain user are, until the context ends."""
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    usual, restricted = (ctypes.c_uint32 * 6)(), (ctypes.c_uint32 * 6)()
    assert _libc.capget(header, usual) == 0
    restricted[:] = usual[:]
    restricted[0] &= ~(1 << _CAP_DAC_OVERRIDE | 1 << _CAP_DAC_READ_SEARCH)
    assert _libc.capset(header, restricted) == 0
    try:
        yield
    finally:
        assert _libc.capset(header, usual) == 0

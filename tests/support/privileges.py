"""Commands that are subject to file permissions, also if root runs the tests."""

from __future__ import annotations

import ctypes
import os

_PR_CAPBSET_DROP = 24
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2
_libc = ctypes.CDLL(None)


def without_privileges() -> None:
    """Make root subject to file permissions from the next exec on."""
    if os.geteuid() == 0:
        for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
            assert _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0

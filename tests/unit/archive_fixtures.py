"""What tests of unpacking share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outlast.node.archives import moving
from outlast.node.pulse import silent


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nothing waits for the disk, which others keep busy; the list has the paths that would be synced."""
    synced: list[str] = []

    def sync(path: str, pulse: Callable[[], None] = silent) -> None:
        synced.append(path)

    monkeypatch.setattr(moving, "sync", sync)
    return synced

"""What tests of unpacking share."""

from __future__ import annotations

import pytest

from outlast.node.archives import writeback


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nothing waits for the disk, which others keep busy; the list has the paths that would be synced."""
    synced: list[str] = []
    monkeypatch.setattr(writeback, "sync_file_system", lambda descriptor, path: synced.append(path))
    return synced

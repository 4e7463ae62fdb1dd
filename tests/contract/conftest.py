from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.rehearsal import LocalRehearsal, Rehearsal

SCHEDULERS: dict[str, type[Rehearsal]] = {"local": LocalRehearsal}


@pytest.fixture(params=sorted(SCHEDULERS))
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rehearsal]:
    rehearsal = SCHEDULERS[request.param](tmp_path)
    yield rehearsal
    rehearsal.close()

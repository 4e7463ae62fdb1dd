"""The names of the requests in an inbox. Imports nothing else: `status` counts them."""

from __future__ import annotations

import re
from pathlib import Path

_NAME = re.compile(r"[0-9].*\.json", re.DOTALL)


def waiting_requests(directory: Path) -> list[str]:
    """Return the names of the requests in this inbox, oldest first."""
    try:
        found = [path for path in directory.iterdir() if _NAME.fullmatch(path.name)]
        # Another controller may have removed it meanwhile.
        return sorted(path.name for path in found if path.exists())
    except OSError:
        return []  # there is none yet, or it cannot be read now

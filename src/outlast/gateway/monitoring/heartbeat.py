"""The heartbeat of a running gateway: a small file that says how it is, for `status` and health checks."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from outlast.untrusted_files import parse_json, read_file

#: Seconds without a heartbeat after which a gateway does not count as running.
STALE_AFTER = 30.0
_MOST_BYTES = 1 << 20
#: The bytes of the file, at least: spaces follow what it has.
_SIZE = 1 << 14


@dataclass(frozen=True)
class Heartbeat:
    """How a gateway is; times are seconds since 1970."""

    pid: int = 0
    host: str = ""
    started: float = 0.0
    at: float = 0.0
    connected_since: float | None = None
    down_since: float | None = None
    #: Why it is not connected, or why the broker takes nothing; empty: all is well.
    reason: str = ""
    broker: str = ""
    #: By queue: consumed, or what is wrong with it.
    queues: Mapping[str, str] = field(default_factory=dict)
    #: By template: why its experiment is not supervised, or its scheduler does not respond.
    troubles: Mapping[str, str] = field(default_factory=dict)
    draining: bool = False

    @property
    def alive(self) -> bool:
        """True if the process that wrote it is running, as far as that can be seen from here."""
        if time.time() - self.at > STALE_AFTER:
            return False
        if self.host != os.uname().nodename:
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


def write_heartbeat(path: Path, heartbeat: Heartbeat) -> None:
    """Write the heartbeat, replacing the one before. Raise OSError."""
    temporary = path.with_name(".%s.%d" % (path.name, os.getpid()))
    content = json.dumps(asdict(heartbeat)).encode().ljust(_SIZE)
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        # On a full disk there are still the blocks of the heartbeat before, which has the same size.
        with path.open("r+b") as file:
            file.write(content)


def read_heartbeat(path: Path) -> Heartbeat | None:
    """Return the last heartbeat; None if there is none that can be read."""
    try:
        raw = parse_json(read_file(path, _MOST_BYTES))
        return Heartbeat(**raw)
    except (OSError, ValueError, TypeError):
        return None

"""What the benchmarks of transfers share: a folder, who is trusted, and files that a real nginx gives."""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# The servers are those of the tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from servers.certificates import Authority
from servers.nginx import Nginx

MB, MIB, GB, GIB = 10**6, 1 << 20, 10**9, 1 << 30


@dataclass(frozen=True)
class Scene:
    folder: Path
    authority: Authority
    rounds: int

    @property
    def ca(self) -> Path:
        return self.authority.bundle

    @contextlib.contextmanager
    def nginx(self, name: str, size: int, cap: int = GIB) -> Iterator[Nginx]:
        """With one file of bytes that do not compress; `cap` holds for one connection to /capped/."""
        block = random.Random(1).randbytes(16 * MIB)
        with Nginx(self.authority, cap) as server:
            with (server.files / name).open("wb") as file:
                for start in range(0, size, len(block)):
                    file.write(block[: size - start])
            yield server


def sha256(path: Path) -> str:
    state = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(MIB):
            state.update(block)
    return state.hexdigest()

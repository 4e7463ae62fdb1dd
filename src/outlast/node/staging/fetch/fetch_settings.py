"""How patient a fetch is, how much memory it takes, and what it takes from outside: time and chance."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Callable

MIB = 1 << 20


@dataclass(frozen=True)
class FetchSettings:
    #: Bytes of one block, and how many blocks lie between one connection and the disk. Their product is what
    #: a process that is killed may have received and not written: the one buffer that is fetched twice.
    block: int = 2 * MIB
    blocks: int = 4
    #: At most so many connections at once. Each of several fetches segments of `segment_blocks` blocks, and
    #: needs as much memory; with one connection the file comes in one piece.
    connections: int = 4
    segment_blocks: int = 8
    #: Seconds without a new byte, over all sources, after which the fetch gives up.
    patience: float = 600.0
    #: The pauses of a source that fails again and again grow from the one to the other.
    first_pause: float = 1.0
    longest_pause: float = 60.0
    #: A source that asks for a longer pause than this is asked again after this.
    longest_retry_after: float = 300.0
    #: A crawl is less than this share of what the sources just gave, over so many seconds.
    crawl_share: float = 0.1
    crawl_window: float = 20.0
    #: Seconds between two looks at how fast it goes.
    look: float = 1.0
    #: "Not there" and "not for you" count as true when every source has said it so often, over so long.
    refusals: int = 5
    refusal_seconds: float = 120.0
    #: How often all may be thrown away and begun again: wrong digests, changed files.
    restarts: int = 5
    #: Free space that must be left.
    margin: int = 64 * MIB
    #: What is computed for the receipt where no digest is known; empty: nothing.
    fallback_digest: str = "sha256"


@dataclass(frozen=True)
class FetchClock:
    """Time and chance, handed in so that a test need not wait. `now` never goes back."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    #: From 0 up to, not including, 1.
    chance: Callable[[], float] = random.random

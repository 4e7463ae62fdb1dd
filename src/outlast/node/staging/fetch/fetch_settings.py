"""Settings of a fetch (patience, memory, limits), and its clock and source of randomness."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Callable

MIB = 1 << 20


@dataclass(frozen=True)
class FetchSettings:
    #: Bytes of one block, and blocks between one connection and the disk. Their product bounds what a killed
    #: process may have received and not written, that is, what is fetched twice.
    block_size: int = 2 * MIB
    block_count: int = 4
    #: Most connections at once. Each of several connections fetches segments of `segment_blocks` blocks and
    #: needs that much memory; a single connection fetches the file in one piece.
    connections: int = 4
    segment_blocks: int = 8
    #: Seconds without a new byte, over all sources, after which the fetch gives up.
    patience: float = 600.0
    #: Shortest and longest pause, in seconds, before a failing source is retried; it doubles in between.
    first_pause: float = 1.0
    longest_pause: float = 60.0
    #: Upper limit for the pause that a source requests with Retry-After, in seconds.
    longest_retry_after: float = 300.0
    #: A source crawls if, over `crawl_window` seconds, it delivers less than this share of the best recent
    #: rate.
    crawl_share: float = 0.1
    crawl_window: float = 20.0
    #: Seconds between two checks of the throughput.
    check_interval: float = 1.0
    #: "Missing" and "refused" are believed once every source has responded so this often, for this long.
    refusals: int = 5
    refusal_seconds: float = 120.0
    #: How often a fetch may discard all bytes and restart, after wrong digests or changed files.
    restarts: int = 5
    #: Bytes of disk that must stay free.
    margin: int = 64 * MIB
    #: The digest to compute for the receipt if none is known; empty: none.
    fallback_digest: str = "sha256"


@dataclass(frozen=True)
class FetchClock:
    """Time and randomness, replaced in tests so that they need not wait. `now` never goes backwards."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    #: Returns a random number from 0 up to, not including, 1.
    jitter: Callable[[], float] = random.random

"""One item of data from its sources into its sink: resumed, checked, and given up only when nothing helps.

known      what is pinned, and what the sources say of the file
choice     which source is asked next, and when
delivery   bytes from the sources to the sink, through all troubles
  stream, receiver     one or several connections, and bytes in their order
  crawl, widening      when to turn elsewhere; when more connections pay
digests    what proves that they are the right ones
books      what was given by whom, and what every trouble cost
"""

from __future__ import annotations

import os
from typing import Callable, Sequence

from outlast.node.archives.sink import BadArchive, Block, Sink
from outlast.node.pulse import silent
from outlast.node.staging.errors import ErrorKind, FetchFailed, SourceError
from outlast.node.staging.fetch import digests, disk_space
from outlast.node.staging.fetch.context import FetchContext, RestartFetch
from outlast.node.staging.fetch.digests import NOBODY
from outlast.node.staging.fetch.fetch_settings import FetchClock, FetchSettings
from outlast.node.staging.fetch.receipt import FetchProgress, Receipt
from outlast.node.staging.fetch.throughput import SlowSourceDetector
from outlast.node.staging.fetch.transfer import Transfer
from outlast.node.staging.item import DataItem
from outlast.node.staging.sources.base import Source


def untold(progress: FetchProgress) -> None:
    """For a fetch that nobody watches."""


def fetch(
    wanted: DataItem,
    sources: Sequence[Source],
    sink: Sink,
    settings: FetchSettings | None = None,
    tell: Callable[[FetchProgress], None] = untold,
    pulse: Callable[[], None] = silent,
    clock: FetchClock | None = None,
) -> Receipt:
    """The sink has all of it, and it was the right bytes, when this returns. Closing it is the caller's.

    `tell` hears of the progress about five times a second; `pulse` is called at least once a second, and may
    raise to end the fetch. However it ends, the sink keeps what is good for the next fetch.

    Raises GivenUp; ValueError for a pinned digest that is none; OSError for trouble with the disk other than
    that it is full; what the pulse raises.
    """
    if not sources:
        raise ValueError("no source to fetch %s from" % wanted.name)
    affairs = FetchContext(wanted, sources, settings or FetchSettings(), tell, pulse, clock or FetchClock())
    return _Fetch(affairs, sink).run()


def identify(
    wanted: DataItem,
    sources: Sequence[Source],
    settings: FetchSettings | None = None,
    tell: Callable[[FetchProgress], None] = untold,
    pulse: Callable[[], None] = silent,
    clock: FetchClock | None = None,
) -> str:
    """Which bytes these are: by what is pinned, else by what the first source to answer says of them.

    The same for two processes that want the same. Raises GivenUp, and what the pulse raises.
    """
    affairs = FetchContext(wanted, sources, settings or FetchSettings(), tell, pulse, clock or FetchClock())
    affairs.find_out()
    return affairs.known.identity()


class _Fetch:
    def __init__(self, affairs: FetchContext, sink: Sink) -> None:
        self._affairs = affairs
        self._sink = sink
        self._crawl = SlowSourceDetector(affairs.settings)
        self._began = affairs.clock.now()
        self._restarts = 0
        self._nonce = os.urandom(8).hex()
        self._resumed_from: int | None = None
        self._connections = 1
        #: How often a source that was alone gave wrong bytes.
        self._wrong: dict[int, int] = {}

    def run(self) -> Receipt:
        while True:
            affairs = self._affairs
            affairs.find_out()
            version = affairs.known.version
            affairs.proof = digests.proof(
                affairs.known.pinned, version.digests if version else {}, affairs.settings.fallback_digest
            )
            left_over, delivery = self._prepare()
            try:
                return self._pass(delivery)
            except RestartFetch as again:
                self._start_again(again.trouble, delivery, left_over)

    def _prepare(self) -> tuple[int, Transfer]:
        """How many bytes are there from an earlier process, and the delivery of the rest."""
        affairs, hashed = self._affairs, digests.Digests(self._affairs.proof.algorithms)
        try:
            left_over = self._sink.resume(self._identity(), self._replaying(hashed))
            size = affairs.known.size
            if size is not None and left_over > size:
                self._sink.restart()
                hashed, left_over = digests.Digests(affairs.proof.algorithms), 0
        except OSError as error:
            if error.errno in disk_space.FULL:
                raise disk_space.full(self._sink, error, 0, affairs.known.size) from error
            raise
        if self._resumed_from is None:
            self._resumed_from = left_over
        affairs.done = left_over
        return left_over, Transfer(affairs, self._sink, self._crawl, hashed, left_over)

    def _identity(self) -> str:
        """Half of one file and half of the next are no file: where they cannot be told apart, nothing that
        another process left is gone on with."""
        known = self._affairs.known
        return known.identity() if known.is_told_apart else "%s %s" % (known.identity(), self._nonce)

    def _replaying(self, hashed: digests.Digests) -> Callable[[Block], None]:
        def replay(block: Block) -> None:
            hashed.replay(block)
            self._affairs.pulse()

        return replay

    def _pass(self, delivery: Transfer) -> Receipt:
        affairs = self._affairs
        try:
            delivery.run()
        finally:
            self._connections = max(self._connections, delivery.most_connections)
        found = delivery.hashed.results()
        contradiction = affairs.proof.contradiction(found)
        if contradiction:
            raise RestartFetch(SourceError(ErrorKind.WRONG_DIGEST, contradiction, self._suspect(delivery)))
        self._finish(delivery)
        affairs.books.settle(affairs.clock.now())
        return Receipt(
            bytes=delivery.position,
            digests=found,
            checked=tuple(affairs.proof.expected),
            vouched=affairs.proof.vouched,
            sources=affairs.books.by_name(),
            costs=affairs.books.costs,
            seconds=affairs.clock.now() - self._began,
            resumed_from=self._resumed_from or 0,
            connections=self._connections,
        )

    def _finish(self, delivery: Transfer) -> None:
        affairs = self._affairs
        try:
            self._sink.finish()
        except BadArchive as error:
            trouble = SourceError(ErrorKind.BAD_ARCHIVE, str(error), self._suspect(delivery))
            if affairs.proof.vouched == NOBODY:
                raise RestartFetch(trouble) from error
            raise FetchFailed("%s: %s" % (affairs.wanted.name, error), trouble) from error
        except OSError as error:
            if error.errno in disk_space.FULL:
                raise disk_space.full(self._sink, error, delivery.position, affairs.known.size) from error
            raise

    # Wrong bytes

    def _suspect(self, delivery: Transfer) -> str:
        """The source's name, if there was one only."""
        names = [self._affairs.choice.names[index] for index in delivery.contributors]
        return names[0] if len(names) == 1 else ""

    def _start_again(self, trouble: SourceError, delivery: Transfer, left_over: int) -> None:
        affairs = self._affairs
        if trouble is not affairs.last_trouble:
            affairs.books.trouble(trouble.kind, affairs.clock.now())
            affairs.last_trouble = trouble
        affairs.books.twice(trouble.kind, delivery.position)
        self._sink.restart()
        self._restarts += 1
        if self._restarts > affairs.settings.restarts:
            raise affairs.given_up(trouble, "begun again %d times; " % affairs.settings.restarts)
        # What was said of the file may have been said by whoever gave wrong bytes.
        affairs.known.forget()
        affairs.choice.reconsider()
        if trouble.kind is not ErrorKind.CHANGED:
            self._blame(trouble, delivery, left_over)
        affairs.check_hope()

    def _blame(self, trouble: SourceError, delivery: Transfer, left_over: int) -> None:
        """Whoever gave all of it alone gave wrong bytes; of several, one is asked alone to find the liar."""
        choice = self._affairs.choice
        if len(delivery.contributors) == 1 and not left_over:
            (index,) = delivery.contributors
            self._wrong[index] = self._wrong.get(index, 0) + 1
            choice.alone = None
            # Where nobody else is left it has one more chance: a bit may have been flipped on the way.
            if choice.usable() != [index] or self._wrong[index] > 1:
                choice.put_aside(index, trouble)
        elif delivery.contributors:
            suspects = [index for index in choice.usable() if index in delivery.contributors]
            choice.alone = suspects[0] if suspects else None

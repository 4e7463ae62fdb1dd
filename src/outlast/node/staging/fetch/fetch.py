"""Fetch the bytes of one item from its sources into a sink: resumed, verified, retried until nothing helps.

Where to read, in the order in which the bytes of one file arrive:

1. fetch (here)          identify the file, transfer it, compare digests, restart after wrong bytes
2. source_selection      which source is used next, and after which pause
3. transfer              one pass from a position to the end of the file, through all errors of the sources
4. ordered_stream        the chunks of one or several connections, written in file order
5. receiver              one connection: a thread that requests byte ranges and fills buffers
6. sources/http_source   one HTTP request for a range; redirects, tokens
7. http/request          the request on the wire and the head of its response
8. http/body             the bytes of the response's body

Beside that path: `context` (state that all parts share), `file_identity` (whether all sources have the same
file), `throughput` (slow sources, number of connections), `digests`, `disk_space`, `receipt` (progress,
costs), and `part_file` (the sink for a plain file).
"""

from __future__ import annotations

import os
from typing import Callable, Sequence

from outlast.node.archives.sink import BadArchive, Block, Sink
from outlast.node.pulse import no_pulse
from outlast.node.staging.errors import ErrorKind, FetchFailed, SourceError
from outlast.node.staging.fetch import disk_space
from outlast.node.staging.fetch.context import FetchContext, RestartFetch
from outlast.node.staging.fetch.digests import NOBODY, Digests, choose_check
from outlast.node.staging.fetch.fetch_settings import FetchClock, FetchSettings
from outlast.node.staging.fetch.receipt import FetchProgress, Receipt
from outlast.node.staging.fetch.throughput import SlowSourceDetector
from outlast.node.staging.fetch.transfer import Transfer
from outlast.node.staging.item import DataItem
from outlast.node.staging.sources.base import Source


def ignore_progress(progress: FetchProgress) -> None:
    """Do nothing: the default for `on_progress`."""


def fetch(
    item: DataItem,
    sources: Sequence[Source],
    sink: Sink,
    settings: FetchSettings | None = None,
    on_progress: Callable[[FetchProgress], None] = ignore_progress,
    pulse: Callable[[], None] = no_pulse,
    clock: FetchClock | None = None,
) -> Receipt:
    """Bring all bytes of `item` into `sink`, verified and finished. The caller closes the sink.

    `on_progress` is called about five times a second; `pulse` at least once a second, and it may raise to end
    the fetch. However the fetch ends, the sink keeps the good bytes for the next fetch.

    Raises FetchFailed; ValueError for an invalid pinned digest; OSError for disk errors other than a full
    disk; and what `pulse` raises.
    """
    if not sources:
        raise ValueError("no source to fetch %s from" % item.name)
    context = FetchContext(
        item, sources, settings or FetchSettings(), on_progress, pulse, clock or FetchClock()
    )
    return _Fetch(context, sink).run()


def identify(
    item: DataItem,
    sources: Sequence[Source],
    settings: FetchSettings | None = None,
    on_progress: Callable[[FetchProgress], None] = ignore_progress,
    pulse: Callable[[], None] = no_pulse,
    clock: FetchClock | None = None,
) -> str:
    """Return a text that identifies the bytes, from pinned digests or else the first source to respond.

    Two processes that need the same bytes get the same text. Raises FetchFailed, and what `pulse` raises.
    """
    context = FetchContext(
        item, sources, settings or FetchSettings(), on_progress, pulse, clock or FetchClock()
    )
    context.identify_file()
    return context.file.identity()


class _Fetch:
    """The passes of one fetch: each transfers the file, and a pass that yields wrong bytes is repeated."""

    def __init__(self, context: FetchContext, sink: Sink) -> None:
        self._context = context
        self._sink = sink
        self._slow_detector = SlowSourceDetector(context.settings)
        self._started = context.clock.now()
        self._restarts = 0
        self._nonce = os.urandom(8).hex()
        self._resumed_from: int | None = None
        self._peak_connections = 1
        #: How often each source delivered wrong bytes when it was the only one.
        self._wrong_passes: dict[int, int] = {}

    def run(self) -> Receipt:
        while True:
            context = self._context
            context.identify_file()
            version = context.file.version
            context.digest_check = choose_check(
                context.file.pinned, version.digests if version else {}, context.settings.fallback_digest
            )
            resumed, transfer = self._prepare()
            try:
                return self._run_pass(transfer)
            except RestartFetch as restart:
                self._restart(restart, transfer, resumed)

    def _prepare(self) -> tuple[int, Transfer]:
        """Return the number of bytes left by an earlier process, and the transfer of the rest."""
        context, digests = self._context, Digests(self._context.digest_check.algorithms)
        try:
            resumed = self._sink.resume(self._identity(), self._make_replay(digests))
            size = context.file.size
            if size is not None and resumed > size:
                self._sink.restart()
                digests, resumed = Digests(context.digest_check.algorithms), 0
        except OSError as error:
            if error.errno in disk_space.DISK_FULL_ERRNOS:
                raise disk_space.disk_full_error(self._sink, error, 0, context.file.size) from error
            raise
        if self._resumed_from is None:
            self._resumed_from = resumed
        context.bytes_done = resumed
        return resumed, Transfer(context, self._sink, self._slow_detector, digests, resumed)

    def _identity(self) -> str:
        """Return the identity for the sink; unique to this process if a changed file could go unnoticed.

        Otherwise a part of the old file could be completed with bytes of the new one.
        """
        file = self._context.file
        return file.identity() if file.is_distinguishable else "%s %s" % (file.identity(), self._nonce)

    def _make_replay(self, digests: Digests) -> Callable[[Block], None]:
        def replay(block: Block) -> None:
            digests.update(block)
            self._context.pulse()

        return replay

    def _run_pass(self, transfer: Transfer) -> Receipt:
        """Transfer the file once and verify it. Raises RestartFetch if the bytes are wrong."""
        context = self._context
        try:
            if not transfer.has_all_bytes():
                transfer.run()
        finally:
            self._peak_connections = max(self._peak_connections, transfer.peak_connections)
        results = transfer.digests.results()
        mismatch = context.digest_check.mismatch(results)
        if mismatch:
            raise RestartFetch(SourceError(ErrorKind.WRONG_DIGEST, mismatch, self._only_source(transfer)))
        self._finish(transfer)
        context.cost_log.charge_elapsed(context.clock.now())
        return Receipt(
            bytes=transfer.position,
            digests=results,
            checked=tuple(context.digest_check.expected),
            vouched=context.digest_check.vouched,
            sources=context.cost_log.shares_by_name(),
            costs=context.cost_log.costs,
            seconds=context.clock.now() - self._started,
            resumed_from=self._resumed_from or 0,
            connections=self._peak_connections,
        )

    def _finish(self, transfer: Transfer) -> None:
        context = self._context
        try:
            self._sink.finish()
        except BadArchive as bad:
            error = SourceError(ErrorKind.BAD_ARCHIVE, str(bad), self._only_source(transfer))
            if context.digest_check.vouched == NOBODY:
                raise RestartFetch(error) from bad
            raise FetchFailed("%s: %s" % (context.item.name, bad), error) from bad
        except OSError as failed:
            if failed.errno in disk_space.DISK_FULL_ERRNOS:
                raise disk_space.disk_full_error(
                    self._sink, failed, transfer.position, context.file.size
                ) from failed
            raise

    # Wrong bytes

    def _only_source(self, transfer: Transfer) -> str:
        """Return the name of the source that delivered in this pass; empty if there were several."""
        names = [self._context.selector.names[index] for index in transfer.contributors]
        return names[0] if len(names) == 1 else ""

    def _restart(self, restart: RestartFetch, transfer: Transfer, resumed: int) -> None:
        """Discard all bytes and prepare the next pass. Raises FetchFailed after too many restarts."""
        context, error = self._context, restart.error
        if error is not context.last_error:
            context.cost_log.add_error(error.kind, context.clock.now())
            context.last_error = error
        context.cost_log.add_refetched(error.kind, transfer.position)
        self._sink.restart()
        self._restarts += 1
        if self._restarts > context.settings.restarts:
            raise context.make_failure(error, "restarted %d times; " % context.settings.restarts)
        # The file's description may come from the source that delivered the wrong bytes.
        context.file.reset()
        context.selector.readmit_changed()
        if restart.is_wrong and error.kind is not ErrorKind.CHANGED:
            self._blame(error, transfer, resumed)
        context.raise_if_hopeless()

    def _blame(self, error: SourceError, transfer: Transfer, resumed: int) -> None:
        """Exclude the source that delivered the whole file; if there were several, try one of them alone."""
        selector = self._context.selector
        if len(transfer.contributors) == 1 and not resumed:
            (index,) = transfer.contributors
            self._wrong_passes[index] = self._wrong_passes.get(index, 0) + 1
            selector.only = None
            # The last usable source gets a second chance: a bit may have been flipped on the way.
            if selector.usable() != [index] or self._wrong_passes[index] > 1:
                selector.exclude(index, error)
        elif transfer.contributors:
            suspects = [index for index in selector.usable() if index in transfer.contributors]
            selector.only = suspects[0] if suspects else None

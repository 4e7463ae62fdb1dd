"""Generations: only the attempt with the newest claim may save.

A job that the scheduler believes dead may still run beside its successor. Before it commits a checkpoint, it
finds the newer claim and stops. Processes of one attempt (ranks, an evaluation) have the same token and share
a generation. Outside a job there is no token, and each process is an attempt of its own.
"""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any

from outlast.training.checkpoints import checkpoint_names, durable_files
from outlast.training.errors import Damaged, Superseded
from outlast.untrusted_files import parse_json, remove

_MAX_TRIES = 100
#: A claim is made by creating its file; the content follows a moment later. Reads to try, and seconds
#: between.
_MAX_READS = 5
_PAUSE = 0.05
#: Largest content of a claim that is read.
_MAX_CLAIM = 2**16


class GenerationClaim:
    """This process's generation in one checkpoint directory; 0 until it is claimed."""

    def __init__(self, directory: str, token: str | None = None) -> None:
        self._directory = directory
        self._token = token
        self.generation = 0
        #: The newest claim at the first try: a later one belongs to another process.
        self._newest_at_start: int | None = None

    def acquire(self) -> None:
        """Claim the next generation or share the attempt's; do nothing if that is done.

        Raises OSError, or Superseded if another attempt claimed one since the first try.
        """
        if not os.path.isdir(self._directory):
            os.makedirs(self._directory, exist_ok=True)
            durable_files.sync_directory(os.path.dirname(self._directory))
            if self.generation:
                # Scratch file systems are purged while jobs run; the claim still holds.
                self._renew()
        if self.generation:
            return
        names = os.listdir(self._directory)
        newest = max([0, *map(checkpoint_names.parse_claim, names)])
        if self._is_of_our_attempt(newest):
            self.generation = newest
            return
        if self._newest_at_start is None:
            self._newest_at_start = newest
        elif newest > self._newest_at_start:
            raise self._superseded(newest)
        # Checkpoints may have been copied here without the hidden files.
        number = max([newest, *(checkpoint_names.parse_age(name)[0] for name in names)])
        for _ in range(_MAX_TRIES):
            number += 1
            try:
                self._write(number)
            except FileExistsError:
                if not self._is_of_our_attempt(number):
                    continue
            self.generation = number
            self._remove_older()
            return
        raise OSError("no free generation in %s" % self._directory)

    def check(self) -> None:
        """Raise Superseded if another attempt has a newer claim; adopt a newer one of the same attempt."""
        newest = max([0, *map(checkpoint_names.parse_claim, os.listdir(self._directory))])
        if newest > self.generation:
            if not self._is_of_our_attempt(newest):
                raise self._superseded(newest)
            self.generation = newest

    def _is_of_our_attempt(self, number: int) -> bool:
        if not self._token or number == 0:
            return False
        for attempt in range(_MAX_READS):
            try:
                return bool(self._read(number)["token"] == self._token)
            except (OSError, ValueError, TypeError, KeyError, Damaged):
                # The content is being written, or never was because the disk was full.
                if attempt < _MAX_READS - 1:
                    time.sleep(_PAUSE)
        return False

    def _read(self, number: int) -> Any:
        path = os.path.join(self._directory, checkpoint_names.claim_name(number))
        return parse_json(durable_files.read_file(path, _MAX_CLAIM))

    def _renew(self) -> None:
        try:
            self._write(self.generation)
        except FileExistsError:
            # Another process of the attempt was faster.
            return

    def _write(self, number: int) -> None:
        path = os.path.join(self._directory, checkpoint_names.claim_name(number))
        who = {
            "token": self._token,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "at": time.time(),
        }
        with durable_files.open_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
            try:
                durable_files.write_all(fd, memoryview(json.dumps(who).encode("ascii")))
            except OSError:
                # The disk may be full. The existing file is the claim; without content, no other process can
                # share it.
                return

    def _remove_older(self) -> None:
        try:
            for name in os.listdir(self._directory):
                if 0 < checkpoint_names.parse_claim(name) < self.generation:
                    remove(os.path.join(self._directory, name))
        except OSError:
            # Only the highest claim counts; lower ones do no harm.
            return

    def _superseded(self, newest: int) -> Superseded:
        who = ""
        try:
            claim = self._read(newest)
            who = " (process %d on %s)" % (claim["pid"], ascii(claim["host"])[1:-1][:100])
        except (OSError, ValueError, TypeError, KeyError, Damaged):
            # The owner only makes the message more helpful.
            who = ""
        return Superseded(
            "another process%s has taken over this run: it called outlast.load() or outlast.save() with the "
            "checkpoints in %s later than this one. This process can no longer save; end it."
            % (who, self._directory)
        )

"""Which processes' checkpoints count: those of the attempt that claimed a generation last.

A job that the scheduler believed dead may still live beside its successor. It finds the newer claim before
it commits anything, and stops. Processes of one attempt (ranks, an evaluation) have one token and share
their generation. Outside a job there is no token, and each process is an attempt of its own.
"""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any

from outlast.training.checkpoints import checkpoint_names, durable_files
from outlast.training.errors import Damaged, Superseded

_TRIES = 100
#: A claim is made by its name; who made it is there a moment later. Looks for it, and seconds between them.
_LOOKS = 5
_PAUSE = 0.05


class GenerationClaim:
    """This process's generation in one checkpoint directory; 0 until it is claimed."""

    def __init__(self, directory: str, token: str | None = None) -> None:
        self._directory = directory
        self._token = token
        self.generation = 0
        #: The newest claim there was at the first try: a later one is another process's.
        self._seen: int | None = None

    def make(self) -> None:
        """Claim the next generation, or share the attempt's, once.

        Raises OSError, or Superseded if another attempt came since.
        """
        if not os.path.isdir(self._directory):
            os.makedirs(self._directory, exist_ok=True)
            durable_files.sync_directory(os.path.dirname(self._directory))
            if self.generation:
                # Scratch file systems are purged while a training runs; its claim holds nevertheless.
                self._renew()
        if self.generation:
            return
        names = os.listdir(self._directory)
        newest = max([0, *map(checkpoint_names.claimed, names)])
        if self._is_of_our_attempt(newest):
            self.generation = newest
            return
        if self._seen is None:
            self._seen = newest
        elif newest > self._seen:
            raise self._superseded(newest)
        # Checkpoints may have been copied here without the hidden files.
        number = max([newest, *(checkpoint_names.age_of(name)[0] for name in names)])
        for _ in range(_TRIES):
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
        """Raises Superseded if another attempt's newer claim exists; one of our own attempt is taken on."""
        newest = max([0, *map(checkpoint_names.claimed, os.listdir(self._directory))])
        if newest > self.generation:
            if not self._is_of_our_attempt(newest):
                raise self._superseded(newest)
            self.generation = newest

    def _is_of_our_attempt(self, number: int) -> bool:
        if not self._token or number == 0:
            return False
        for look in range(_LOOKS):
            try:
                return bool(self._read(number)["token"] == self._token)
            except (OSError, ValueError, TypeError, KeyError, Damaged):
                # Being written now, or never: the disk was full.
                if look < _LOOKS - 1:
                    time.sleep(_PAUSE)
        return False

    def _read(self, number: int) -> Any:
        return json.loads(
            durable_files.read_file(os.path.join(self._directory, checkpoint_names.claim_name(number)))
        )

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
        with durable_files.descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
            try:
                durable_files.write_all(fd, memoryview(json.dumps(who).encode("ascii")))
            except OSError:
                # The disk may be full. The file's existence is the claim; without its content it is nobody's
                # to share.
                return

    def _remove_older(self) -> None:
        try:
            for name in os.listdir(self._directory):
                if 0 < checkpoint_names.claimed(name) < self.generation:
                    durable_files.remove(os.path.join(self._directory, name))
        except OSError:
            # Only the highest claim counts; lower ones are clutter and harmless.
            return

    def _superseded(self, newest: int) -> Superseded:
        who = ""
        try:
            claim = self._read(newest)
            who = " (process %s on %s)" % (claim["pid"], claim["host"])
        except (OSError, ValueError, TypeError, KeyError, Damaged):
            # Who it is only makes the sentence better.
            who = ""
        return Superseded(
            "another process%s has taken over this run: it called outlast.load() or outlast.save() with the "
            "checkpoints in %s later than this one. Nothing more is saved from here; end this process."
            % (who, self._directory)
        )

"""The checkpoint directory of a run: generations, newest first, retention.

    step-000000001234-g000007-s000003     a checkpoint: step, generation, sequence in the generation
    .step-….<pid>-<random>.tmp            one being written, or being removed
    .bad-step-…-<random>                  one that was not whole, put aside
    .generation-000007                    the claim of the newest process

Each process that works on the run claims the next generation. The newest checkpoint is that of the highest
(generation, sequence), whatever its step: a training that had to step back is newer than what it left.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import socket
import time
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from outlast.training import files, image
from outlast.training.errors import CheckpointError, Damaged, Superseded
from outlast.training.image import Manifest
from outlast.training.names import LEAST_KEEP
from outlast.training.tree import Image

_NAME = re.compile(r"step-(\d{12,18})-g(\d{6,18})-s(\d{6,18})\Z")
_TEMPORARY = re.compile(r"\.step-\d{12,18}-g(\d{6,18})-s\d{6,18}\.(\d+)-[0-9a-f]+\.tmp\Z")
_CLAIM = re.compile(r"\.generation-(\d{6,18})\Z")
_BAD = ".bad-"
_CLAIM_TRIES = 100
_LISTING_TRIES = 5

Order = Tuple[int, int]
Loaded = Tuple[Any, Manifest]


def _order(name: str) -> Order:
    """By what the name says; a name that is not ours comes last."""
    match = _NAME.match(name)
    return (int(match.group(2)), int(match.group(3))) if match else (0, 0)


class Store:
    """One process's view of the directory. `warn` gets sentences for people, `aside` what was put aside."""

    def __init__(
        self,
        directory: str,
        keep: int,
        head: Callable[[], Dict[str, Any]],
        warn: Callable[[str], None],
        aside: Callable[[str, str], None],
    ) -> None:
        self._directory = directory
        self._keep = max(keep, LEAST_KEEP)
        self._head = head
        self._warn = warn
        self._aside = aside
        self._generation: Optional[int] = None
        #: The newest claim seen by the first call: a later one is another process's.
        self._seen: Optional[int] = None
        self._sequence = 0
        #: Checkpoints this process has read and found whole, as the files were then.
        self._whole: Set[Tuple[str, Any]] = set()

    # Generations

    def claim(self) -> None:
        """Become the process whose checkpoints count. Raises OSError, or Superseded if another came since."""
        if self._generation is not None:
            return
        os.makedirs(self._directory, exist_ok=True)
        names = os.listdir(self._directory)
        newest = self._newest_claim(names)
        if self._seen is None:
            self._seen = newest
        elif newest > self._seen:
            raise self._superseded(newest)
        number = max([newest] + [_order(name.replace(_BAD, "", 1)[:60])[0] for name in names])
        for _ in range(_CLAIM_TRIES):
            number += 1
            try:
                self._write_claim(number)
            except FileExistsError:
                continue
            self._generation = number
            self._remove_older_claims()
            return
        raise OSError("no free generation in %s" % self._directory)

    def _write_claim(self, number: int) -> None:
        path = os.path.join(self._directory, ".generation-%06d" % number)
        who = {"pid": os.getpid(), "host": socket.gethostname(), "at": time.time()}
        with files.descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
            try:
                files.write_all(fd, memoryview(json.dumps(who).encode("ascii")))
            except OSError:
                # The file's existence is the claim; its content only helps people, and the disk may be full.
                return

    def _remove_older_claims(self) -> None:
        for name in os.listdir(self._directory):
            match = _CLAIM.match(name)
            if match and int(match.group(1)) < (self._generation or 0):
                files.remove(os.path.join(self._directory, name))

    @staticmethod
    def _newest_claim(names: List[str]) -> int:
        return max([0] + [int(match.group(1)) for match in map(_CLAIM.match, names) if match])

    def _superseded(self, newest: int) -> Superseded:
        who = ""
        try:
            claim = json.loads(files.read_file(os.path.join(self._directory, ".generation-%06d" % newest)))
            who = " (process %s on %s)" % (claim["pid"], claim["host"])
        except (OSError, ValueError, TypeError, KeyError, Damaged):
            # Who it was only makes the sentence better.
            who = ""
        return Superseded(
            "another process%s has taken over this run: it called outlast.load() or outlast.save() on %s after "
            "this one did. Nothing more is saved from here; end this process." % (who, self._directory)
        )

    def _stop_if_superseded(self) -> None:
        newest = self._newest_claim(os.listdir(self._directory))
        if newest > (self._generation or 0):
            raise self._superseded(newest)

    # Loading

    def load(self) -> Optional[Loaded]:
        """The newest whole checkpoint, None if there never was one. Raises CheckpointError."""
        try:
            self.claim()
        except OSError as error:
            self._warn("cannot write into %s (%s); saving is tried again later" % (self._directory, error))
        bad: Dict[str, str] = {}
        for _ in range(_LISTING_TRIES):
            candidates = self._candidates(bad)
            if not candidates:
                break
            for name in candidates:
                loaded = self._try_load(name, bad)
                if loaded is not None:
                    return loaded
        if bad or any(name.startswith(_BAD) for name in self._listing()):
            raise self._none_whole(bad)
        return None

    def _listing(self) -> List[str]:
        try:
            return os.listdir(self._directory)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(
                "the checkpoints in %s cannot be looked at (%s), so it is not known whether this training has begun "
                "before; make the directory readable and start again" % (self._directory, error)
            ) from error

    def _candidates(self, bad: Dict[str, str]) -> List[str]:
        """Names of checkpoints, newest first. A sealed manifest says more about age than a name does."""
        found: List[Tuple[Order, str]] = []
        for name in self._listing():
            path = os.path.join(self._directory, name)
            ours = _NAME.match(name) is not None
            renamed = name.startswith("step-") and os.path.exists(os.path.join(path, image.MANIFEST))
            if name in bad or not (ours or renamed):
                continue
            try:
                manifest = image.read_manifest(path)
                found.append(((manifest.generation, manifest.sequence), name))
            except (OSError, Damaged, CheckpointError):
                # It is met again, and judged, when its turn to be loaded comes.
                found.append((_order(name), name))
        return [name for _, name in sorted(found, reverse=True)]

    def _try_load(self, name: str, bad: Dict[str, str]) -> Optional[Loaded]:
        path = os.path.join(self._directory, name)
        try:
            try:
                loaded = self._read(path)
            except OSError:
                # A network file system may need to be asked twice.
                loaded = self._read(path)
        except Damaged as error:
            if os.path.lexists(path):
                bad[name] = str(error)
                self._put_aside(name, str(error))
            return None
        except OSError as error:
            # The disk, not the checkpoint, may be at fault: it stays where it is.
            bad[name] = "cannot be read: %s" % error
            self._warn("checkpoint %s %s; trying the one before" % (name, bad[name]))
            self._aside(name, bad[name])
            return None
        self._remember_whole(name)
        return loaded

    @staticmethod
    def _read(path: str) -> Loaded:
        manifest = image.read_manifest(path)
        return image.read_state(path, manifest), manifest

    def _put_aside(self, name: str, why: str) -> None:
        self._warn("checkpoint %s is not whole (%s); it is put aside and the one before is tried" % (name, why))
        self._aside(name, why)
        target = "%s%s-%s" % (_BAD, name, secrets.token_hex(4))
        try:
            os.rename(os.path.join(self._directory, name), os.path.join(self._directory, target))
        except OSError as error:
            self._warn("%s cannot be renamed (%s); it stays where it is" % (name, error))

    def _none_whole(self, bad: Dict[str, str]) -> CheckpointError:
        reasons = "".join("\n  %s: %s" % item for item in bad.items())
        place = shlex.quote(self._directory)
        return CheckpointError(
            "there are checkpoints in %s, but none of them can be used.%s\nNothing was deleted; bad ones have names "
            "that begin with .bad- now. To start this training afresh:  mv %s %s.bad"
            % (self._directory, reasons, place, place)
        )

    # Saving

    def save(self, taken: Image, step: int) -> int:
        """Make a checkpoint durable; its size in bytes. Raises OSError, Damaged, Superseded."""
        self.claim()
        self._stop_if_superseded()
        self._remove_temporaries()
        self._sequence += 1
        name = "step-%012d-g%06d-s%06d" % (step, self._generation or 0, self._sequence)
        temporary = os.path.join(self._directory, self._temporary_name(name))
        final = os.path.join(self._directory, name)
        head = {"step": step, "generation": self._generation, "sequence": self._sequence, **self._head()}
        try:
            size = image.write(temporary, head, taken)
            image.verify(temporary)
            self._stop_if_superseded()
            os.rename(temporary, final)
        except BaseException as error:
            self._discard(temporary)
            if isinstance(error, OSError):
                # A newer process removes what older ones leave half-written.
                self._stop_if_superseded()
            raise
        files.sync_directory(self._directory)
        self._remember_whole(name)
        self._retire_old()
        return size

    @staticmethod
    def _temporary_name(name: str) -> str:
        return ".%s.%d-%s.tmp" % (name, os.getpid(), secrets.token_hex(4))

    def _discard(self, path: str) -> None:
        try:
            files.remove(path)
        except OSError as error:
            self._warn("%s cannot be removed now (%s); the next save tries again" % (path, error))

    def _remove_temporaries(self) -> None:
        """What older generations, or failed saves of this process, left half-written."""
        for name in os.listdir(self._directory):
            match = _TEMPORARY.match(name)
            if match is None:
                continue
            generation, pid = int(match.group(1)), int(match.group(2))
            mine = generation == self._generation and pid == os.getpid()
            if generation < (self._generation or 0) or mine:
                self._discard(os.path.join(self._directory, name))

    # Retention

    def _retire_old(self) -> None:
        """Remove what is older than the newest `keep`, never leaving fewer than two whole ones of two."""
        try:
            self._stop_if_superseded()
            names = sorted(filter(_NAME.match, os.listdir(self._directory)), key=_order, reverse=True)
            kept, older = names[: self._keep], names[self._keep :]
            whole = sum(1 for _ in zip(range(LEAST_KEEP), filter(self._is_whole, kept)))
            for name in older:
                if whole < LEAST_KEEP and self._is_whole(name):
                    whole += 1
                    continue
                self._retire(name)
            bad = sorted((name for name in os.listdir(self._directory) if name.startswith(_BAD)), reverse=True)
            for name in sorted(bad, key=lambda bad_name: _order(bad_name[len(_BAD) : -9]), reverse=True)[self._keep :]:
                self._retire(name)
        except (OSError, Superseded) as error:
            # The new checkpoint is safe, which is what the caller asks; old ones wait for the next save.
            self._warn("old checkpoints in %s are not removed this time: %s" % (self._directory, error))

    def _retire(self, name: str) -> None:
        # Removing takes many calls; half a checkpoint must not be met under a checkpoint's name.
        hidden = os.path.join(self._directory, self._temporary_name(name.replace(_BAD, "", 1)))
        os.rename(os.path.join(self._directory, name), hidden)
        files.remove(hidden)

    def _stamp(self, name: str) -> Any:
        paths = [os.path.join(self._directory, name, part) for part in (image.STATE, image.MANIFEST)]
        return tuple((s.st_ino, s.st_size, s.st_mtime_ns) for s in map(os.stat, paths))

    def _remember_whole(self, name: str) -> None:
        try:
            self._whole.add((name, self._stamp(name)))
        except OSError:
            # It is then read again before it counts as whole.
            return

    def _is_whole(self, name: str) -> bool:
        try:
            if (name, self._stamp(name)) not in self._whole:
                image.verify(os.path.join(self._directory, name))
                self._remember_whole(name)
            return True
        except (OSError, Damaged, CheckpointError):
            return False

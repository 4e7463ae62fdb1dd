"""The checkpoints of a run: the newest whole one is loaded, a new one appears whole or not at all."""

from __future__ import annotations

import errno
import os
import shlex
from typing import Any, Callable, Tuple

from outlast.training import files, image, layout
from outlast.training.claims import Claim
from outlast.training.errors import CheckpointError, Damaged, Superseded
from outlast.training.image import Manifest
from outlast.training.retention import Retention
from outlast.training.tree import Image

#: A checkpoint may vanish between listing and reading, when an older process still tidies up.
_LISTINGS = 5
#: How often a save is made again because another process of the attempt came between.
_TRIES = 20

Loaded = Tuple[Any, Manifest]


class Store:
    """One process's view of the directory. `warn` gets sentences for people, `aside` what was passed over."""

    def __init__(
        self,
        directory: str,
        keep: int,
        head: Callable[[], dict[str, Any]],
        warn: Callable[[str], None],
        aside: Callable[[str, str], None],
        token: str | None = None,
    ) -> None:
        self._directory = directory
        self._head = head
        self._warn = warn
        self._aside = aside
        self._claim = Claim(directory, token)
        self._retention = Retention(directory, keep)
        self._sequence = 0

    def load(self) -> Loaded | None:
        """The newest whole checkpoint, None if there never was one. Raises CheckpointError."""
        try:
            self._claim.make()
            self._remove_left_overs()
        except OSError as error:
            self._warn("cannot write into %s (%s); saving is tried again later" % (self._directory, error))
        bad: dict[str, str] = {}
        for _ in range(_LISTINGS):
            candidates = self._candidates(bad)
            if not candidates:
                break
            for name in candidates:
                loaded = self._try_load(name, bad)
                if loaded is not None:
                    return loaded
        else:
            raise self._none_whole(bad)
        if bad or any(map(layout.is_bad, self._listing())):
            raise self._none_whole(bad)
        return None

    def _listing(self) -> list[str]:
        try:
            return os.listdir(self._directory)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(
                "the checkpoints in %s cannot be looked at (%s), so nobody knows whether this training "
                "has begun before; make the directory readable and start again" % (self._directory, error)
            ) from error

    def _candidates(self, bad: dict[str, str]) -> list[str]:
        """Names of checkpoints, newest first. A sealed manifest says more about age than a name does."""
        found: list[tuple[layout.Age, str]] = []
        for name in self._listing():
            path = os.path.join(self._directory, name)
            renamed = name.startswith("step-") and os.path.exists(os.path.join(path, image.MANIFEST))
            if name in bad or not (layout.is_checkpoint(name) or renamed):
                continue
            try:
                manifest = image.read_manifest(path)
                found.append(((manifest.generation, manifest.sequence), name))
            except (OSError, Damaged, CheckpointError):
                # It is met again, and judged, when its turn to be loaded comes.
                found.append((layout.age_of(name), name))
        return [name for _, name in sorted(found, reverse=True)]

    def _try_load(self, name: str, bad: dict[str, str]) -> Loaded | None:
        path = os.path.join(self._directory, name)
        try:
            try:
                loaded = _read(path)
            except OSError:
                # A network file system may need to be asked twice.
                loaded = _read(path)
        except Damaged as error:
            if os.path.lexists(path):
                bad[name] = str(error)
                self._put_aside(name, str(error))
            return None
        except OSError as error:
            # The disk, not the checkpoint, may be at fault: it stays where it is.
            bad[name] = "cannot be read: %s" % error
            self._warn("checkpoint %s %s; the one before is tried" % (name, bad[name]))
            self._aside(name, bad[name])
            return None
        self._retention.remember_whole(name)
        return loaded

    def _put_aside(self, name: str, why: str) -> None:
        self._warn("checkpoint %s is not whole: %s; it is put aside, the one before is tried" % (name, why))
        self._aside(name, why)
        target = os.path.join(self._directory, layout.bad_name(name))
        try:
            os.rename(os.path.join(self._directory, name), target)
        except OSError as error:
            self._warn("%s cannot be renamed (%s); it stays where it is" % (name, error))

    def _none_whole(self, bad: dict[str, str]) -> CheckpointError:
        reasons = "".join("\n  %s: %s" % item for item in bad.items())
        place = shlex.quote(self._directory)
        return CheckpointError(
            "there are checkpoints in %s, but none of them can be used.%s\nNothing was deleted; bad ones "
            "have names that begin with .bad- now. To start this training afresh:  mv %s %s"
            % (self._directory, reasons, place, shlex.quote(self._directory + ".bad"))
        )

    def save(self, taken: Image, step: int) -> int:
        """Make a checkpoint durable; its size in bytes. Raises OSError, Damaged, Superseded."""
        self._claim.make()
        self._claim.check()
        self._remove_left_overs()
        for _ in range(_TRIES):
            age = self._next_age()
            name = layout.checkpoint_name(step, age)
            try:
                size = self._commit(taken, step, age, name)
                break
            except (OSError, Damaged) as error:
                # A newer process removes what older ones have half-written: that is no trouble of the disk.
                self._claim.check()
                taken_name = isinstance(error, OSError) and error.errno in (errno.EEXIST, errno.ENOTEMPTY)
                if not taken_name and self._claim.generation == age[0]:
                    raise
        else:
            raise OSError("other processes of this attempt take every name in %s" % self._directory)
        files.sync_directory(self._directory)
        self._retention.remember_whole(name)
        self._retire_old()
        return size

    def _next_age(self) -> layout.Age:
        """Beyond all that processes of this attempt have saved, or are about to."""
        generation = self._claim.generation
        there = [layout.age_of(name) for name in os.listdir(self._directory)]
        self._sequence = 1 + max([self._sequence, *(age[1] for age in there if age[0] == generation)])
        return generation, self._sequence

    def _commit(self, taken: Image, step: int, age: layout.Age, name: str) -> int:
        temporary = os.path.join(self._directory, layout.temporary_name(name))
        head = {"step": step, "generation": age[0], "sequence": age[1], **self._head()}
        try:
            size = image.write(temporary, head, taken)
            image.verify(temporary)
            self._claim.check()
            os.rename(temporary, os.path.join(self._directory, name))
        except BaseException:
            self._discard(temporary)
            raise
        return size

    def _retire_old(self) -> None:
        try:
            self._claim.check()
            self._retention.retire_old()
        except (OSError, Superseded) as error:
            # The new checkpoint is safe, which is what the caller asks; old ones wait for the next save.
            self._warn("old checkpoints in %s are not removed this time: %s" % (self._directory, error))

    def _remove_left_overs(self) -> None:
        for name in os.listdir(self._directory):
            if layout.is_left_over(name, self._claim.generation):
                self._discard(os.path.join(self._directory, name))

    def _discard(self, path: str) -> None:
        try:
            files.remove(path)
        except OSError as error:
            self._warn("%s cannot be removed now (%s); the next save tries again" % (path, error))


def _read(path: str) -> Loaded:
    manifest = image.read_manifest(path)
    return image.read_state(path, manifest), manifest

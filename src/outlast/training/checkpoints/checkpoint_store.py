"""The checkpoints of a run: the newest whole one is loaded, a new one appears whole or not at all."""

from __future__ import annotations

import errno
import os
import shlex
from dataclasses import dataclass
from typing import Any, Callable, Tuple

from outlast.training.checkpoints import checkpoint, checkpoint_names, durable_files, file_format, ranks
from outlast.training.checkpoints.file_format import PartManifest
from outlast.training.checkpoints.generations import GenerationClaim
from outlast.training.checkpoints.ranks import Ranks
from outlast.training.checkpoints.retention import Retention
from outlast.training.errors import CheckpointError, Damaged, Superseded

#: A checkpoint may vanish between listing and reading, when an older process still tidies up.
_LISTINGS = 5
#: How often a save is made again because another process of the attempt came between.
_TRIES = 20

Loaded = Tuple[Any, PartManifest]


@dataclass(frozen=True)
class Opening:
    """A checkpoint that is being written: the name it will have, and where it is until then."""

    name: str
    temporary: str
    step: int
    age: checkpoint_names.Age


class CheckpointStore:
    """One process's view of the directory. `warn` gets sentences for people, `aside` what was passed over."""

    def __init__(
        self,
        directory: str,
        keep: int,
        head: Callable[[], dict[str, Any]],
        warn: Callable[[str], None],
        aside: Callable[[str, str], None],
        token: str | None = None,
        party: Ranks | None = None,
    ) -> None:
        self._party = party or Ranks()
        self._directory = directory
        self._head = head
        self._warn = warn
        self._aside = aside
        self._claim = GenerationClaim(directory, token)
        self._retention = Retention(directory, keep)
        self._sequence = 0

    def load(self) -> Loaded | None:
        """The newest whole checkpoint, None if there never was one. Raises CheckpointError."""
        self._claim.generation = self._party.share(self._begin)
        bad: dict[str, str] = {}
        for _ in range(_LISTINGS):
            candidates = self._party.share(lambda: self._candidates(bad))
            if not candidates:
                break
            for name in candidates:
                loaded = self._try_load(name, bad)
                if loaded is not None:
                    return loaded
        else:
            raise self._none_whole(bad)
        if self._party.share(lambda: bool(bad) or any(map(checkpoint_names.is_bad, self._listing()))):
            raise self._none_whole(bad)
        return None

    def _begin(self) -> int:
        try:
            self._claim.make()
            self._remove_left_overs()
        except OSError as error:
            self._warn("cannot write into %s (%s); saving is tried again later" % (self._directory, error))
        return self._claim.generation

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
        found: list[tuple[checkpoint_names.Age, str]] = []
        for name in self._listing():
            path = os.path.join(self._directory, name)
            renamed = name.startswith("step-") and checkpoint.looks_like_one(path)
            if name in bad or not (checkpoint_names.is_checkpoint(name) or renamed):
                continue
            try:
                manifest = checkpoint.read_manifest(path)
                found.append(((manifest.generation, manifest.sequence), name))
            except (OSError, Damaged, CheckpointError):
                # It is met again, and judged, when its turn to be loaded comes.
                found.append((checkpoint_names.age_of(name), name))
        return [name for _, name in sorted(found, reverse=True)]

    def _try_load(self, name: str, bad: dict[str, str]) -> Loaded | None:
        """All processes of the training load their parts of it, or none does."""
        path = os.path.join(self._directory, name)
        loaded, trouble = self._own_part(path)
        troubles = [one for one in self._party.gather(trouble) if one is not None]
        if not troubles:
            self._retention.remember_whole(name)
            return loaded
        why, is_damage = troubles[0]
        if self._party.share(lambda: os.path.lexists(path)):
            bad[name] = why
            if self._party.rank == 0:
                self._pass_over(name, why, is_damage)
        return None

    def _own_part(self, path: str) -> tuple[Loaded | None, tuple[str, bool] | None]:
        """This process's part; or what is wrong with it, and whether it is the checkpoint's fault."""
        try:
            try:
                return self._read(path), None
            except OSError:
                # A network file system may need to be asked twice.
                return self._read(path), None
        except Damaged as error:
            return None, (str(error), True)
        except OSError as error:
            # The disk, not the checkpoint, may be at fault: it stays where it is.
            return None, ("cannot be read: %s" % error, False)

    def _read(self, path: str) -> Loaded:
        world = checkpoint.read_manifest(path).world
        if world != self._party.world:
            raise CheckpointError(
                "%s was saved by %d processes, and this training has %d; start it with as many as before"
                % (path, world, self._party.world)
            )
        return file_format.read_state(os.path.join(path, file_format.part_name(self._party.rank, world)))

    def _pass_over(self, name: str, why: str, is_damage: bool) -> None:
        if is_damage:
            self._put_aside(name, why)
        else:
            self._warn("checkpoint %s %s; the one before is tried" % (name, why))
            self._aside(name, why)

    def _put_aside(self, name: str, why: str) -> None:
        self._warn("checkpoint %s is not whole: %s; it is put aside, the one before is tried" % (name, why))
        self._aside(name, why)
        target = os.path.join(self._directory, checkpoint_names.bad_name(name))
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

    def open(self, step: int) -> Opening:
        """The place where processes write their parts of a checkpoint. Raises OSError, Superseded."""
        self._claim.make()
        self._claim.check()
        self._remove_left_overs()
        age = self._next_age()
        name = checkpoint_names.checkpoint_name(step, age)
        temporary = os.path.join(self._directory, checkpoint_names.temporary_name(name))
        os.mkdir(temporary)
        return Opening(name, temporary, step, age)

    def save(self, content: memoryview, step: int, opening: Opening | None = None) -> int:
        """Make a checkpoint durable; the size of this part. Raises OSError, Damaged, Superseded.

        Where several processes save together, the first has opened it for all.
        """
        size = self._save_alone(content, step) if opening is None else self._commit(content, opening)
        if self._party.rank == 0:
            durable_files.sync_directory(self._directory)
        return size

    def _save_alone(self, content: memoryview, step: int) -> int:
        for _ in range(_TRIES):
            opening = self.open(step)
            try:
                return self._commit(content, opening)
            except (OSError, Damaged) as error:
                # A newer process removes what older ones have half-written: that is no trouble of the disk.
                self._claim.check()
                taken_name = isinstance(error, OSError) and error.errno in (errno.EEXIST, errno.ENOTEMPTY)
                if not taken_name and self._claim.generation == opening.age[0]:
                    raise
        raise OSError("other processes of this attempt take every name in %s" % self._directory)

    def tidy(self) -> None:
        """Remove old checkpoints, once the newer ones have been read back and found whole."""
        try:
            self._claim.check()
            self._retention.retire_old()
        except (OSError, Superseded) as error:
            # The new checkpoint is safe, which is what the caller asks; old ones wait for the next save.
            self._warn("old checkpoints in %s are not removed this time: %s" % (self._directory, error))

    def _next_age(self) -> checkpoint_names.Age:
        """Beyond all that processes of this attempt have saved, or are about to."""
        generation = self._claim.generation
        there = [checkpoint_names.age_of(name) for name in os.listdir(self._directory)]
        self._sequence = 1 + max([self._sequence, *(age[1] for age in there if age[0] == generation)])
        return generation, self._sequence

    def _commit(self, content: memoryview, opening: Opening) -> int:
        rank, world = self._party.rank, self._party.world
        generation, sequence = opening.age
        ages = {"step": opening.step, "generation": generation, "sequence": sequence}
        head = {**ages, "rank": rank, "world": world, **self._head()}
        final = os.path.join(self._directory, opening.name)
        part = os.path.join(opening.temporary, file_format.part_name(rank, world))
        try:
            if world == 1:
                size = file_format.write(part, head, content)
            else:
                size = file_format.write(part + ".tmp", head, content)
                os.rename(part + ".tmp", part)
            if rank == 0:
                if world > 1:
                    ranks.await_parts(opening.temporary, world, self._claim.check)
                durable_files.sync_directory(opening.temporary)
                self._claim.check()
                os.rename(opening.temporary, final)
            else:
                ranks.await_commit(opening.temporary, final)
        except BaseException:
            if rank == 0:
                self._discard(opening.temporary)
            else:
                ranks.give_up(part)
            raise
        return size

    def _remove_left_overs(self) -> None:
        for name in os.listdir(self._directory):
            if checkpoint_names.is_left_over(name, self._claim.generation):
                self._discard(os.path.join(self._directory, name))

    def _discard(self, path: str) -> None:
        try:
            durable_files.remove(path)
        except OSError as error:
            self._warn("%s cannot be removed now (%s); the next save tries again" % (path, error))

"""The checkpoints of a run: loads the newest valid one, and saves new ones atomically."""

from __future__ import annotations

import errno
import os
import shlex
from dataclasses import dataclass
from typing import Any, Callable, Tuple

from outlast.training.checkpoints import checkpoint, checkpoint_names, durable_files, file_format
from outlast.training.checkpoints.file_format import PartManifest
from outlast.training.checkpoints.generations import GenerationClaim
from outlast.training.checkpoints.ranks import Ranks, await_commit, await_parts, mark_part_failed
from outlast.training.checkpoints.retention import Retention
from outlast.training.errors import CheckpointError, Damaged, Superseded
from outlast.untrusted_files import remove

#: A checkpoint may vanish between listing and reading, if an older process still removes old ones.
_MAX_LISTINGS = 5
#: How often a save is repeated because another process of the attempt interfered.
_MAX_TRIES = 20
#: Characters of the reason why a checkpoint is damaged.
_MAX_REASON = 300

Loaded = Tuple[Any, PartManifest]


@dataclass(frozen=True)
class PendingCheckpoint:
    """A checkpoint that is being written: its final name and its temporary directory."""

    name: str
    temporary: str
    step: int
    age: checkpoint_names.Age


class CheckpointStore:
    """A checkpoint directory as one process sees it.

    `head` returns information for the trailer of a file; `warn` prints a message for people; `report_bad` is
    called with the name of a checkpoint that cannot be used and the reason.
    """

    def __init__(
        self,
        directory: str,
        keep: int,
        head: Callable[[], dict[str, Any]],
        warn: Callable[[str], None],
        report_bad: Callable[[str, str], None],
        token: str | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self._ranks = ranks or Ranks()
        self._directory = directory
        self._head = head
        self._warn = warn
        self._report_bad = report_bad
        self._claim = GenerationClaim(directory, token)
        self._retention = Retention(directory, keep)
        self._sequence = 0

    def load(self) -> Loaded | None:
        """Return the newest valid checkpoint, or None if there never was one. Raises CheckpointError."""
        self._claim.generation = self._ranks.broadcast(self._claim_generation)
        bad: dict[str, str] = {}
        for _ in range(_MAX_LISTINGS):
            candidates = self._ranks.broadcast(lambda: self._candidates(bad))
            if not candidates:
                break
            for name in candidates:
                loaded = self._try_load(name, bad)
                if loaded is not None:
                    return loaded
        else:
            raise self._no_usable_checkpoint(bad)
        if self._ranks.broadcast(lambda: bool(bad) or any(map(checkpoint_names.is_bad, self._listing()))):
            raise self._no_usable_checkpoint(bad)
        return None

    def _claim_generation(self) -> int:
        """Claim a generation and return it; warn if the directory cannot be written to."""
        try:
            self._claim.acquire()
            self._remove_leftovers()
        except OSError as error:
            self._warn("cannot write to %s (%s); the next save tries again" % (self._directory, error))
        return self._claim.generation

    def _listing(self) -> list[str]:
        try:
            return os.listdir(self._directory)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(
                "cannot list the checkpoints in %s (%s), so it is unknown whether this run has saved "
                "before; make the directory readable and start again" % (self._directory, error)
            ) from error

    def _candidates(self, bad: dict[str, str]) -> list[str]:
        """Return the names of checkpoints, newest first; the age in a manifest outranks the name's."""
        found: list[tuple[checkpoint_names.Age, str]] = []
        for name in self._listing():
            path = os.path.join(self._directory, name)
            renamed = name.startswith("step-") and checkpoint.looks_like_checkpoint(path)
            if name in bad or not (checkpoint_names.is_checkpoint(name) or renamed):
                continue
            try:
                manifest = checkpoint.read_manifest(path)
                found.append(((manifest.generation, manifest.sequence), name))
            except (OSError, Damaged, CheckpointError):
                # The error is handled when this checkpoint is loaded.
                found.append((checkpoint_names.parse_age(name), name))
        return [name for _, name in sorted(found, reverse=True)]

    def _try_load(self, name: str, bad: dict[str, str]) -> Loaded | None:
        """Load a checkpoint in all processes, or in none. Return None if any of them failed."""
        path = os.path.join(self._directory, name)
        loaded: Loaded | None = None
        why, is_damage = "", True
        # An error that is not the checkpoint's is raised in all processes; none waits for the others.
        with self._ranks.failing_together():
            try:
                loaded = self._read_own_part(path)
            except Damaged as error:
                why = _printable(error)
            except OSError as error:
                # The disk may be at fault, not the checkpoint, so it keeps its name.
                why, is_damage = "cannot be read: %s" % error, False
        errors = [one for one in self._ranks.gather((why, is_damage)) if one[0]]
        if not errors:
            self._retention.remember_whole(name)
            return loaded
        why, is_damage = errors[0]
        if self._ranks.broadcast(lambda: os.path.lexists(path)):
            bad[name] = why
            if self._ranks.rank == 0:
                self._pass_over(name, why, is_damage)
        return None

    def _read_own_part(self, path: str) -> Loaded:
        """Return this process's part. Raises Damaged, CheckpointError, OSError."""
        try:
            return self._read(path)
        except OSError:
            # A network file system may fail once.
            return self._read(path)

    def _read(self, path: str) -> Loaded:
        manifest = checkpoint.read_manifest(path)
        if manifest.world != self._ranks.world:
            raise CheckpointError(
                "%s was saved by %d processes, but this run has %d; start it with the same number as before"
                % (path, manifest.world, self._ranks.world)
            )
        return checkpoint.read_part(path, manifest, self._ranks.rank)

    def _pass_over(self, name: str, why: str, is_damage: bool) -> None:
        if is_damage:
            self._put_aside(name, why)
        else:
            self._warn("checkpoint %s %s; trying the one before" % (name, why))
            self._report_bad(name, why)

    def _put_aside(self, name: str, why: str) -> None:
        self._warn(
            "checkpoint %s is damaged: %s; renaming it to .bad-… and trying the one before" % (name, why)
        )
        self._report_bad(name, why)
        target = os.path.join(self._directory, checkpoint_names.bad_name(name))
        try:
            os.rename(os.path.join(self._directory, name), target)
        except OSError as error:
            self._warn("cannot rename %s (%s); it keeps its name" % (name, error))

    def _no_usable_checkpoint(self, bad: dict[str, str]) -> CheckpointError:
        reasons = "".join("\n  %s: %s" % item for item in bad.items())
        place = shlex.quote(self._directory)
        return CheckpointError(
            "there are checkpoints in %s, but none of them can be used.%s\nNothing was deleted; damaged ones "
            "now have names that begin with .bad-. To start this run from the beginning:  mv %s %s"
            % (self._directory, reasons, place, shlex.quote(self._directory + ".bad"))
        )

    def begin(self, step: int) -> PendingCheckpoint:
        """Create the temporary directory of a new checkpoint. Raises OSError, Superseded."""
        self._claim.acquire()
        self._claim.check()
        self._remove_leftovers()
        age = self._next_age()
        name = checkpoint_names.checkpoint_name(step, age)
        temporary = os.path.join(self._directory, checkpoint_names.temporary_name(name))
        os.mkdir(temporary)
        return PendingCheckpoint(name, temporary, step, age)

    def save(self, content: memoryview, step: int, pending: PendingCheckpoint | None = None) -> int:
        """Write a checkpoint durably; return the size of this process's part in bytes.

        If several processes save together, `pending` is the checkpoint that the first one began for all.
        Raises OSError, Damaged, Superseded.
        """
        size = self._save_alone(content, step) if pending is None else self._commit(content, pending)
        if self._ranks.rank == 0:
            durable_files.sync_directory(self._directory)
        return size

    def _save_alone(self, content: memoryview, step: int) -> int:
        for _ in range(_MAX_TRIES):
            pending = self.begin(step)
            try:
                return self._commit(content, pending)
            except (OSError, Damaged) as error:
                # A newer process removes unfinished checkpoints of older ones: that is not a disk error.
                self._claim.check()
                is_name_taken = isinstance(error, OSError) and error.errno in (errno.EEXIST, errno.ENOTEMPTY)
                if not is_name_taken and self._claim.generation == pending.age[0]:
                    raise
        raise OSError("other processes of this attempt took every name in %s" % self._directory)

    def remove_old(self) -> None:
        """Remove old checkpoints if enough newer ones are valid; warn if that fails."""
        try:
            self._claim.check()
            self._retention.retire_old()
        except (OSError, Superseded) as error:
            # The new checkpoint is safe. Old ones are removed after the next save.
            self._warn("cannot remove old checkpoints in %s now: %s" % (self._directory, error))

    def _next_age(self) -> checkpoint_names.Age:
        """Return an age after all that processes of this attempt have saved or are saving."""
        generation = self._claim.generation
        ages = [checkpoint_names.parse_age(name) for name in os.listdir(self._directory)]
        self._sequence = 1 + max([self._sequence, *(age[1] for age in ages if age[0] == generation)])
        return generation, self._sequence

    def _commit(self, content: memoryview, pending: PendingCheckpoint) -> int:
        """Write this process's part; the first process then gives the complete checkpoint its name."""
        rank, world = self._ranks.rank, self._ranks.world
        generation, sequence = pending.age
        position = {"step": pending.step, "generation": generation, "sequence": sequence}
        head = {**position, "rank": rank, "world": world, **self._head()}
        final = os.path.join(self._directory, pending.name)
        part = os.path.join(pending.temporary, file_format.part_name(rank, world))
        try:
            if world == 1:
                size = file_format.write(part, head, content)
            else:
                size = file_format.write(part + ".tmp", head, content)
                os.rename(part + ".tmp", part)
            if rank == 0:
                if world > 1:
                    await_parts(pending.temporary, world, self._claim.check)
                durable_files.sync_directory(pending.temporary)
                self._claim.check()
                os.rename(pending.temporary, final)
            else:
                await_commit(pending.temporary, final)
        except BaseException:
            if rank == 0:
                self._discard(pending.temporary)
            else:
                mark_part_failed(part)
            raise
        return size

    def _remove_leftovers(self) -> None:
        for name in os.listdir(self._directory):
            if checkpoint_names.is_leftover(name, self._claim.generation):
                self._discard(os.path.join(self._directory, name))

    def _discard(self, path: str) -> None:
        try:
            remove(path)
        except OSError as error:
            self._warn("cannot remove %s now (%s); the next save tries again" % (path, error))


def _printable(error: Exception) -> str:
    """Return the message of an error about a file's content, which may quote any part of it."""
    return ascii(str(error) or type(error).__name__)[1:-1][:_MAX_REASON]

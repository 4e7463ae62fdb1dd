"""The snapshots of one run, beside its checkpoint directory::

    snapshots/000007/manifest.json   one whole snapshot: sizes and digests
    snapshots/000007/files/          its files
    snapshots/aside-000008/          what was in the checkpoint directory when an older state was put back
    snapshots/.000009.<random>.tmp/  one being taken
    snapshots/restoring.json         a snapshot that is being put back; the next start completes it

The script may change its files at any moment: a snapshot counts only if nothing has changed while it was
taken. `script_files` has what belongs to it. Links are not followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from dataclasses import dataclass, replace
from typing import Callable, Collection, Iterator

from outlast.node.files import copy_file, sync_directory
from outlast.node.pulse import no_pulse
from outlast.node.snapshots import file_copies, snapshot_manifest
from outlast.node.snapshots.file_checks import find_defect
from outlast.node.snapshots.script_files import (
    CannotKeep,
    Content,
    ScriptFiles,
    holds_checkpoints,
    is_log,
    is_of_working,
    made_below,
    refusing_links,
    show_name,
)
from outlast.node.snapshots.snapshot_manifest import FILES, KeptFile, Snapshot
from outlast.untrusted_files import (
    create_file,
    directory_below,
    open_directory,
    open_file,
    parse_json,
    read_file,
    remove_tree,
    walk,
)

_NUMBER = re.compile(r"\d{6,12}")
_ASIDE = "aside-"
_RESTORING = "restoring.json"
#: More snapshots than `checkpoints.snapshots` allows: a directory may come from an untrusted machine.
_MOST_LISTED = 110
#: The manifests of the newest snapshots are read, up to this many bytes together.
_MOST_LISTED_BYTES = 32 * 2**20
#: How many of the states that were put aside are kept.
_MOST_ASIDE = 2
#: The part of the free space that a snapshot may take.
_SPACE_SHARE = 0.5


class Unsettled(CannotKeep):
    """The checkpoint directory changed while it was copied."""


class Torn(CannotKeep):
    """A file in the checkpoint directory is not whole."""


@dataclass(frozen=True)
class Taken:
    """A snapshot of the current state, and what it cost; `is_new` is False if there was one already."""

    snapshot: Snapshot
    is_new: bool = False
    #: Bytes that were written.
    written: int = 0


class SnapshotStore:
    """Takes, lists, checks and puts back snapshots of the files of a training script.

    At most `most` are kept, of `most_bytes` together. Two jobs may use the same directories: what one of them
    publishes is whole, and the other's attempt to use the same number fails. If they are `foreign`, another
    machine may have written them: links that could lead out of the checkpoint directory are not put back.
    """

    def __init__(
        self, directory: str, script: ScriptFiles, most: int, most_bytes: int, *, foreign: bool = False
    ) -> None:
        self._directory = directory
        self._script = script
        self._most = most
        self._most_bytes = most_bytes
        self._foreign = foreign

    def snapshots(self) -> list[Snapshot]:
        """Return the snapshots whose files all have their sizes, oldest first."""
        with contextlib.suppress(FileNotFoundError), self._open() as top:
            return list_whole(top)
        return []

    def is_lost(self, pulse: Callable[[], None] = no_pulse) -> bool:
        """Return True if there are no checkpoints, at least none where the newest snapshot has them."""
        content = self._script.survey(pulse)
        if holds_checkpoints(content):
            return False
        newest = self.snapshots()[-1:]
        return not content.files or any(map(holds_checkpoints, newest))

    def take(
        self,
        sure: bool,
        pulse: Callable[[], None] = no_pulse,
        replaced: Collection[str] = (),
    ) -> Taken | None:
        """Take a snapshot of the current state; None if there is nothing to keep.

        It is `sure` also if all of its files passed a check. `replaced` are files that the script never
        writes in place. Raises CannotKeep and OSError, and whatever `pulse` raises: nothing is kept then.
        """
        content = self._script.survey(pulse)
        if not content.files:
            return None
        os.makedirs(self._directory, exist_ok=True)
        with self._open() as top:
            if self._lacks_space(content, top) and holds_checkpoints(content):
                content = content.without_working()
            before = next(iter(self.snapshots()[::-1]), None)
            if before is not None and _is_unchanged(before, content):
                return Taken(before)
            problem = self._lacks_space(content, top)
            if problem:
                raise CannotKeep(problem)
            number = 1 + max((_parse_number(name) for name in os.listdir(top)), default=0)
            temporary = ".%06d.%s.tmp" % (number, secrets.token_hex(4))
            os.makedirs(f"/proc/self/fd/{top}/{temporary}/{FILES}")
            try:
                with directory_below(top, temporary) as place:
                    taken = self._fill(place, Snapshot(number, sure), content, before, top, pulse, replaced)
                    if before is not None and taken.snapshot.has_same_content(before):
                        return Taken(before)
                    snapshot_manifest.write(taken.snapshot, place)
                os.rename(temporary, taken.snapshot.name, src_dir_fd=top, dst_dir_fd=top)
                sync_directory(".", top)
            finally:
                with contextlib.suppress(OSError):  # published, or only takes space until the next start
                    remove_tree(temporary, dir_fd=top)
            self._prune(top)
        return taken

    def _fill(
        self,
        place: int,
        snapshot: Snapshot,
        content: Content,
        before: Snapshot | None,
        top: int,
        pulse: Callable[[], None],
        replaced: Collection[str],
    ) -> Taken:
        """Copy all files into the open directory `place`, and check them there."""
        written, checked = 0, True
        with directory_below(place, FILES) as target:
            for name, stamp in content.files.items():
                pulse()
                folder, _, base = name.rpartition("/")
                with made_below(target, folder) as goal:
                    known = before.files.get(name) if before is not None else None
                    if known is not None and known.stamp == stamp:
                        assert before is not None
                        _link_kept(top, before, name, goal)
                        snapshot.files[name] = known
                        checked = checked and before.sure
                        continue
                    try:
                        with self._script.open_folder(name) as origin:
                            copied = file_copies.copy(
                                base, origin, base, goal, pulse, link=name in replaced and not is_log(name)
                            )
                    except FileNotFoundError:
                        raise Unsettled("%s was removed while it was copied" % show_name(name)) from None
                    with open_file(base, goal) as file:
                        defect = find_defect(file, base, copied.size, pulse)
                    checked = checked and (defect is not None or is_log(name))
                    if defect:
                        raise Torn("%s is not whole: %s" % (show_name(name), defect))
                    snapshot.files[name] = KeptFile(copied.size, copied.sha256, stamp)
                    written += copied.written
        snapshot.links.update(content.links)
        again = self._script.survey(pulse)
        if not any(map(is_of_working, content.files)):
            again = again.without_working()
        if again.settled != content.settled or again.links != content.links:
            raise Unsettled("files changed while they were copied")
        return Taken(replace(snapshot, sure=snapshot.sure or checked), is_new=True, written=written)

    def _lacks_space(self, content: Content, top: int) -> str:
        """Return why a snapshot would be too large; empty if it is not."""
        size = sum(stamp[1] for stamp in content.files.values())
        if size > self._most_bytes:
            return "%d bytes are more than checkpoints.snapshot_size" % size
        free = os.fstatvfs(top)
        if size > _SPACE_SHARE * free.f_bavail * free.f_frsize:
            return "%d bytes would take more than half of the free space" % size
        return ""

    def restore(self, snapshot: Snapshot, pulse: Callable[[], None] = no_pulse) -> None:
        """Put a snapshot back; what the script had in its directory is put aside. Raises CannotKeep, OSError.

        CannotKeep: the snapshot is damaged, and nothing has changed. After an OSError, as after a kill, a
        part may be in its place: the next start must call `finish_restore`.
        """
        with self._open() as top, refusing_links(self._script.checkpoints):
            temporary = ".restored.%s.tmp" % secrets.token_hex(4)
            os.mkdir(temporary, dir_fd=top)
            try:
                with directory_below(top, temporary) as target:
                    _copy_back(top, snapshot, target, pulse, foreign=self._foreign)
                    write_mark(top, snapshot.number)
                    self._put_aside(top, snapshot, pulse)
                    self._script.move_in(target)
            finally:
                with contextlib.suppress(OSError):  # moved, or only takes space until the next start
                    remove_tree(temporary, dir_fd=top)
            _remove_mark(top)

    def finish_restore(self, pulse: Callable[[], None] = no_pulse) -> int | None:
        """Complete a restore that was killed, and remove what killed jobs left. Raises as `restore`.

        Return its snapshot, None if there was none. If that is damaged, raise CannotKeep.
        """
        with contextlib.suppress(FileNotFoundError), self._open() as top:
            marked = read_mark(top)
            for name in os.listdir(top):
                if name.startswith(".") and name.endswith(".tmp"):
                    _discard(name, top)
            if marked is None:
                return None
            found = next((one for one in self.snapshots() if one.number == marked), None)
            if found is None:
                raise CannotKeep("snapshot %d, which was being put back, is damaged" % marked)
            self.restore(found, pulse)
            return marked
        return None

    def forget_restore(self) -> None:
        """Remove the note of a restore that cannot be completed. Raises OSError."""
        with contextlib.suppress(FileNotFoundError), self._open() as top:
            _remove_mark(top)

    def remove_from(self, number: int) -> None:
        """Remove the snapshots from `number` on. Raises OSError."""
        with contextlib.suppress(FileNotFoundError), self._open() as top:
            for name in _numbered(top, ""):
                if int(name) >= number:
                    _discard(name, top)

    def retire(self) -> None:
        """Rename the directory: its snapshots belong to checkpoints that were moved away. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            os.rename(self._directory, "%s.before-%s" % (self._directory, secrets.token_hex(4)))

    def _put_aside(self, top: int, restored: Snapshot, pulse: Callable[[], None]) -> None:
        """Make room for a snapshot in the script's directories; keep the newest such states only."""
        numbers = [_parse_number(name) for name in os.listdir(top)]
        aside = "%s%06d" % (_ASIDE, 1 + max([restored.number, *numbers]))
        os.mkdir(aside, dir_fd=top)
        with directory_below(top, aside) as target:
            self._script.move_out(target, restored.files, pulse)
        for old in _numbered(top, _ASIDE)[:-_MOST_ASIDE]:
            _discard(old, top)

    def _prune(self, top: int) -> None:
        """Remove the oldest snapshots beyond the bounds, but never the newest, nor the newest sure one."""
        found = self.snapshots()
        sure = [one.number for one in found if one.sure]
        spared = {found[-1].number, *sure[-1:]} if found else set()
        sizes: dict[int, int] = {}
        kept = len(spared)
        for one in sorted(found, key=lambda one: (one.number in spared, one.number), reverse=True):
            _add_sizes(top, one, sizes)
            if one.number in spared:
                continue
            if kept < self._most and sum(sizes.values()) <= self._most_bytes:
                kept += 1
            else:
                _discard(one.name, top)

    @contextlib.contextmanager
    def _open(self) -> Iterator[int]:
        descriptor = open_directory(self._directory)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def list_whole(top: int) -> list[Snapshot]:
    """Return the newest snapshots below an open directory whose files all have their sizes, oldest first."""
    whole: list[Snapshot] = []
    left = _MOST_LISTED_BYTES
    for name in reversed(_numbered(top, "")[-_MOST_LISTED:]):
        found = _read(top, name, min(left, snapshot_manifest.MAX_BYTES))
        left -= found[1]
        if found[0] is not None:
            whole.append(found[0])
    return whole[::-1]


def _is_unchanged(before: Snapshot, content: Content) -> bool:
    stamps = {name: kept.stamp for name, kept in before.files.items() if not is_log(name)}
    return stamps == content.settled and before.links == content.links


def _numbered(top: int, prefix: str) -> list[str]:
    """Return the names of snapshots (or with the prefix, of states that were put aside), oldest first."""
    named = [name[len(prefix) :] for name in os.listdir(top) if name.startswith(prefix)]
    return [prefix + name for name in sorted(named) if _NUMBER.fullmatch(name)]


def _parse_number(name: str) -> int:
    """Return the number of a snapshot, or of a state that was put aside; 0 for other names."""
    number = name[len(_ASIDE) :] if name.startswith(_ASIDE) else name
    return int(number) if _NUMBER.fullmatch(number) else 0


def _read(top: int, name: str, most: int) -> tuple[Snapshot | None, int]:
    """Return the snapshot of this name, if it has all its files with their sizes, and its manifest's size.

    Manifests of more than `most` bytes are not read.
    """
    size = 0
    with contextlib.suppress(OSError), directory_below(top, name) as place:
        size = os.stat(snapshot_manifest.NAME, dir_fd=place, follow_symlinks=False).st_size
        if size > most:
            return None, 0
        found = snapshot_manifest.read(place)
        if found is not None and found.name == name and _has_all_files(place, found):
            return found, size
    return None, size


def _has_all_files(place: int, snapshot: Snapshot) -> bool:
    """Return True if the files below the open directory of a snapshot are those of its manifest."""
    missing = {path: kept.size for path, kept in snapshot.files.items()}
    with directory_below(place, FILES) as files:
        for entry in walk(files):
            if entry.is_file and missing.pop(entry.path, None) != entry.status.st_size:
                return False
    return not missing


def _discard(name: str, top: int) -> None:
    """Remove a directory, or whatever has its name. What cannot be removed stays: it only takes space."""
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
            remove_tree(name, ignore_errors=True, dir_fd=top)
        else:
            os.unlink(name, dir_fd=top)


def _add_sizes(top: int, snapshot: Snapshot, sizes: dict[int, int]) -> None:
    """Add the sizes of a snapshot's files by inode: files that did not change are shared."""
    with contextlib.suppress(OSError), directory_below(top, f"{snapshot.name}/{FILES}") as files:
        for entry in walk(files):
            if entry.is_file:
                sizes[entry.status.st_ino] = entry.status.st_size


def _link_kept(top: int, before: Snapshot, name: str, goal: int) -> None:
    """Give a file of an earlier snapshot a second name in this one: nobody writes to either."""
    folder, _, base = name.rpartition("/")
    inside = f"{before.name}/{FILES}"
    with directory_below(top, f"{inside}/{folder}" if folder else inside) as origin:
        try:
            os.link(base, base, src_dir_fd=origin, dst_dir_fd=goal, follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.EXDEV, errno.ENOSYS):
                raise
            copy_file(base, f"/proc/self/fd/{goal}/{base}", dir_fd=origin)


def _copy_back(
    top: int, snapshot: Snapshot, target: int, pulse: Callable[[], None], *, foreign: bool
) -> None:
    """Copy a snapshot into an open directory; the script may write to the copies. Raises CannotKeep."""
    try:
        with directory_below(top, f"{snapshot.name}/{FILES}") as source:
            for name, kept in snapshot.files.items():
                pulse()
                folder, _, base = name.rpartition("/")
                with directory_below(source, folder) as origin, made_below(target, folder) as goal:
                    copied = file_copies.copy(base, origin, base, goal, pulse)
                if (copied.size, copied.sha256) != (kept.size, kept.sha256):
                    raise CannotKeep("%s in snapshot %d is damaged" % (name, snapshot.number))
            for name, link in snapshot.links.items():
                pulse()
                if foreign and snapshot_manifest.leads_outside(name, link):
                    continue
                folder, _, base = name.rpartition("/")
                with made_below(target, folder) as goal:
                    os.symlink(link, base, dir_fd=goal)
    except (FileNotFoundError, FileExistsError, NotADirectoryError) as error:
        raise CannotKeep("snapshot %d is damaged: %s" % (snapshot.number, error.strerror)) from error


def write_mark(top: int, number: int) -> None:
    """Note in the open directory of snapshots that this one is being put back, durably. Raises OSError."""
    with create_file(_RESTORING + ".tmp", top) as file:
        file.write(b"%d" % number)
        file.flush()
        os.fsync(file.fileno())
    os.rename(_RESTORING + ".tmp", _RESTORING, src_dir_fd=top, dst_dir_fd=top)
    sync_directory(".", top)


def read_mark(top: int) -> int | None:
    """Return the number of the snapshot that is being put back; None if there is none."""
    try:
        number = parse_json(read_file(_RESTORING, 100, top))
    except (OSError, ValueError):
        return None
    return number if isinstance(number, int) else None


def _remove_mark(top: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_RESTORING, dir_fd=top)

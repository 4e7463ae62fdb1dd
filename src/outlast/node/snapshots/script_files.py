"""The files that snapshots have: those of a training script in its checkpoint directory, and the models and
checkpoints that it makes in its working directory.

In a snapshot, the latter are below `@working`. The script may change both directories at any moment, so links
in them are not followed. Checkpoints of `outlast.training`, and names with a leading dot, are left alone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from dataclasses import dataclass
from typing import Callable, Collection, Iterator

from outlast.node.files import copy_file, copy_tree, sync_directory
from outlast.node.pulse import no_pulse
from outlast.node.snapshots.file_checks import find_defect
from outlast.node.snapshots.snapshot_manifest import Snapshot, Stamp
from outlast.untrusted_files import (
    Entry,
    directory_below,
    open_directory,
    open_file,
    remove_tree,
    walk,
)

#: The directory in a snapshot for files of the working directory. HTCondor does not transfer hidden names.
WORKING = "@working"
#: A complete checkpoint of `outlast.training`, which has checksums of its own.
_OWN_CHECKPOINT = re.compile(r"step-\d{12,}-g\d{6,}-s\d{6,}")
#: Files that grow line by line: they are never torn, and do not keep a directory from being quiet.
_LOG = re.compile(r".*\.(log|csv|tsv|jsonl)|events\.out\.tfevents\..*", re.IGNORECASE)
#: More files, and more names of any kind, than any real set of checkpoints has.
_MAX_FILES = 20_000
_MAX_NAMES = 50_000


def is_log(name: str) -> bool:
    """Return True for the name of a file that grows line by line."""
    return _LOG.fullmatch(os.path.basename(name)) is not None


class CannotKeep(Exception):
    """No snapshot was taken; the message is the reason."""


@dataclass(frozen=True)
class Content:
    """The files and links that a snapshot has, by their names in it."""

    files: dict[str, Stamp]
    links: dict[str, str]

    @property
    def settled(self) -> dict[str, Stamp]:
        """What must not change while a snapshot is taken."""
        return {name: stamp for name, stamp in self.files.items() if not is_log(name)}

    def without_working(self) -> Content:
        return Content(
            {name: stamp for name, stamp in self.files.items() if not is_of_working(name)}, self.links
        )


@dataclass(frozen=True)
class WorkingFiles:
    """The working directory of a training, and which of its files are models or checkpoints of the script."""

    path: str
    selects: Callable[[str], bool]


def is_of_working(name: str) -> bool:
    """Return True for the name, in a snapshot, of a file of the working directory."""
    return name.startswith(WORKING + "/")


def holds_checkpoints(found: Content | Snapshot) -> bool:
    """Return True if there is something of the checkpoint directory."""
    return bool(found.links) or not all(map(is_of_working, found.files))


def show_name(name: str) -> str:
    """Return the name of a file in a snapshot for a message."""
    return "%s in the working directory" % name[len(WORKING) + 1 :] if is_of_working(name) else name


@dataclass(frozen=True)
class ScriptFiles:
    """The files of the script in its checkpoint directory, and in its working directory, if that is given."""

    checkpoints: str
    working: WorkingFiles | None = None

    def survey(self, pulse: Callable[[], None] = no_pulse) -> Content:
        """List the files and links that belong to the script. Raises CannotKeep and OSError."""
        files: dict[str, Stamp] = {}
        links: dict[str, str] = {}
        with refusing_links(self.checkpoints), directory_below(self.checkpoints) as top:
            for seen, entry in enumerate(walk(top, pulse), start=1):
                if len(files) > _MAX_FILES or seen > _MAX_NAMES:
                    raise CannotKeep("there are more than %d files" % _MAX_FILES)
                first = entry.path.partition("/")[0]
                if _is_left_alone(first) or _is_hidden(entry):
                    continue
                if entry.is_file:
                    files[entry.path] = _stamp(entry)
                elif entry.is_link:
                    with contextlib.suppress(FileNotFoundError, OSError):
                        links[entry.path] = os.readlink(entry.name, dir_fd=entry.dir_fd)
        files.update(self.survey_working(pulse))
        return Content(files, links)

    @contextlib.contextmanager
    def open_folder(self, name: str) -> Iterator[int]:
        """Yield the open directory with the file that has this name in a snapshot."""
        top, inner = self.checkpoints, name
        if self.working is not None and is_of_working(name):
            top, inner = self.working.path, name[len(WORKING) + 1 :]
        with directory_below(top) as source, directory_below(source, os.path.dirname(inner)) as folder:
            yield folder

    def move_out(self, target: int, names: Collection[str], pulse: Callable[[], None] = no_pulse) -> None:
        """Move files of the script into an open directory, to make room for those with these names.

        All of the checkpoint directory is moved. In the working directory, which also has results, it is what
        has one of the names, and what is not whole. Raises OSError.
        """
        with directory_below(self.checkpoints) as source:
            for name in sorted(name for name in os.listdir(source) if not _is_left_alone(name)):
                move(source, name, target)
        for name, (_, size, _) in self.survey_working(pulse).items():
            folder, base = os.path.split(name)
            with self.open_folder(name) as source:
                with open_file(base, source) as file:
                    gives_way = name in names or bool(find_defect(file, base, size, pulse))
                if gives_way:
                    with made_below(target, folder) as goal:
                        move(source, base, goal)

    def move_in(self, source: int) -> None:
        """Move all files to their places from an open directory, which is like a snapshot. Raises OSError."""
        if self.working is not None and _has_directory(WORKING, source):
            with directory_below(source, WORKING) as inside, directory_below(self.working.path) as top:
                for entry in walk(inside):
                    if entry.is_file and self.working.selects(entry.path):
                        with made_below(top, os.path.dirname(entry.path)) as goal:
                            move(entry.dir_fd, entry.name, goal)
        with directory_below(self.checkpoints) as goal:
            for name in os.listdir(source):
                if name != WORKING:
                    move(source, name, goal)
            sync_directory(".", goal)

    def survey_working(self, pulse: Callable[[], None] = no_pulse) -> dict[str, Stamp]:
        """List the models and checkpoints in the working directory: none if it has too many files.

        There are none either if it cannot be read: the checkpoint directory is kept all the same.
        """
        files: dict[str, Stamp] = {}
        if self.working is None or os.path.islink(self.working.path):
            return files
        with contextlib.suppress(OSError), directory_below(self.working.path) as top:
            for seen, entry in enumerate(walk(top, pulse, skip_deeper=True), start=1):
                if len(files) > _MAX_FILES or seen > _MAX_NAMES:
                    return {}
                if entry.is_file and not _is_hidden(entry) and self.working.selects(entry.path):
                    files[f"{WORKING}/{entry.path}"] = _stamp(entry)
            return files
        return {}


def move(source: int, name: str, target: int) -> None:
    """Move a file or directory between two open directories, also to another file system. Raises OSError."""
    try:
        os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        goal = f"/proc/self/fd/{target}/{name}"
        with contextlib.suppress(NotADirectoryError):
            os.close(open_directory(name, source))
            copy_tree(f"/proc/self/fd/{source}/{name}", goal)
            remove_tree(name, dir_fd=source)
            return
        copy_file(name, goal, dir_fd=source)
        os.unlink(name, dir_fd=source)


@contextlib.contextmanager
def made_below(top: int, folder: str) -> Iterator[int]:
    """Yield a descriptor of the directory `folder` below `top`, which is created; no link is followed."""
    place = os.dup(top)
    try:
        for name in folder.split("/") if folder else ():
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=place)
            inner = open_directory(name, place)
            os.close(place)
            place = inner
        yield place
    finally:
        os.close(place)


@contextlib.contextmanager
def refusing_links(directory: str) -> Iterator[None]:
    """Raise CannotKeep if the directory is a link: what it leads to is not ours to replace."""
    if os.path.islink(directory):
        raise CannotKeep("the checkpoint directory is a link")
    yield


def _stamp(entry: Entry) -> Stamp:
    status = entry.status
    return (status.st_ino, status.st_size, status.st_mtime_ns)


def _is_left_alone(name: str) -> bool:
    return name.startswith(".") or name == WORKING or _OWN_CHECKPOINT.fullmatch(name) is not None


def _has_directory(name: str, top: int) -> bool:
    """Return True if this is a directory, and not a link that an untrusted machine made."""
    with contextlib.suppress(FileNotFoundError):
        return stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode)
    return False


def _is_hidden(entry: Entry) -> bool:
    return any(part.startswith(".") for part in entry.path.split("/"))

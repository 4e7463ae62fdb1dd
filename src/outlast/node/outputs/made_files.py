"""The files that a training made in its working directory: all that are new, or differ from its code."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from dataclasses import dataclass, field
from typing import Callable, Iterator, Mapping, Tuple

from outlast.node.checkpoint_formats import names_state
from outlast.node.files import copy_file, link_or_copy
from outlast.node.pulse import no_pulse
from outlast.untrusted_files import (
    Entry,
    create_file,
    created_below,
    directory_below,
    open_directory,
    parse_json,
    read_file,
    walk,
)

#: Names of caches and copies of code; nothing below them counts as made by the training.
IGNORED = frozenset(
    {"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".ipynb_checkpoints", ".git", ".venv"}
)
#: The ending of a changed file of the code, brought back to a working directory with other code.
EARLIER = ".earlier"
_LISTING_BYTES = 64 * 2**20
#: Errors of a name that is a file in one directory and a directory in the other.
_BLOCKED = (FileExistsError, NotADirectoryError, IsADirectoryError)

#: Size and modification time in nanoseconds.
Stamp = Tuple[int, int]


@dataclass(frozen=True)
class CodeListing:
    """The files of a working directory before the training started: those that came with the code."""

    #: SHA-256 of the code archive; empty if there was none.
    sha256: str = ""
    files: Mapping[str, Stamp] = field(default_factory=dict)

    def write(self, path: str) -> None:
        """Write the listing, which appears at once. Raises OSError."""
        with create_file(path + ".tmp") as file:
            file.write(json.dumps({"sha256": self.sha256, "files": self.files}).encode())
        os.replace(path + ".tmp", path)


NO_CODE = CodeListing()


def list_code(working: str, sha256: str | None, pulse: Callable[[], None] = no_pulse) -> CodeListing:
    """Return the listing of a working directory that holds the code and nothing else."""
    return CodeListing(sha256 or "", {entry.path: stamp(entry) for entry in _entries(working, pulse)})


def read_listing(path: str) -> CodeListing | None:
    """Return the listing in a file; None if there is none, or none that can be used."""
    try:
        raw = parse_json(read_file(path, _LISTING_BYTES))
        files = {str(name): (int(size), int(changed)) for name, (size, changed) in raw["files"].items()}
        return CodeListing(str(raw["sha256"]), files)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None


def find_made(working: str, code: CodeListing, pulse: Callable[[], None] = no_pulse) -> Iterator[Entry]:
    """Yield what the training made, parents first: files that are new or changed, directories and links.

    Raises OSError; of NotADirectoryError and ELOOP if the working directory was replaced by something else.
    """
    for entry in _entries(working, pulse):
        if (
            entry.is_directory
            or entry.is_link
            or (entry.is_file and code.files.get(entry.path) != stamp(entry))
        ):
            yield entry


def list_made(
    working: str, code: CodeListing, pulse: Callable[[], None] = no_pulse
) -> frozenset[tuple[str, Stamp]]:
    """Return path and stamp of all files that the training made. Raises OSError."""
    return frozenset((one.path, stamp(one)) for one in find_made(working, code, pulse) if one.is_file)


def state_selector(code: CodeListing) -> Callable[[str], bool]:
    """Return a test for paths: models and checkpoints that did not come with the code."""
    return lambda path: (
        names_state(path) and path not in code.files and not IGNORED.intersection(path.split("/"))
    )


def stamp(entry: Entry) -> Stamp:
    return entry.status.st_size, entry.status.st_mtime_ns


def inner_link(entry: Entry, working: str) -> str:
    """Return the target of a link, made relative to the link if it leads into the working directory."""
    goal = os.readlink(entry.name, dir_fd=entry.dir_fd)
    inside = os.path.join(os.path.realpath(working), "")
    if not os.path.isabs(goal) or not os.path.join(goal, "").startswith((inside, os.path.join(working, ""))):
        return goal
    top = inside if goal.startswith(inside) else working
    return os.path.relpath(os.path.relpath(goal, top), os.path.dirname(entry.path) or os.curdir)


def bring_back(
    source: str,
    code_before: CodeListing,
    working: str,
    code: CodeListing,
    *,
    may_share: bool,
    pulse: Callable[[], None] = no_pulse,
) -> list[str]:
    """Bring what the training made in the directory `source` to `working`; return a warning for each failure.

    A file gets a second name if `may_share`: no process of the earlier attempt writes to it any more, and
    nobody else has it. If the code has changed since, its files take precedence over changed ones of the same
    name, which get the ending `.earlier`.
    """
    warnings = []
    with directory_below(working) as goal:
        for entry in find_made(source, code_before, pulse):
            try:
                _bring_entry(entry, source, _target(entry.path, code_before, code), goal, may_share, pulse)
            except FileNotFoundError:
                continue  # a temporary file of a process that is still alive
            except OSError as error:
                if not isinstance(error, _BLOCKED) and error.errno != errno.ELOOP:
                    raise
                warnings.append(
                    f"{entry.path} of the earlier attempt cannot be brought back: {error.strerror}"
                )
    return warnings


def _target(path: str, before: CodeListing, code: CodeListing) -> str:
    is_other_code = before.sha256 != code.sha256 and path in code.files
    return path + EARLIER if is_other_code else path


def _bring_entry(
    entry: Entry, source: str, target: str, working: int, may_share: bool, pulse: Callable[[], None]
) -> None:
    """Bring an entry to the path `target` below the open directory `working`; no link is followed."""
    if entry.is_directory:
        with created_below(working, target):
            return
    folder, name = os.path.split(target)
    with created_below(working, folder) as place:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=place)  # the code's own file, which the training had changed
        if entry.is_link:
            os.symlink(inner_link(entry, source), name, dir_fd=place)
        elif may_share and entry.status.st_nlink == 1:
            link_or_copy(entry.name, name, entry.dir_fd, pulse, place)
        else:
            copy_file(entry.name, name, pulse, entry.dir_fd, place)


def _entries(working: str, pulse: Callable[[], None]) -> Iterator[Entry]:
    top = open_directory(working)
    try:
        for entry in walk(top, pulse, skip_deeper=True):
            if not IGNORED.intersection(entry.path.split("/")):
                yield entry
    finally:
        os.close(top)

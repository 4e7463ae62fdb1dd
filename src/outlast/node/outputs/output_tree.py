"""The output directory as the training left it, made a tree of regular files.

People replace `$OUTLAST_OUTPUT_DIR` by a link to a larger disk, and link to files in it. Nothing outside the
run's own directories is changed: the content behind a link is copied, and the link is removed.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Callable

from outlast.node.files import copy_file, copy_link_target, lift_deep, make_tree_accessible
from outlast.node.pulse import no_pulse
from outlast.untrusted_files import Entry, directory_below, open_directory, walk

_VARIABLE = "$OUTLAST_OUTPUT_DIR"
#: How much of a link's target a warning quotes.
_LONGEST_GOAL = 200


class BadOutputDirectory(Exception):
    """The output directory was replaced by something that cannot be delivered; the message is a sentence."""


def find_content(output: str) -> str | None:
    """Return the directory with the outputs: `output`, or the one that it links to; None if it is missing.

    Raises BadOutputDirectory.
    """
    try:
        mode = os.lstat(output).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        return output
    if not stat.S_ISLNK(mode):
        raise BadOutputDirectory(f"{_VARIABLE} was replaced by a file; write the outputs into it instead.")
    goal = os.readlink(output)
    content = os.path.realpath(output)
    if not os.path.isdir(content):
        raise BadOutputDirectory(f"{_VARIABLE} was replaced by a link to {goal}, which is not a directory.")
    if is_below(os.path.realpath(os.path.dirname(output)) + "/", os.path.join(content, "")):
        raise BadOutputDirectory(
            f"{_VARIABLE} was replaced by a link to {goal}, which contains the job itself; "
            f"link to a directory for the outputs alone, or copy them into {_VARIABLE}."
        )
    return content


def normalize_output(output: str, pulse: Callable[[], None] = no_pulse) -> list[str]:
    """Leave only accessible files and directories in the output directory. Return a warning for each change.

    A link to a file in the directory (best.pt → step-100.pt) becomes a file; other links and devices are
    removed. Raises BadOutputDirectory and OSError.
    """
    warnings = _replace_link(output, pulse)
    changed = make_tree_accessible(output, pulse)
    if changed:
        warnings.append(f"{changed} files or directories of the output were not accessible; now they are")
    warnings += [f"in the output directory, {text}" for text in lift_deep(output, pulse)]
    top = open_directory(output)
    try:
        for entry in walk(top, pulse):
            if (
                entry.is_file
                or entry.is_directory
                or (entry.is_link and _replace_inner_link(output, entry, pulse))
            ):
                continue
            warnings.append(f"{entry.path} in the output directory is {_describe(entry)}; it was removed")
            os.unlink(entry.name, dir_fd=entry.dir_fd)
    finally:
        os.close(top)
    return warnings


def _replace_link(output: str, pulse: Callable[[], None]) -> list[str]:
    """Make `output` a directory: with a copy of the content, if it is a link; empty, if it is missing."""
    content = find_content(output)
    if content == output:
        return []
    if content is None:
        os.makedirs(output)
        return ["the training removed its output directory"]
    copy_link_target(output, pulse)
    return [f"the output directory was replaced by a link to {content}; its content was copied from there"]


def _replace_inner_link(output: str, entry: Entry, pulse: Callable[[], None]) -> bool:
    """Replace a link by the regular file in `output` that it leads to. Return False if there is none."""
    temporary = f".outlast-{os.urandom(8).hex()}.tmp"  # a name made from the link's could be too long
    try:
        top = os.path.realpath(output)
        target = os.path.realpath(os.path.join(output, entry.path))
        if not is_below(target, top):
            return False
        folder, name = os.path.split(os.path.relpath(target, top))
        with directory_below(output, folder) as place:
            if not stat.S_ISREG(os.stat(name, dir_fd=place, follow_symlinks=False).st_mode):
                return False
            try:
                # As with the link, both names have one content, which a model hub's directory relies on.
                os.link(name, temporary, src_dir_fd=place, dst_dir_fd=entry.dir_fd, follow_symlinks=False)
            except OSError:
                copy_file(name, f"/proc/self/fd/{entry.dir_fd}/{temporary}", pulse, place)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENAMETOOLONG):  # it leads to what is not or cannot be there
            return False
        raise
    os.rename(temporary, entry.name, src_dir_fd=entry.dir_fd, dst_dir_fd=entry.dir_fd)
    return True


def _describe(entry: Entry) -> str:
    if not entry.is_link:
        return "neither a file nor a directory"
    goal = os.readlink(entry.name, dir_fd=entry.dir_fd)[:_LONGEST_GOAL]
    return f"a link to {goal}, which is no file in it"


def is_below(path: str, top: str) -> bool:
    """Return True if the absolute path `path` is below the directory `top`."""
    return path.startswith(os.path.join(top, ""))

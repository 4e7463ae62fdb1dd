"""Who can change a journal: the directory, the file, and the auxiliary files that SQLite acts on.

SQLite rolls back an interrupted transaction from the file `-journal`, and deletes the file that this names as
its super-journal. Whoever can write that file could so delete any file of the user who opens the journal.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
import struct
from pathlib import Path
from typing import BinaryIO

from outlast.errors import JournalDamaged, NotWritable
from outlast.untrusted_files import open_file

#: The files that SQLite keeps beside a database.
AUXILIARY = ("-journal", "-wal", "-shm")
#: The mode bits that let others write.
_OTHERS = stat.S_IWGRP | stat.S_IWOTH
#: The end of a rollback journal that names a super-journal: the name, its length, a checksum, and this.
_SUPER_MAGIC = bytes.fromhex("d9d505f920a163d7")
_SUPER_TRAILER = 16


def resolve_own_link(path: Path) -> Path:
    """Return what `path` leads to if it is a link of this user in a directory of this user; else `path`."""
    try:
        status = path.lstat()
        is_own = stat.S_ISLNK(status.st_mode) and status.st_uid == os.geteuid()
        if is_own and _is_only_ours(path.parent.stat()):
            return Path(os.path.realpath(path))
    except OSError:
        pass  # opening it raises an error with the cause
    return path


def is_private(path: Path) -> bool:
    """Return True if only this user can change the journal and the files that SQLite keeps beside it."""
    try:
        if not _is_only_ours(path.parent.stat()):
            return False
        return all(_is_only_ours(status) and stat.S_ISREG(status.st_mode) for status in _files(path).values())
    except OSError:
        return False


def check_owner(path: Path) -> None:
    """Raise NotWritable if the journal, or a file that SQLite keeps beside it, belongs to another user."""
    path = resolve_own_link(path)
    for file, status in _files(path).items():
        if status.st_uid == os.geteuid() or _makes_files_of(path.parent, status.st_uid):
            continue
        owner = describe_user(status.st_uid)
        if file != path:
            raise NotWritable(
                "%s: this file belongs to %s, and SQLite would act on what it contains; remove it"
                % (file, owner)
            )
        raise NotWritable(
            "%s: this experiment belongs to %s, and only its owner can change it. `outlast status`, "
            "`explain`, `logs` and `report` work for everyone who can read it" % (path, owner)
        )


def check_rollback_journal(path: Path) -> None:
    """Raise JournalDamaged if the rollback journal names another file, which SQLite would delete.

    Outlast has no transactions over several files: its rollback journals name none.
    """
    rollback = Path(str(path) + "-journal")
    try:
        with open_file(rollback) as file:
            is_foreign = _names_super_journal(file)
    except (FileNotFoundError, PermissionError):
        return  # SQLite does not read it either
    except OSError as error:
        raise JournalDamaged("%s: %s; remove it and try again" % (rollback, error.strerror)) from error
    if is_foreign:
        raise JournalDamaged(
            "%s: this rollback journal names another file, which SQLite would delete; Outlast did not write "
            "it. Remove it and try again" % rollback
        )


def _names_super_journal(file: BinaryIO) -> bool:
    size = file.seek(0, os.SEEK_END)
    if size < _SUPER_TRAILER:
        return False
    file.seek(size - _SUPER_TRAILER)
    trailer = file.read(_SUPER_TRAILER)
    return trailer[8:] == _SUPER_MAGIC and struct.unpack(">I", trailer[:4])[0] > 0


def describe_user(user: int) -> str:
    """Return `user NAME`, or `user ID` if it has no name on this machine."""
    with contextlib.suppress(KeyError):
        return "user %s" % pwd.getpwuid(user).pw_name
    return "user %d" % user


def _files(path: Path) -> dict[Path, os.stat_result]:
    found = {}
    for file in (path, *(Path(str(path) + suffix) for suffix in AUXILIARY)):
        with contextlib.suppress(FileNotFoundError):
            found[file] = file.lstat()
    return found


def _is_only_ours(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS


def _makes_files_of(directory: Path, user: int) -> bool:
    """Return True if files that this process creates in `directory` belong to `user`.

    Some network file systems give all files to one user, whoever created them.
    """
    import tempfile  # it imports much, and `status` rarely needs it

    try:
        with tempfile.NamedTemporaryFile(prefix=".outlast-owner-", dir=directory) as file:
            return os.fstat(file.fileno()).st_uid == user
    except OSError:
        return False

"""Files with passwords and tokens: who may read them, and what is in those with credentials.

No message quotes their content.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from outlast.errors import BadInput, NotWritable
from outlast.filesystem import describe_error
from outlast.spec.document import Document, Scalar
from outlast.spec.mistakes import BadSpec
from outlast.spec.yamlfile import parse
from outlast.untrusted_files import read_file

_MOST_BYTES = 16 * 1024


def private_file_mistake(path: Path) -> tuple[str, str]:
    """Return why a file with a secret cannot be used, and a hint; two empty texts if it can."""
    try:
        status = path.lstat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a path"
        return f"{path} cannot be read: {reason.lower()}", f"create it, then chmod 600 {path}"
    if not stat.S_ISREG(status.st_mode):
        return f"{path} is not a regular file", "no link is followed to a secret"
    if status.st_uid != os.geteuid():
        return f"{path} belongs to another user (uid {status.st_uid})", "copy it to a file of your own"
    if status.st_mode & 0o777 != 0o600:
        return f"{path} has mode {status.st_mode & 0o777:03o}", f"chmod 600 {path}"
    return "", ""


def make_private_directory(path: Path) -> None:
    """Let nobody else look into a directory: requests and signed URLs are below it. Raise NotWritable."""
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            path.chmod(0o700)
    except OSError as error:
        text = f"other users may look into {path}, and that cannot be changed: {describe_error(error)}"
        raise NotWritable(text) from error


def credentials_mistake(path: Path, keys: Sequence[str]) -> tuple[str, str]:
    """Return why a YAML file with these keys cannot be used, and a hint; two empty texts if it can."""
    text, hint = private_file_mistake(path)
    if text:
        return text, hint
    try:
        read_credentials(path, keys)
    except BadInput as error:
        text, _, hint = str(error).partition("; ")
    return text, hint


def read_credentials(path: Path, keys: Sequence[str]) -> dict[str, str]:
    """Return the values in a YAML file of texts, at least those of `keys`. Raise BadInput."""
    text, hint = private_file_mistake(path)
    if text:
        raise BadInput(f"{text}; {hint}")
    found = {
        key: node.text for key, node in _load(path, keys).root.entries.items() if isinstance(node, Scalar)
    }
    missing = [key for key in keys if not found.get(key)]
    if missing:
        raise BadInput(f"{path} has no {' and no '.join(missing)}; write {missing[0]}: and its value")
    return found


def _load(path: Path, keys: Sequence[str]) -> Document:
    try:
        return parse(read_file(path, _MOST_BYTES).decode(), path.name)
    except (OSError, UnicodeDecodeError, BadSpec):
        # The parser's message could quote a password.
        wanted = ", ".join(f"{key}: …" for key in keys)
        raise BadInput(f"{path} is not a YAML file of credentials; write {wanted}") from None

"""The user and the password for the broker, from a file that only its owner can read."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from ruamel.yaml import YAML

from outlast.errors import BadInput

_LARGEST = 64 * 1024


@dataclass(frozen=True)
class BrokerCredentials:
    """A user of the broker. The password is in no representation of it."""

    user: str = "guest"
    password: str = field(default="guest", repr=False)


def read_broker_credentials(path: Path | None) -> BrokerCredentials:
    """Return the user and password of the file; without one RabbitMQ's default, which works on loopback.

    Raises BadInput, which never contains anything of the file, if the file is missing, can be read by others
    or is not of this form.
    """
    if path is None:
        return BrokerCredentials()
    try:
        # Opened once, so that what was checked is what is read.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise BadInput("%s is not a regular file" % path)
            if status.st_mode & 0o077:
                raise BadInput("%s can be read by other users: type `chmod 600 %s`" % (path, path))
            content = file.read(_LARGEST)
    except OSError as error:
        raise BadInput("%s cannot be read: %s" % (path, error.strerror)) from error
    try:
        values = YAML(typ="safe", pure=True).load(content)
    except Exception:
        # For broken input ruamel.yaml raises more than its own errors. Their messages quote the line, which
        # may be the password's.
        raise BadInput("%s is not YAML" % path) from None
    if not isinstance(values, dict) or not all(_is_text(values.get(key)) for key in ("user", "password")):
        raise BadInput("%s must have the keys `user` and `password`, both text in quotes" % path)
    return BrokerCredentials(values["user"], values["password"])


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)

"""Bearer tokens: read again for every request, and sent only to the hosts that they are meant for.

Tokens expire during long transfers and are renewed by other programs on the node, so nothing is cached.
No exception, name, representation or log contains a token.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import signal
import stat
import subprocess
import time
from dataclasses import dataclass, field, replace
from typing import Callable, Iterator, Mapping, Sequence

from outlast.node.quantities import show_rounded_duration
from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.untrusted_files import parse_json

#: Seconds that a command may take to print a token.
COMMAND_TIMEOUT = 60.0
#: Seconds by which the clocks of a node and of a server may differ.
_SKEW = 300.0
#: The directory of tokens if there is no runtime directory.
COMMON_FOLDER = "/tmp"
_MAX_BYTES = 64 * 1024
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")


@dataclass(frozen=True)
class Token:
    """A token, and where it comes from."""

    value: str = field(repr=False)
    #: File, command or variable, for messages.
    origin: str
    #: Expiry time in seconds since 1970; None if the token has none.
    expires: float | None = None
    #: The word before it in the header Authorization.
    scheme: str = "Bearer"

    @property
    def authorization(self) -> str:
        return "%s %s" % (self.scheme, self.value)

    def describe(self, now: float) -> str:
        """Return a clause about the token, for the message about a request that was refused."""
        if self.expires is None:
            return "the token from %s was sent; it has no expiry time" % self.origin
        if self.expires <= now:
            age = show_rounded_duration(now - self.expires)
            return "the token from %s expired %s ago" % (self.origin, age)
        return (
            "the token from %s was sent and is valid for another %s; it may be for other hosts or paths"
            % (
                self.origin,
                show_rounded_duration(self.expires - now),
            )
        )


class TokenRejected(Exception):
    """A token cannot be used. The text gives the reason and does not contain the token."""


@dataclass(frozen=True)
class Tokens:
    """The places of a token, and its hosts: names, `*.names` or name:port. Without hosts, none is sent.

    With neither file nor command, the usual places are searched.
    """

    hosts: tuple[str, ...] = ()
    file: str = ""
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    scheme: str = "Bearer"

    def is_for(self, host: str, port: int) -> bool:
        """Return True if the host may get the token."""
        return any(_matches(pattern.lower(), host.lower(), port) for pattern in self.hosts)

    def token_for(self, host: str, port: int, now: Callable[[], float] = time.time) -> Token | None:
        """Return the token for a host, or None if it is not for this host or none is found.

        Raises SourceError (REFUSED) if only unusable tokens are found.
        """
        if not self.is_for(host, port):
            return None
        reason = ""
        for read in self._readers():
            try:
                token = read()
            except TokenRejected as rejected:
                reason = reason or str(rejected)
                continue
            if token is None:
                continue
            if token.expires is None or token.expires + _SKEW > now():
                return replace(token, scheme=self.scheme)
            reason = reason or token.describe(now())
        if reason:
            raise SourceError(ErrorKind.REFUSED, "no token for %s: %s" % (host, reason))
        return None

    def _readers(self) -> Iterator[Callable[[], Token | None]]:
        if self.command:
            yield lambda: from_command(self.command)
        elif self.file:
            yield lambda: _from_required_file(self.file)
        else:
            yield from _usual_readers(self.environment)


def _usual_readers(environment: Mapping[str, str]) -> Iterator[Callable[[], Token | None]]:
    """Yield a reader for each usual place: in the order of WLCG Bearer Token Discovery, then HTCondor's."""
    value = environment.get("BEARER_TOKEN", "")
    if value.strip():
        yield lambda: _parse(value, "$BEARER_TOKEN")
    named = environment.get("BEARER_TOKEN_FILE", "")
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    usual = "bt_u%d" % os.geteuid()
    files: list[str] = [named] if named else []
    files += [os.path.join(runtime, usual)] if runtime else []
    files.append(os.path.join(COMMON_FOLDER, usual))
    folder = environment.get("_CONDOR_CREDS", "")
    if folder and os.path.isdir(folder):
        files += sorted(entry.path for entry in os.scandir(folder) if entry.name.endswith(".use"))
    for path in files:
        yield lambda path=path: from_file(path)  # type: ignore[misc]


def _from_required_file(path: str) -> Token:
    token = from_file(path)
    if token is None:
        raise TokenRejected("the token file %s does not exist" % path)
    return token


def from_file(path: str) -> Token | None:
    """Return the token in a file, or None if it does not exist.

    Raises TokenRejected if others can read the file, or if it does not contain a token.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TokenRejected("the token file %s cannot be read: %s" % (path, error.strerror)) from None
    try:
        _refuse_unsafe(path, os.fstat(descriptor))
        raw = os.read(descriptor, _MAX_BYTES + 1)
    except OSError as error:
        raise TokenRejected("the token file %s cannot be read: %s" % (path, error.strerror)) from None
    finally:
        os.close(descriptor)
    return _parse(_decode(raw, path), path)


def _refuse_unsafe(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise TokenRejected("the token file %s is not a regular file" % path)
    if status.st_uid not in (os.geteuid(), 0):
        raise TokenRejected("the token file %s belongs to another user (uid %d)" % (path, status.st_uid))
    if status.st_mode & 0o077:
        raise TokenRejected(
            "others can read the token file %s (mode %03o), so it is not used; run: chmod 600 %s"
            % (path, status.st_mode & 0o777, path)
        )


def from_command(command: Sequence[str], timeout: float = COMMAND_TIMEOUT) -> Token:
    """Run a command and return the token that it prints. Raises TokenRejected.

    Its standard error is discarded, since it could contain a secret.
    """
    origin = "the command %s" % command[0]
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise TokenRejected("%s cannot be run: %s" % (origin, error.strerror)) from None
    with process:
        try:
            raw, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise TokenRejected("%s printed no token within %g s" % (origin, timeout)) from None
        finally:
            if process.returncode is None:
                os.killpg(
                    process.pid, signal.SIGKILL
                )  # with its child processes, which may keep the pipe open
    if process.returncode != 0:
        raise TokenRejected(
            "%s failed with exit code %d; run it by hand to see why" % (origin, process.returncode)
        )
    return _parse(_decode(raw, origin), origin)


def _decode(raw: bytes, origin: str) -> str:
    if len(raw) > _MAX_BYTES:
        raise TokenRejected("%s has more than %d bytes, too many for a token" % (origin, _MAX_BYTES))
    return raw.decode("utf-8", "replace")


def _parse(text: str, origin: str) -> Token:
    value = text.strip()
    if value.startswith("{"):  # HTCondor's .use files
        try:
            value = str(parse_json(value)["access_token"])
        except (ValueError, KeyError, TypeError):
            raise TokenRejected("%s is JSON without an access_token" % origin) from None
    if not _TOKEN.fullmatch(value):
        problem = "is empty" if not value else "does not contain a bearer token"
        raise TokenRejected("%s %s" % (origin, problem))
    return Token(value, origin, _expiry_time(value))


def _expiry_time(value: str) -> float | None:
    """Return the expiry time of a JSON Web Token, None for other tokens. The signature is not verified."""
    parts = value.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = parse_json(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    except (binascii.Error, ValueError, KeyError, TypeError, OverflowError):
        return None  # not a JSON Web Token, or one without an expiry time


def _matches(pattern: str, host: str, port: int) -> bool:
    name, colon, number = pattern.rpartition(":")
    if colon and number.isdigit() and not name.endswith(":") and (":" not in name or name.endswith("]")):
        if number != str(port):
            return False
        pattern = name
    pattern = pattern.strip("[]")
    if pattern.startswith("*."):
        return host.endswith(pattern[1:])
    return host == pattern

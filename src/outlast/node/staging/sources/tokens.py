"""The bearer token of a source: found and read anew at every try, and given to the hosts it is meant for.

Tokens run out in the middle of a transfer, and something on the node renews the file: nothing is remembered.
A token is in no exception, name, representation or log.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import signal
import stat
import subprocess
import time
from dataclasses import dataclass, field, replace
from typing import Callable, Iterable, Iterator, Mapping, Sequence

from outlast.node.staging.errors import ErrorKind, SourceError

#: Seconds that a command may take to print a token.
COMMAND_LIMIT = 60.0
#: Seconds by which the clocks of a node and of a server may differ.
_SKEW = 300.0
#: Where tokens are kept without a runtime directory.
COMMON_FOLDER = "/tmp"
_LARGEST = 64 * 1024
_FORM = re.compile(r"[A-Za-z0-9._~+/-]+=*")


@dataclass(frozen=True)
class Token:
    value: str = field(repr=False)
    #: Where it comes from, for people.
    origin: str
    #: When it runs out, in seconds since 1970, if it says so.
    expires: float | None = None

    @property
    def authorization(self) -> str:
        return "Bearer " + self.value

    def state(self, now: float) -> str:
        """In words, for an answer that refuses it."""
        if self.expires is None:
            return "the token from %s was sent; it does not say when it runs out" % self.origin
        if self.expires <= now:
            return "the token from %s ran out %s ago" % (self.origin, _span(now - self.expires))
        return (
            "the token from %s was sent, and is good for another %s: it may be for other hosts or paths"
            % (
                self.origin,
                _span(self.expires - now),
            )
        )


class TokenRejected(Exception):
    """Why a token cannot be used, in a sentence without the token."""


@dataclass(frozen=True)
class Tokens:
    """Where a token is, and for which hosts: names, `*.names` or name:port. No host: nobody gets one.

    With neither file nor command the usual places are looked through.
    """

    hosts: tuple[str, ...] = ()
    file: str = ""
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)

    def meant_also_for(self, hosts: Iterable[str]) -> Tokens:
        return replace(self, hosts=(*self.hosts, *hosts))

    def is_for(self, host: str, port: int) -> bool:
        return any(_covers(pattern.lower(), host.lower(), port) for pattern in self.hosts)

    def token_for(self, host: str, port: int, now: Callable[[], float] = time.time) -> Token | None:
        """None: it is not for this host, or there is none. Raises Trouble (refused) for one that is unfit."""
        if not self.is_for(host, port):
            return None
        complaint = ""
        for place in self._places():
            try:
                token = place()
            except TokenRejected as unfit:
                complaint = complaint or str(unfit)
                continue
            if token is None:
                continue
            if token.expires is None or token.expires + _SKEW > now():
                return token
            complaint = complaint or token.state(now())
        if complaint:
            raise SourceError(ErrorKind.REFUSED, "no token for %s: %s" % (host, complaint))
        return None

    def _places(self) -> Iterator[Callable[[], Token | None]]:
        if self.command:
            yield lambda: from_command(self.command)
        elif self.file:
            yield lambda: _must_be_there(self.file)
        else:
            yield from _usual_places(self.environment)


def _usual_places(environment: Mapping[str, str]) -> Iterator[Callable[[], Token | None]]:
    """As other tools for grid data look for one: WLCG's order, then HTCondor's folder."""
    value = environment.get("BEARER_TOKEN", "")
    if value.strip():
        yield lambda: _parsed(value, "$BEARER_TOKEN")
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


def _must_be_there(path: str) -> Token:
    token = from_file(path)
    if token is None:
        raise TokenRejected("the token file %s is not there" % path)
    return token


def from_file(path: str) -> Token | None:
    """None: there is no such file. Raises Unfit for one that others can read, or that is no token."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TokenRejected("the token file %s cannot be read: %s" % (path, error.strerror)) from None
    try:
        _refuse_unsafe(path, os.fstat(descriptor))
        raw = os.read(descriptor, _LARGEST + 1)
    except OSError as error:
        raise TokenRejected("the token file %s cannot be read: %s" % (path, error.strerror)) from None
    finally:
        os.close(descriptor)
    return _parsed(_text(raw, path), path)


def _refuse_unsafe(path: str, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise TokenRejected("the token file %s is no file" % path)
    if found.st_uid not in (os.geteuid(), 0):
        raise TokenRejected("the token file %s belongs to somebody else (user %d)" % (path, found.st_uid))
    if found.st_mode & 0o077:
        raise TokenRejected(
            "others can read the token file %s (mode %03o), so it is not used: chmod 600 %s"
            % (path, found.st_mode & 0o777, path)
        )


def from_command(command: Sequence[str], limit: float = COMMAND_LIMIT) -> Token:
    """What the command prints. Its complaints are not read: they could quote a secret. Raises Unfit."""
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
            raw, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            raise TokenRejected("%s printed no token within %g s" % (origin, limit)) from None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)  # with all it started, which may hold the pipe
    if process.returncode != 0:
        raise TokenRejected(
            "%s failed with status %d: run it by hand to see why" % (origin, process.returncode)
        )
    return _parsed(_text(raw, origin), origin)


def _text(raw: bytes, origin: str) -> str:
    if len(raw) > _LARGEST:
        raise TokenRejected("%s holds more than a token" % origin)
    return raw.decode("utf-8", "replace")


def _parsed(text: str, origin: str) -> Token:
    value = text.strip()
    if value.startswith("{"):  # HTCondor's .use files
        try:
            value = str(json.loads(value)["access_token"])
        except (ValueError, KeyError):
            raise TokenRejected("%s is JSON without an access_token" % origin) from None
    if not _FORM.fullmatch(value):
        what = "is empty" if not value else "holds something that is no bearer token"
        raise TokenRejected("%s %s" % (origin, what))
    return Token(value, origin, _expiry(value))


def _expiry(value: str) -> float | None:
    """A JSON Web Token says when it runs out; others do not. The signature is the server's to check."""
    parts = value.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    except (binascii.Error, ValueError, KeyError, TypeError):
        return None  # three parts by chance, or a token without an end


def _covers(pattern: str, host: str, port: int) -> bool:
    name, colon, number = pattern.rpartition(":")
    if colon and number.isdigit() and not name.endswith(":") and (":" not in name or name.endswith("]")):
        if number != str(port):
            return False
        pattern = name
    pattern = pattern.strip("[]")
    if pattern.startswith("*."):
        return host.endswith(pattern[1:])
    return host == pattern


def _span(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return "%d %s" % (seconds // length, unit)
    return "%d s" % seconds

"""The token of the web application: fetched by a log-in, kept in a file that jobs and uploads use.

It is in that file and nowhere else: no exception, log or journal contains it.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from outlast.filesystem import describe_error, sync_directory
from outlast.gateway.configuration.private_files import private_file_mistake
from outlast.gateway.gateway_directory import GatewayDirectory
from outlast.gateway.settings import ApplicationSettings
from outlast.gateway.web_application.login import TOKEN, LoginError, fetch_token
from outlast.gateway.web_application.web_request import WebTimeouts
from outlast.text import printable
from outlast.units import show_duration
from outlast.untrusted_files import create_file, open_directory, read_file

_log = logging.getLogger(__name__)

#: The token's file below `tokens/`. A file beside it records by its time when the last log-in was begun.
TOKEN_FILE = "application"
_LAST_LOGIN = ".application.last-login"
#: Seconds between two log-ins at least, doubled after each that failed, up to the longest.
SHORTEST_PAUSE, LONGEST_PAUSE = 30.0, 3600.0
_MOST_TOKEN = 16 * 1024


class Application:
    """The application of `settings`. Used by one thread at a time."""

    def __init__(
        self,
        settings: ApplicationSettings,
        directory: GatewayDirectory,
        *,
        timeouts: WebTimeouts | None = None,
    ) -> None:
        self._settings = settings
        self._directory = directory.tokens
        self._timeouts = timeouts or WebTimeouts()
        self._failures = 0
        self._last_error = ""

    @property
    def has_login(self) -> bool:
        """True if the application gives out tokens."""
        return bool(self._settings.url and self._settings.login)

    @property
    def path(self) -> Path:
        """The file with the token; it may not exist yet."""
        return self._directory / TOKEN_FILE

    def token_file(self, now: float) -> Path:
        """Return the file with the token; log in if there is none. Raise LoginError."""
        if self._read_token() is None:
            self._log_in(now)
        return self.path

    def authorization(self, now: float) -> str:
        """Return the value of an Authorization header. Raise LoginError."""
        self.token_file(now)
        return "%s %s" % (self._settings.scheme, self._read_token() or "")

    def renew(self, reason: str, now: float) -> bool:
        """Log in again, because a token was refused; return False if that was done only just now.

        A token that is younger than the shortest pause is not renewed: others have seen the old one refused,
        too. Raise LoginError.
        """
        if self._read_token() is not None and self._pause_left(now, SHORTEST_PAUSE) > 0:
            return False
        _log.info("logging in at the application again: %s", printable(reason))
        self._log_in(now)
        return True

    def _log_in(self, now: float) -> None:
        self._await_turn(now)
        try:
            token = fetch_token(self._settings, self._timeouts)
            write_private_file(self._directory, TOKEN_FILE, token.encode() + b"\n")
        except LoginError as error:
            self._failures += 1
            self._last_error = error.text
            raise
        except OSError as error:
            raise LoginError(True, "the token cannot be stored: %s" % describe_error(error)) from None
        self._failures, self._last_error = 0, ""

    def _await_turn(self, now: float) -> None:
        """Record that a log-in begins now. Raise LoginError if the last one was too short a time ago."""
        doublings = min(10, max(0, self._failures - 1))
        left = self._pause_left(now, min(LONGEST_PAUSE, SHORTEST_PAUSE * 2**doublings))
        if left > 0:
            reason = self._last_error or "the last log-in was only just now"
            raise LoginError(True, "%s; the next log-in is in %s" % (reason, show_duration(left)))
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            write_private_file(self._directory, _LAST_LOGIN, b"")
            os.utime(self._directory / _LAST_LOGIN, (now, now), follow_symlinks=False)
        except OSError as error:
            raise LoginError(True, "the log-in cannot be recorded: %s" % describe_error(error)) from None

    def _pause_left(self, now: float, pause: float) -> float:
        """Return the seconds until a log-in is allowed. A clock that was set back does not delay it."""
        try:
            passed = now - (self._directory / _LAST_LOGIN).lstat().st_mtime
        except OSError:
            return 0.0  # there was none; if the directory cannot be used, recording the next one fails
        return max(0.0, pause - passed) if passed >= 0 else 0.0

    def _read_token(self) -> str | None:
        """Return the token; None if there is none that jobs would accept."""
        if private_file_mistake(self.path)[0]:
            return None
        try:
            token = read_file(self.path, _MOST_TOKEN).decode("ascii", "replace").strip()
        except OSError:
            return None
        return token if TOKEN.fullmatch(token) else None


def write_private_file(directory: Path, name: str, content: bytes) -> None:
    """Write a file of mode 600 durably; no link in its place is followed. Raise OSError."""
    folder = open_directory(directory)
    try:
        temporary = ".%s.%d.tmp" % (name, os.getpid())
        with create_file(temporary, folder) as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(folder)
    sync_directory(directory)

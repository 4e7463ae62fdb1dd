"""Keeps the token that jobs use at the application: logs in when there is none, or it was refused."""

from __future__ import annotations

import threading

from outlast.gateway.web_application.application import Application
from outlast.gateway.web_application.login import LoginError
from outlast.gateway.worker_threads import Worker

#: Seconds between two looks at the token's file.
INTERVAL = 5.0


class TokenKeeper:
    """Logs in beside the service, which does not wait for it. `lock` guards `application`."""

    def __init__(self, application: Application, lock: threading.Lock) -> None:
        self._application = application
        self._lock = lock
        self._worker: Worker[str, bool] = Worker("log-in", 1)
        self._looked = 0.0
        self._refused = False
        #: True if jobs find a token, or need none.
        self.ready = not application.has_login
        #: Why there is no token; empty: there is one, or none was fetched yet.
        self.trouble = ""

    @property
    def busy(self) -> bool:
        """True while a log-in is under way."""
        return self._worker.busy

    def refuse(self) -> None:
        """Note that the application has refused the token of a job."""
        self._refused = True

    def step(self, now: float) -> None:
        """Begin a log-in if one is needed, and see what became of the last one."""
        for _, result in self._worker.finished():
            if isinstance(result, LoginError):
                self.ready, self.trouble = False, result.text
            elif isinstance(result, BaseException):
                raise result
            else:
                self.ready, self.trouble = True, ""
        if not self._application.has_login or now - self._looked < INTERVAL:
            return
        self._looked = now
        refused, self._refused = self._refused, False
        self._worker.start("token", lambda: self._fetch(refused, now))

    def _fetch(self, refused: bool, now: float) -> bool:
        with self._lock:
            if refused:
                self._application.renew("a job's token was refused", now)
            self._application.token_file(now)
        return True

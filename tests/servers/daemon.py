"""Real servers as child processes of a test: unprivileged, each in a directory of its own."""

from __future__ import annotations

import functools
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from servers.certificates import Authority, Certificate
from support.clusters import not_here

if TYPE_CHECKING:
    from typing import Self

INSTALL = Path(__file__).parent / "install"
#: Seconds for a server to get ready, and to stop after SIGTERM.
PATIENCE = 30.0
#: The account to use when tests run as root: some servers refuse to run as root.
NOBODY = "nobody"


@functools.cache
def need(*packages: str) -> None:
    """Install Debian packages. Skip the test if that fails; in CI, fail it."""
    done = subprocess.run(
        [str(INSTALL), *packages],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    if done.returncode != 0:
        not_here("cannot install %s: %s" % (", ".join(packages), done.stderr.strip()[-500:]))


class Daemon:
    """The process of a server, and the directory that it owns. `log` is its output since the last start."""

    def __init__(self, name: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ol-%s-" % name))
        self.folder.chmod(0o755)
        self._process: subprocess.Popen[bytes] | None = None
        self._log = self.folder / "log"

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server was not started"
        return self._process.pid

    def certify(self, authority: Authority) -> Certificate:
        """Issue a certificate for loopback, in the server's directory."""
        issued = authority.issue(self.folder.name)
        copies = Certificate(self.folder / "chain.pem", self.folder / "key.pem")
        shutil.copyfile(issued.chain, copies.chain)
        shutil.copyfile(issued.key, copies.key)
        copies.key.chmod(0o600)
        return copies

    def _chown(self) -> None:
        """Give the directory to the account that the server runs as, without following links."""
        if os.geteuid() == 0:
            account = pwd.getpwnam(NOBODY).pw_uid
            for folder, folders, files in os.walk(self.folder):
                for name in (".", *folders, *files):
                    os.chown(os.path.join(folder, name), account, -1, follow_symlinks=False)

    def start(self, command: list[str], is_ready: Callable[[], bool]) -> None:
        """Start the server and wait until it is ready."""
        self._chown()
        account = {"user": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # type: ignore[call-overload]
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,
                **account,
            )
        until = time.monotonic() + PATIENCE
        while not is_ready():
            assert self._process.poll() is None, "%s exited at once:\n%s" % (command[0], self.log[-2000:])
            assert time.monotonic() < until, "%s does not get ready:\n%s" % (command[0], self.log[-2000:])
            time.sleep(0.02)

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(PATIENCE)
        self._process = None

    def close(self) -> None:
        """Stop the server and remove its directory."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class Server:
    """A server as a context manager; subclasses implement `start`."""

    def __init__(self, name: str) -> None:
        self._daemon = Daemon(name)

    def start(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        self._daemon.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._daemon.close()


def free_port() -> int:
    """Return a free port on loopback, for servers that cannot choose one and report it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_listening(port: int) -> bool:
    """Return True if a server accepts connections on this port of loopback."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0

"""A real server as a process of ours: unprivileged, in a directory of its own, ended by its pid."""

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
#: Seconds for a server to answer after its start, and to leave when asked to.
PATIENCE = 30.0
#: Servers refuse to run as root, or would read what no server should.
NOBODY = "nobody"


@functools.cache
def need(*packages: str) -> None:
    """Debian's packages are there afterwards. Skips the test where that cannot be done; in CI it fails."""
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
    """A directory that the server owns, and its process. `log` is all that it printed since its start."""

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
        assert self._process is not None, "it was not started"
        return self._process.pid

    def certify(self, authority: Authority) -> Certificate:
        """A certificate for loopback, where the server may read it."""
        issued = authority.issue(self.folder.name)
        copies = Certificate(self.folder / "chain.pem", self.folder / "key.pem")
        shutil.copyfile(issued.chain, copies.chain)
        shutil.copyfile(issued.key, copies.key)
        copies.key.chmod(0o600)
        return copies

    def _own(self) -> None:
        """What is in the directory belongs to the account that the server runs as; no link is followed."""
        if os.geteuid() == 0:
            account = pwd.getpwnam(NOBODY).pw_uid
            for folder, folders, files in os.walk(self.folder):
                for name in (".", *folders, *files):
                    os.chown(os.path.join(folder, name), account, -1, follow_symlinks=False)

    def start(self, command: list[str], ready: Callable[[], bool]) -> None:
        self._own()
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
        while not ready():
            assert self._process.poll() is None, "%s ended at once:\n%s" % (command[0], self.log[-2000:])
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
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class Server:
    """What is told to a server of ours by `with`; `start` is the kind's own."""

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
    """A port that nobody on loopback listens on; for servers that cannot say which one they were given."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0

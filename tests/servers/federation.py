"""The Pelican protocol on real XRootD: an origin, two caches and a director, on loopback.

`python tests/servers/federation.py` runs one until Ctrl-C and prints how to use it.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from servers.certificates import Authority
from servers.director import Director, Namespace
from servers.xrootd import XRootD

PREFIX = "/ns"


class Federation:
    """A running federation. Tests extend it by adding a `Namespace` to the director."""

    def __init__(self, authority: Authority) -> None:
        self.authority = authority
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Federation:
        with self._stack:  # stops the servers already started if another one fails to start
            self.director = self._stack.enter_context(Director(self.authority))
            self.origin = self._stack.enter_context(XRootD(self.authority, PREFIX))
            self.caches = [
                self._stack.enter_context(XRootD(self.authority, PREFIX, self.origin)) for _ in range(2)
            ]
            self._stack = self._stack.pop_all()
        self.restore()
        return self

    def restore(self) -> None:
        """Make the director name all caches and the origin, in order."""
        self.director.namespaces[:] = [
            Namespace(PREFIX, [cache.url("") for cache in self.caches], [self.origin.url("")])
        ]

    def url(self, path: str) -> str:
        return "pelican://%s%s" % (self.director.host, path)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="ol-federation-"))
    try:
        with Federation(Authority(folder)) as federation:
            federation.origin.put(PREFIX + "/hello.txt", b"hello\n")
            print("put files into     %s%s" % (federation.origin.files, PREFIX))
            print("export SSL_CERT_FILE=%s" % federation.authority.bundle)
            print("%s" % federation.url(PREFIX + "/hello.txt"))
            threading.Event().wait()
    except KeyboardInterrupt:
        print("stopped")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

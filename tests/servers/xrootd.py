"""Real XRootD servers on loopback, as Pelican runs them: an origin with files, and caches (XCache) of it.

Both serve HTTP, TLS and XRootD's own protocol on one port, which XRootD chooses and prints when it is ready.
XRootD listens on all addresses, but is configured to accept local clients only.
"""

from __future__ import annotations

import re
from pathlib import Path

from servers.certificates import Authority
from servers.daemon import Server, need

#: The configuration that both have in common.
COMMON = """
all.role server
all.adminpath %(folder)s/run
all.pidpath %(folder)s/run
all.export %(namespace)s r/o
xrd.port %(port)s
xrd.network nodnr
xrd.allow host localhost
xrd.allow host 127.0.0.1
xrd.tls %(chain)s %(key)s
xrd.tlsca certfile %(authority)s
xrd.protocol http libXrdHttp.so
oss.localroot %(folder)s/files
"""
ORIGIN = """
xrootd.chksum max 2 md5 adler32 crc32 crc32c
"""
#: Checksums are requested from the origin; without `ckslib`, a HEAD for a checksum gets 404.
CACHE = """
ofs.osslib libXrdPss.so
ofs.ckslib * libXrdPss.so
xrootd.chksum max 2 md5 adler32 crc32
pss.origin localhost:%(origin)d
pss.cachelib libXrdPfc.so
pfc.ram 1g
pfc.blocksize 64k
pfc.prefetch 0
"""


class XRootD(Server):
    """An origin, or a cache if `origin` is given."""

    def __init__(self, authority: Authority, namespace: str, origin: XRootD | None = None) -> None:
        need("xrootd-server", "xrootd-server-plugins")
        self._name = "cache" if origin else "origin"
        super().__init__(self._name)
        folder = self._daemon.folder
        #: Where an origin's files are, and where a cache keeps its copies.
        self.files = folder / "files"
        (self.files / namespace.strip("/")).mkdir(parents=True)
        (folder / "run").mkdir()
        certificate = self._daemon.certify(authority)
        bundle = folder / "authority.pem"
        bundle.write_bytes(authority.bundle.read_bytes())
        self._settings = {
            "folder": folder,
            "namespace": namespace,
            "chain": certificate.chain,
            "key": certificate.key,
            "authority": bundle,
            "origin": origin.port if origin else 0,
        }
        self._template = COMMON + (CACHE if origin else ORIGIN)
        self.port = 0

    def url(self, path: str) -> str:
        return "https://localhost:%d%s" % (self.port, path)

    def start(self) -> None:
        """Start the server. The first start chooses the port; later ones use the same."""
        configuration = self._daemon.folder / "xrootd.cfg"
        configuration.write_text(self._template % {**self._settings, "port": self.port or "any"})
        self._daemon.start(["xrootd", "-c", str(configuration), "-n", self._name], self._is_ready)

    def _is_ready(self) -> bool:
        found = re.search(r"^-+ xrootd \S+:(\d+) initialization completed", self._daemon.log, re.MULTILINE)
        if found:
            self.port = int(found.group(1))
        return found is not None

    def put(self, path: str, content: bytes) -> Path:
        """Write a file of the origin."""
        file = self.files / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        return file

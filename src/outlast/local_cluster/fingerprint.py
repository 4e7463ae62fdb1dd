"""A fingerprint of the code on disk, which shows whether a daemon runs older code than its client."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import outlast
from outlast import filesystem, node, untrusted_files


def code_fingerprint() -> str:
    """Return a text that changes when a file that the daemon or a job would run is installed or edited."""
    digest = hashlib.sha256()
    for path in sorted(_sources()):
        try:
            status = Path(path).stat()
        except OSError:
            continue  # an editor is replacing it, or keeps a link to nowhere beside it
        digest.update(b"%s %d %d\n" % (os.fsencode(path), status.st_mtime_ns, status.st_size))
    return "%s %s %s" % (outlast.__version__, Path(__file__).parent, digest.hexdigest())


def _sources() -> Iterator[str]:
    """Yield the files that the daemon imports; a job, which is a fork of it, imports more of `node` later."""
    for module in (outlast, filesystem, untrusted_files):
        yield str(module.__file__)
    for package in (node.__file__, __file__):
        for directory, _, names in os.walk(Path(package).parent):
            yield from (os.path.join(directory, name) for name in names if name.endswith(".py"))

"""An experiment on disk: a directory with a `params.yaml`, and where everything about it lies."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from outlast.domain.model import Attempt


@dataclass(frozen=True)
class Experiment:
    """`root` is absolute. Nothing here touches the disk."""

    root: Path

    @property
    def params_file(self) -> Path:
        return self.root / "params.yaml"

    @property
    def journal(self) -> Path:
        return self.root / "journal.sqlite"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def results(self) -> Path:
        return self.root / "results"

    @property
    def params(self) -> Path:
        """What passes between controller and jobs, and from job to job."""
        return self.root / "params"

    @property
    def workdir(self) -> Path:
        """All that may be deleted."""
        return self.root / "workdir"

    @property
    def data(self) -> Path:
        """Data that has arrived, for all runs."""
        return self.workdir / "data"

    @property
    def inbox(self) -> Path:
        return self.params / "inbox"

    @property
    def bell(self) -> Path:
        """Touched by jobs when they begin and end."""
        return self.params / "bell"

    @property
    def identity(self) -> str:
        """What tells this experiment's jobs from others: where it is. A copy of it is another experiment, and
        should its journal be put aside, the jobs of the one before are still seen, and ended."""
        return hashlib.sha256(os.fsencode(os.path.realpath(self.root))).hexdigest()[:16]

    def zipapp(self, digest: str) -> Path:
        return self.params / ("outlast-%s.pyz" % digest[:16])

    def code(self, sha256: str) -> Path:
        return self.params / ("code-%s.tar" % sha256[:16])

    def checkpoints(self, run: str) -> Path:
        return self.params / "runs" / run / "checkpoints"

    def exchange(self, run: str, number: int, token: str) -> Path:
        """What passes between the controller and one attempt."""
        return self.params / "runs" / run / ("%03d-%s" % (number, token))

    def exchange_of(self, attempt: Attempt) -> Path:
        return self.exchange(attempt.run, attempt.number, attempt.token)

    def scratch(self, run: str, number: int, token: str) -> Path:
        return self.workdir / run / ("%03d-%s" % (number, token))

    def log(self, run: str, number: int) -> Path:
        return self.logs / run / ("%03d.log" % number)

    def result(self, run: str) -> Path:
        return self.results / run

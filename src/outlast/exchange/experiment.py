"""The layout of an experiment's directory: the paths of its files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from outlast.domain.model import Attempt


@dataclass(frozen=True)
class Experiment:
    """The paths in the experiment at `root`, which is absolute. Nothing here accesses the disk."""

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
        """The directory of files that controller and jobs exchange."""
        return self.root / "params"

    @property
    def workdir(self) -> Path:
        """The directory whose content may be deleted at any time."""
        return self.root / "workdir"

    @property
    def data(self) -> Path:
        """The cache of data for all runs, if the profile of the cluster names none."""
        return self.workdir / "data"

    @property
    def inbox(self) -> Path:
        return self.params / "inbox"

    @property
    def bell(self) -> Path:
        """The file that jobs touch when they begin and end, so that the controller polls."""
        return self.params / "bell"

    @property
    def identity(self) -> str:
        """A tag for the jobs of this experiment, derived from its path.

        A copy of an experiment has another identity. After the journal was moved away, jobs of the earlier
        journal are still found, and cancelled.
        """
        import hashlib

        return hashlib.sha256(os.fsencode(os.path.realpath(self.root))).hexdigest()[:16]

    def zipapp(self, digest: str) -> Path:
        return self.params / ("outlast-%s.pyz" % digest[:16])

    def code(self, sha256: str) -> Path:
        return self.params / ("code-%s.tar" % sha256[:16])

    def checkpoints(self, run: str) -> Path:
        return self.params / "runs" / run / "checkpoints"

    def snapshots(self, run: str) -> Path:
        """Return the directory of older states of checkpoints that the script writes by itself."""
        return self.params / "runs" / run / "snapshots"

    def exchange(self, run: str, number: int, token: str) -> Path:
        """Return the directory of the files that the controller exchanges with the jobs of one attempt."""
        return self.params / "runs" / run / ("%03d-%s" % (number, token))

    def exchange_of(self, attempt: Attempt) -> Path:
        return self.exchange(attempt.run, attempt.number, attempt.token)

    def scratch(self, run: str, number: int, token: str) -> Path:
        return self.workdir / run / ("%03d-%s" % (number, token))

    def saved_state(self, run: str) -> tuple[Path, ...]:
        """Return everything that the next attempt of a run would resume from."""
        return self.checkpoints(run), self.snapshots(run), self.workdir / run

    def log(self, run: str, number: int) -> Path:
        return self.logs / run / ("%03d.log" % number)

    def result(self, run: str) -> Path:
        return self.results / run

    def rejected(self, run: str) -> Path:
        """Return the directory of outputs that failed their checks."""
        return self.results / (run + ".rejected")

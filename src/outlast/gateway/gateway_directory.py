"""The layout of a gateway's directory: the paths of its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class GatewayDirectory:
    """The paths in the gateway at `root`, which is absolute. Nothing here accesses the disk."""

    root: Path

    @property
    def settings(self) -> Path:
        return self.root / "gateway.yaml"

    @property
    def credentials(self) -> Path:
        """The directory of files with passwords; mode 700, its files 600."""
        return self.root / "credentials"

    @property
    def templates(self) -> Path:
        return self.root / "templates"

    def template(self, name: str) -> Path:
        """Return the directory of a template: params.yaml, template.yaml and code."""
        return self.templates / name

    @property
    def record(self) -> Path:
        """The record of messages, requests and answers; with `experiments`, the only state."""
        return self.root / "requests.sqlite"

    @property
    def experiments(self) -> Path:
        return self.root / "experiments"

    def experiment(self, template: str) -> Path:
        """Return the experiment whose runs are the requests for a template."""
        return self.experiments / template

    @property
    def tokens(self) -> Path:
        """The directory of tokens that jobs read; mode 700, its files 600."""
        return self.root / "tokens"

    @property
    def answers(self) -> Path:
        """The directory of answers that are larger than a row of the record should be."""
        return self.root / "answers"

    @property
    def audit(self) -> Path:
        return self.root / "audit.jsonl"

    @property
    def heartbeat(self) -> Path:
        """The file in which `gateway up` writes how it is, for `status` and health checks."""
        return self.root / "gateway.json"

    @property
    def health_socket(self) -> Path:
        """The socket of metrics and health checks; mode 600."""
        return self.root / "health.sock"

    @property
    def lock(self) -> Path:
        return self.root / "gateway.lock"

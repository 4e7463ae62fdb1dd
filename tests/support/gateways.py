"""Gateway directories with valid files, for tests that change them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from outlast.gateway.configuration.settings_file import read_settings
from outlast.gateway.configuration.template_file import read_params, read_templates
from outlast.gateway.gateway_directory import GatewayDirectory
from outlast.gateway.settings import GatewaySettings, Template
from outlast.spec import Parsed

SETTINGS = """\
broker: {host: broker.example.org, tls: yes, credentials: credentials/broker.yaml}
queues:
  - {name: train, reply_to: [results, "results.*"], dead_letters: train.dead}
  - {name: hpc-jobs, dialect: rodan, template: pages, reply_to: [hpc-results]}
templates: [pages]
application:
  url: https://app.example.org
  login: /api/auth/token/
  credentials: credentials/application.yaml
progress: progress
limits: {answer: 12MB, keep: 30d}
"""
TEMPLATE = """\
title: Separates pages
parameters:
  epochs: {type: integer, at_least: 1, at_most: 200, default: 15}
  rate: {type: number, at_least: 0, default: 0.01}
  mode: {type: choice, choices: [fast, 1e-3], default: fast}
  augment: {type: yes-no, default: yes}
  note: {type: text, longest: 20, default: ""}
inputs:
  book: {to: book.zip, most: 5MB, private_hosts: ["127.0.0.1:8080"]}
  extra: {to: more/extra.txt, required: no, hosts: [data.example.org], token: no}
ceilings: {cpus: 4, gpus: 1, memory: 8GB, disk: 20GB, time: 2h, total: 2d}
answer: {model: model.npz, log: "log.txt?"}
uploads: {hosts: [store.example.org]}
"""
PARAMS = """\
name: pages
command: python3 train.py --epochs {epochs} --rate {rate} --mode {mode} --augment {augment} --note={note}
code: [train.py]
resources: {cpus: 2, memory: 1GB, disk: 2GB, time: 30min}
outputs: [model.npz]
"""
CREDENTIALS = {
    "broker.yaml": "{user: me, password: s3cret}",
    "application.yaml": "{username: me, password: p}",
}


@dataclass(frozen=True)
class GatewayFiles:
    """The files of a gateway, which can be changed before they are read."""

    directory: GatewayDirectory

    def write(self, name: str, text: str) -> Path:
        """Write a file below the directory; credentials get mode 600."""
        path = self.directory.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if name.startswith("credentials/"):
            path.chmod(0o600)
        return path

    def settings(self) -> GatewaySettings:
        return read_settings(self.directory)

    def templates(self) -> Mapping[str, Template]:
        return read_templates(self.directory, self.settings())

    def template(self, name: str = "pages") -> Template:
        return self.templates()[name]

    def parsed(self, name: str = "pages") -> Parsed:
        return read_params(self.template(name))


def write_gateway(root: Path) -> GatewayFiles:
    """Write a valid gateway with one template."""
    files = GatewayFiles(GatewayDirectory(root))
    files.write("gateway.yaml", SETTINGS)
    for name, text in CREDENTIALS.items():
        files.write(f"credentials/{name}", text)
    files.write("templates/pages/template.yaml", TEMPLATE)
    files.write("templates/pages/params.yaml", PARAMS)
    files.write("templates/pages/train.py", "")
    return files

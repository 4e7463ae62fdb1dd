"""Reading `gateway.yaml`: validated settings, or all mistakes at once, each with its line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from outlast.gateway.configuration.host_names import base_url_mistake, name_mistake
from outlast.gateway.configuration.private_files import credentials_mistake, private_file_mistake
from outlast.gateway.configuration.settings_keys import GatewayKeys, QueueKeys
from outlast.gateway.gateway_directory import GatewayDirectory
from outlast.gateway.settings import (
    ApplicationSettings,
    BrokerSettings,
    GatewaySettings,
    QueueSettings,
    matches,
)
from outlast.spec import runs
from outlast.spec.document import Document, Path_
from outlast.spec.document import Mapping as MappingNode
from outlast.spec.document import Sequence as SequenceNode
from outlast.spec.mistakes import BadSpec, Mistake, did_you_mean, shorten
from outlast.spec.validate import validate
from outlast.spec.yamlfile import load

FILE = "gateway.yaml"
BROKER_CREDENTIALS = ("user", "password")
APPLICATION_CREDENTIALS = ("username", "password")
#: The limit of the broker's protocol for names, in bytes.
_LONGEST_NAME = 255
_TLS_PORT = 5671
#: Longer names of templates would make names of runs too long.
LONGEST_TEMPLATE = 60


def read_settings(directory: GatewayDirectory) -> GatewaySettings:
    """Return the settings in `gateway.yaml`. Raise BadSpec with all mistakes."""
    path = directory.settings
    if not os.path.lexists(path):
        hint = f"`outlast gateway init {directory.root}` writes one"
        raise BadSpec([Mistake(FILE, None, None, f"not found in {directory.root}", hint)])
    reader = _SettingsReader(directory, load(path, FILE))
    settings = reader.settings()
    if reader.mistakes:
        raise BadSpec(sorted(dict.fromkeys(reader.mistakes), key=lambda one: one.line or 0))
    return settings


class _SettingsReader:
    """Reads one file and collects its mistakes."""

    def __init__(self, directory: GatewayDirectory, document: Document) -> None:
        self.directory = directory
        self.document = document
        self.keys, mistakes = validate(GatewayKeys, document)
        self.mistakes = [*document.mistakes, *mistakes]

    def settings(self) -> GatewaySettings:
        templates = self._templates()
        queues = self._queues(templates)
        limits, metrics = self.keys.limits, self.keys.metrics
        if self.document.find(("metrics",)) is not None:
            self._metrics()
        self._progress()
        return GatewaySettings(
            broker=self._broker(),
            queues=queues,
            templates=templates,
            application=self._application(),
            progress_exchange=self.keys.progress,
            largest_answer=limits.answer,
            keep=limits.keep,
            metrics_port=metrics.port if "port" in metrics.model_fields_set else 0,
            metrics_token=self._path(metrics.token),
        )

    def _mistake(self, path: Path_, text: str, hint: str = "", *, of_key: bool = False) -> None:
        self.mistakes.append(self.document.mistake(path, text, hint, of_key=of_key))

    def _given(self, *path: str | int) -> bool:
        return self.document.find(path) is not None

    def _path(self, text: str) -> Path | None:
        """Return a path relative to the file; None if there is none."""
        return self.directory.root / Path(text).expanduser() if text else None

    def _certificates(self, path: Path_, text: str) -> Path | None:
        found = self._path(text)
        if found is not None and not found.is_file():
            self._mistake(path, f"{found} is not a file", "write the path of a PEM file with certificates")
        return found

    def _credentials(self, path: Path_, text: str, keys: Sequence[str]) -> Path | None:
        found = self._path(text)
        if found is not None:
            wrong, hint = credentials_mistake(found, keys)
            if wrong:
                self._mistake(path, wrong, hint)
        return found

    def _broker(self) -> BrokerSettings:
        keys = self.keys.broker
        given = keys.model_fields_set
        if "host" in given:
            text, hint = name_mistake(keys.host)
            if text:
                self._mistake(("broker", "host"), text, hint)
        if keys.tls == "no" and "ca_file" in given:
            self._mistake(("broker", "ca_file"), "has no effect without TLS", "add tls: yes")
        if not self._given("broker", "credentials"):
            hint = "write credentials: and the path of a file of mode 600 with user: and password:"
            self._mistake(("broker",) if self._given("broker") else (), "broker.credentials is missing", hint)
        return BrokerSettings(
            host=keys.host,
            port=keys.port if keys.tls == "no" or "port" in given else _TLS_PORT,
            virtual_host=keys.virtual_host,
            tls=keys.tls == "yes",
            ca_file=self._certificates(("broker", "ca_file"), keys.ca_file),
            credentials=self._credentials(("broker", "credentials"), keys.credentials, BROKER_CREDENTIALS),
            heartbeat=round(keys.heartbeat),
            connect_timeout=keys.connect_timeout,
            prefetch=keys.prefetch,
        )

    def _application(self) -> ApplicationSettings:
        keys = self.keys.application
        given = keys.model_fields_set
        if "url" in given:
            text, hint = base_url_mistake(keys.url)
            if text:
                self._mistake(("application", "url"), text, hint)
        elif given:
            self._mistake(("application",), "url is missing", "write it like https://app.example.org")
        if "login" in given and not keys.login.startswith("/"):
            self._mistake(
                ("application", "login"), "is not a path", "write it like /api/auth/token/; it follows url"
            )
        if "login" in given and not self._given("application", "credentials"):
            hint = "write credentials: and the path of a file of mode 600 with username: and password:"
            self._mistake(("application",), "credentials is missing, which login needs", hint)
        return ApplicationSettings(
            url=keys.url.rstrip("/"),
            login=keys.login,
            credentials=self._credentials(
                ("application", "credentials"), keys.credentials, APPLICATION_CREDENTIALS
            ),
            scheme=keys.scheme,
            ca_file=self._certificates(("application", "ca_file"), keys.ca_file),
        )

    def _templates(self) -> tuple[str, ...]:
        if not self._given("templates"):
            self._mistake((), "templates: is missing", "write templates: [pages], names below templates/")
        names = [name for name in self.keys.templates if name]
        for index, name in enumerate(self.keys.templates):
            wrong, _, hint = runs.name_mistake(name).partition("; ") if name else ("", "", "")
            if not wrong and len(name) > LONGEST_TEMPLATE:
                wrong = f"is {len(name)} characters long; the limit is {LONGEST_TEMPLATE}"
            elif not wrong and name in names[:index]:
                wrong, hint = f"{name} is listed twice", "remove one of them"
            if wrong:
                self._mistake(self._item(("templates",), index), wrong, hint)
        return tuple(dict.fromkeys(names))

    def _item(self, path: Path_, index: int) -> Path_:
        """Return the path of an item of a list; of the value itself if it is a single text."""
        return (*path, index) if isinstance(self.document.find(path), SequenceNode) else path

    def _queues(self, templates: Sequence[str]) -> tuple[QueueSettings, ...]:
        node = self.document.find(("queues",))
        example = "write - {name: train, reply_to: [results]}"
        if not isinstance(node, SequenceNode):
            text = "queues: is missing" if node is None else "queues: must be a list"
            self._mistake((), text, example)
            return ()
        if not node.items:
            self._mistake(("queues",), "is an empty list", example)
        found = [self._queue(index, templates) for index in range(len(node.items))]
        self._collisions(found)
        return tuple(found)

    def _queue(self, index: int, templates: Sequence[str]) -> QueueSettings:
        at: Path_ = ("queues", index)
        keys, mistakes = validate(QueueKeys, self.document, at)
        self.mistakes += mistakes
        if isinstance(self.document.find(at), MappingNode):
            if not self._given(*at, "name"):
                self._mistake(at, "name is missing", "write the name of the queue")
            if keys.dialect == "rodan" and not self._given(*at, "template"):
                self._mistake(at, "template is missing", "Rodan's requests name none: write template:")
        if keys.template and keys.template not in templates:
            hint = did_you_mean(keys.template, templates) or "list it under templates:"
            self._mistake((*at, "template"), f'"{shorten(keys.template)}" is not a template', hint)
        for key, names in {"name": [keys.name], "dead_letters": [keys.dead_letters]}.items():
            self._queue_names((*at, key), names)
        self._queue_names((*at, "reply_to"), keys.reply_to)
        for number, name in enumerate(keys.reply_to):
            if "*" in name[:-1] or name == "*":
                hint = "write the name of a queue, or the beginning of names and *, such as results.*"
                self._mistake(self._item((*at, "reply_to"), number), "a * may only be at the end", hint)
        return QueueSettings(
            name=keys.name,
            dialect=keys.dialect,
            template=keys.template,
            reply_to=tuple(name for name in keys.reply_to if name),
            dead_letters=keys.dead_letters,
            declare=keys.declare == "yes",
            users=tuple(user for user in keys.users if user),
        )

    def _queue_names(self, path: Path_, names: Sequence[str]) -> None:
        for index, name in enumerate(names):
            if name.startswith("amq."):
                self._mistake(self._item(path, index), "names that begin with amq. are the broker's own")
            elif len(name.encode("utf-8", "replace")) > _LONGEST_NAME:
                self._mistake(self._item(path, index), f"is longer than {_LONGEST_NAME} bytes")

    def _collisions(self, queues: Sequence[QueueSettings]) -> None:
        """Report queues that are read twice, and answers that would be read as requests."""
        taken: dict[str, Path_] = {}
        for index, queue in enumerate(queues):
            for key in ("name", "dead_letters"):
                name, path = getattr(queue, key), ("queues", index, key)
                if name in taken:
                    line = self.document.line(taken[name])
                    self._mistake(
                        path, f"{shorten(name)} is also in line {line}", "give them different names"
                    )
                elif name:
                    taken[name] = path
        for index, queue in enumerate(queues):
            for number, pattern in enumerate(queue.reply_to):
                read = next((name for name in taken if matches(pattern, name)), None)
                if read is not None:
                    text = f"answers would go to {shorten(read)}, which is read for requests"
                    self._mistake(
                        self._item(("queues", index, "reply_to"), number), text, "use another queue"
                    )

    def _progress(self) -> None:
        name = self.keys.progress
        if len(name.encode("utf-8", "replace")) > _LONGEST_NAME:
            self._mistake(("progress",), f"is longer than {_LONGEST_NAME} bytes")
        if name.startswith("amq.") and name != "amq.topic":
            self._mistake(("progress",), "is not a topic exchange of yours", "amq.topic is the broker's own")

    def _metrics(self) -> None:
        keys = self.keys.metrics
        for key, other in (("port", "token"), ("token", "port")):
            if self._given("metrics", key) and not self._given("metrics", other):
                text, hint = f"{other} is missing", "others on this machine could read a port without a token"
                self._mistake(("metrics",), text, hint if other == "token" else "")
        path = self._path(keys.token)
        wrong, hint = private_file_mistake(path) if path is not None else ("", "")
        if wrong:
            self._mistake(("metrics", "token"), wrong, hint)

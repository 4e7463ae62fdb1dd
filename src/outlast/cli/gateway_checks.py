"""Checks of a gateway, for `outlast gateway check`: everything that would fail only when a request comes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outlast.errors import OutlastError
from outlast.filesystem import describe_error
from outlast.gateway.gateway_directory import GatewayDirectory
from outlast.text import counted
from outlast.units import show_size

if TYPE_CHECKING:
    from outlast.gateway.settings import GatewaySettings, Template
    from outlast.spec import Mistake, Parsed

OK, WARNING, ERROR = "ok", "warning", "error"
#: Free bytes below which the disk is a matter of days, and below which no answer may fit.
LITTLE_DISK, NO_DISK = 5 * 10**9, 500 * 10**6


@dataclass(frozen=True)
class CheckedItem:
    """One thing that was checked. `subject` is a group of the table."""

    level: str
    subject: str
    text: str
    advice: str = ""


class GatewayChecks:
    """The checks of one gateway, in the order in which they are shown."""

    def __init__(self, gateway: GatewayDirectory) -> None:
        self._gateway = gateway

    def run(self) -> Iterator[CheckedItem]:
        """Yield the results. What cannot be checked because of an error is left out."""
        from outlast.gateway.configuration.settings_file import read_settings
        from outlast.spec import BadSpec

        yield from self._disk()
        yield from self._modes()
        try:
            settings = read_settings(self._gateway)
        except BadSpec as bad:
            yield from _of_mistakes("gateway.yaml", bad.mistakes)
            return
        queues = counted(len(settings.queues), "queue")
        templates = counted(len(settings.templates), "template")
        yield CheckedItem(OK, "gateway.yaml", "valid; %s, %s" % (queues, templates))
        yield from self._broker(settings)
        yield from self._application(settings)
        for name in settings.templates:
            yield from self._template(name, settings)

    def _disk(self) -> Iterator[CheckedItem]:
        root = self._gateway.root
        try:
            free = shutil.disk_usage(root).free
        except OSError as error:
            yield CheckedItem(ERROR, "disk", describe_error(error))
            return
        text = "%s free in %s" % (show_size(free), root)
        if free < LITTLE_DISK:
            level = ERROR if free < NO_DISK else WARNING
            advice = "requests, results and answers are kept there; make room or move the gateway"
            yield CheckedItem(level, "disk", text, advice)
        else:
            yield CheckedItem(OK, "disk", text)

    def _modes(self) -> Iterator[CheckedItem]:
        """Check the directories of passwords and tokens; their files are checked with the settings."""
        for place in (self._gateway.credentials, self._gateway.tokens):
            if not place.is_dir():
                continue
            mode = place.stat().st_mode & 0o777
            if mode & 0o077:
                text = "%s can be entered by others (mode %03o)" % (place, mode)
                yield CheckedItem(ERROR, "credentials", text, "type `chmod 700 %s`" % place)
            else:
                yield CheckedItem(OK, "credentials", "%s is private" % place)

    def _broker(self, settings: GatewaySettings) -> Iterator[CheckedItem]:
        from outlast.cli.gateway_common import require_client_library

        try:
            require_client_library()
            from outlast.gateway.broker.checks import check_broker

            findings = check_broker(settings.broker, settings.queues, settings.progress_exchange)
        except OutlastError as error:
            yield CheckedItem(ERROR, "broker", str(error))
            return
        yield from (CheckedItem(one.level.value, one.subject, one.text, one.advice) for one in findings)

    def _application(self, settings: GatewaySettings) -> Iterator[CheckedItem]:
        from outlast.gateway.web_application.login import LoginError, fetch_token
        from outlast.gateway.web_application.web_request import WebTimeouts

        application = settings.application
        if not application.url:
            yield CheckedItem(
                OK, "application", "none: inputs have addresses of their own, fetched without a token"
            )
        elif not application.login:
            yield CheckedItem(OK, "application", "%s, without a log-in" % application.url)
        else:
            try:
                fetch_token(application, WebTimeouts())
            except (LoginError, OutlastError) as error:
                advice = "inputs cannot be fetched; correct url, login or the credentials under application:"
                yield CheckedItem(ERROR, "application", str(error), advice)
            else:
                yield CheckedItem(OK, "application", "%s accepts the log-in" % application.url)

    def _template(self, name: str, settings: GatewaySettings) -> Iterator[CheckedItem]:
        from outlast.gateway.configuration.template_file import read_params, read_template
        from outlast.spec import BadSpec

        subject = "template %s" % name
        try:
            template = read_template(self._gateway.template(name), name, settings)
            parsed = read_params(template)
        except BadSpec as bad:
            yield from _of_mistakes(subject, bad.mistakes)
            return
        found = [
            *_check_cluster(subject, template, parsed),
            *_check_supervision(subject, self._gateway, name),
        ]
        yield CheckedItem(OK, subject, "valid; on cluster %s" % parsed.cluster.name)
        yield from found


def _of_mistakes(subject: str, mistakes: Sequence[Mistake], level: str = ERROR) -> Iterator[CheckedItem]:
    for mistake in mistakes:
        place = ":".join(str(part) for part in (mistake.file, mistake.line) if part is not None)
        text = mistake.text if place == subject else "%s: %s" % (place, mistake.text)
        yield CheckedItem(level, subject, text, mistake.hint)


def _check_cluster(subject: str, template: Template, parsed: Parsed) -> Iterator[CheckedItem]:
    """Check the template as `outlast check` checks an experiment: queue, time limit, hosts, what it saves."""
    from outlast.cli.commands.check import check_with_scheduler

    findings, warnings = check_with_scheduler(parsed, template.directory)
    yield from _of_mistakes(subject, findings.mistakes)
    yield from _of_mistakes(subject, (*parsed.warnings, *findings.warnings, *warnings), WARNING)


def _check_supervision(subject: str, gateway: GatewayDirectory, name: str) -> Iterator[CheckedItem]:
    """Warn if another process than the gateway supervises the template's experiment."""
    from outlast.exchange.experiment import Experiment
    from outlast.journal.journal import Journal
    from outlast.journal.lease import describe, living_holder
    from outlast.journal.sqlite_file import is_blank

    path = Experiment(gateway.experiment(name)).journal
    if is_blank(path):
        return
    journal = Journal(path)
    try:
        holder = living_holder(journal)
    finally:
        journal.close()
    if holder and not str(holder["purpose"]).startswith("gateway"):
        advice = "stop it: the gateway supervises its experiments itself"
        yield CheckedItem(WARNING, subject, "%s: %s" % (path.parent, describe(holder)), advice)

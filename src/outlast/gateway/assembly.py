"""Puts the parts of a gateway together from its directory."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from outlast.errors import NotWritable
from outlast.gateway.answer_limit import AnswerLimit
from outlast.gateway.answering import Answering
from outlast.gateway.answers.deliver import ResultDelivery
from outlast.gateway.broker.link import BrokerLink
from outlast.gateway.configuration.private_files import make_private_directory
from outlast.gateway.configuration.settings_file import read_settings
from outlast.gateway.configuration.template_file import read_params, read_templates
from outlast.gateway.gateway_directory import GatewayDirectory
from outlast.gateway.housekeeping import Housekeeping
from outlast.gateway.intake import Intake
from outlast.gateway.monitoring.audit import Audit, AuditBuffer, Listener
from outlast.gateway.planning.planner import Planner
from outlast.gateway.progress import Progress
from outlast.gateway.record.record import Record
from outlast.gateway.request_admission import Admission
from outlast.gateway.sending import Sending
from outlast.gateway.service import Service
from outlast.gateway.settings import GatewaySettings, QueueSettings, Template
from outlast.gateway.template_runs import TemplateRuns
from outlast.gateway.web_application.application import Application
from outlast.gateway.web_application.token_keeper import TokenKeeper

#: After a crash, messages are taken one by one until this many have been interpreted.
CAREFUL_MESSAGES = 20


@dataclass(frozen=True)
class Gateway:
    """The parts of a gateway that is running."""

    directory: GatewayDirectory
    settings: GatewaySettings
    templates: Mapping[str, Template]
    record: Record
    link: BrokerLink
    service: Service
    runs: Mapping[str, TemplateRuns]
    audit: AuditBuffer

    def close(self) -> None:
        """Close what was opened; the link is stopped before."""
        for runs in self.runs.values():
            runs.close()
        self.audit.close()
        self.record.close()


def assemble(
    directory: GatewayDirectory,
    *,
    prefetch: int | None = None,
    listener: Listener = lambda event, facts: None,
) -> Gateway:
    """Read the settings and templates and return a gateway that is not connected yet. Raise OutlastError.

    `listener` is called with each decision, before it is committed.
    """
    settings = read_settings(directory)
    make_private_directory(directory.root)
    templates = read_templates(directory, settings)
    parsed = {name: read_params(template) for name, template in templates.items()}
    record = Record(directory.record, create=True)
    for place in (directory.answers, directory.experiments, directory.tokens):
        place.mkdir(mode=0o700, exist_ok=True)
        make_private_directory(place)
    audit = AuditBuffer(Audit(directory.audit), listener=listener)
    link = BrokerLink(
        settings.broker, settings.queues, progress_exchange=settings.progress_exchange, prefetch=prefetch
    )
    application, application_lock = Application(settings.application, directory), threading.Lock()
    token = TokenKeeper(application, application_lock)
    planner = Planner(settings, parsed, application)
    runs = {
        name: TemplateRuns(directory, template, parsed[name], record, planner, audit, token)
        for name, template in templates.items()
    }
    for one in runs.values():
        with suppress(NotWritable):  # of one template; it is tried again when a run is submitted
            one.prepare()
    limit = AnswerLimit(settings.largest_answer, record, link)
    deliver = ResultDelivery(
        directory, templates, settings.application, application, application_lock, limit.most, time.time
    )
    answering = Answering(record, deliver, audit, keep=settings.keep, on_ready=link.wake)
    sending = Sending(directory, record, link, audit, limit, keep=settings.keep)
    intake = Intake(record, _queues(settings), Admission(record, templates, planner), audit)
    progress = Progress(settings.progress_exchange, link)
    housekeeping = Housekeeping(directory, record, settings.keep)
    service = Service(record, link, intake, runs, answering, sending, progress, audit, token, housekeeping)
    return Gateway(directory, settings, templates, record, link, service, runs, audit)


def _queues(settings: GatewaySettings) -> dict[str, QueueSettings]:
    """Return the settings of each queue that is consumed; those of dead letters are their queue's."""
    found = {queue.name: queue for queue in settings.queues}
    for queue in settings.queues:
        if queue.dead_letters:
            found.setdefault(queue.dead_letters, queue)
    return found

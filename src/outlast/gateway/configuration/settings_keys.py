"""The schema of `gateway.yaml`: keys, types and bounds; defaults are those of `outlast.gateway.settings`."""

from __future__ import annotations

from typing import Any, Literal

from outlast.gateway.settings import (
    ApplicationSettings,
    BrokerSettings,
    GatewaySettings,
    QueueSettings,
)
from outlast.spec.schema import NO_LINES, Count, Duration, Line, OneOrMore, Port, Size, Strict, YesOrNo


class BrokerKeys(Strict):
    host: Line = BrokerSettings.host
    port: Port = BrokerSettings.port
    virtual_host: Line = BrokerSettings.virtual_host
    tls: YesOrNo = "no"
    ca_file: Line = ""
    credentials: Line = ""
    heartbeat: Duration = float(BrokerSettings.heartbeat)
    connect_timeout: Duration = BrokerSettings.connect_timeout
    prefetch: Count = BrokerSettings.prefetch


class QueueKeys(Strict):
    name: Line = ""
    dialect: Literal["outlast", "rodan"] = "outlast"
    template: Line = QueueSettings.template
    reply_to: OneOrMore = NO_LINES
    dead_letters: Line = QueueSettings.dead_letters
    declare: YesOrNo = "yes"
    users: OneOrMore = NO_LINES


class ApplicationKeys(Strict):
    url: Line = ApplicationSettings.url
    login: Line = ApplicationSettings.login
    credentials: Line = ""
    scheme: Literal["Token", "Bearer"] = "Token"
    ca_file: Line = ""


class AnswerLimitsKeys(Strict):
    answer: Size = GatewaySettings.largest_answer
    keep: Duration = GatewaySettings.keep


class MetricsKeys(Strict):
    port: Port = 1
    token: Line = ""


class GatewayKeys(Strict):
    broker: BrokerKeys = BrokerKeys()
    #: Each is read with `QueueKeys`.
    queues: Any = None
    templates: OneOrMore = NO_LINES
    application: ApplicationKeys = ApplicationKeys()
    progress: Line = GatewaySettings.progress_exchange
    limits: AnswerLimitsKeys = AnswerLimitsKeys()
    metrics: MetricsKeys = MetricsKeys()

"""The settings of a gateway (gateway.yaml) and its templates, validated. `read_settings` reads the files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class BrokerSettings:
    """Where the broker is and how to reach it. Passwords are read from `credentials` when connecting."""

    host: str = "localhost"
    port: int = 5672
    virtual_host: str = "/"
    tls: bool = False
    #: A file with the certificates of the authorities that are trusted; None: the system's.
    ca_file: Path | None = None
    #: A YAML file of mode 600 with `user` and `password`.
    credentials: Path | None = None
    #: Seconds.
    heartbeat: int = 30
    connect_timeout: float = 10.0
    #: Messages taken before the first is acknowledged.
    prefetch: int = 100


@dataclass(frozen=True)
class QueueSettings:
    """A queue of requests."""

    name: str
    #: "outlast" or "rodan".
    dialect: str = "outlast"
    #: The template of all its requests, for dialects that name none.
    template: str = ""
    #: Queues to which replies may go; `*` at the end matches every ending. Empty: to none.
    reply_to: tuple[str, ...] = ()
    #: The queue in which the broker puts messages that expired or were delivered too often; empty: none.
    dead_letters: str = ""
    #: Declare it, durable, if it does not exist. Rodan's are declared as Rodan does.
    declare: bool = True
    #: Users who may send to it; empty: everyone whom the broker lets in, known or not.
    users: tuple[str, ...] = ()


@dataclass(frozen=True)
class ApplicationSettings:
    """The web application that sends requests: inputs are fetched from there."""

    #: Such as `https://app.example.org`; input paths are below it. Empty: inputs have absolute URLs.
    url: str = ""
    #: The path that returns a token for a log-in, such as `/api/auth/token/`; empty: no log-in.
    login: str = ""
    #: A YAML file of mode 600 with `username` and `password`, and `email` if that is needed.
    credentials: Path | None = None
    #: The word before the token in `Authorization`.
    scheme: str = "Token"
    ca_file: Path | None = None


@dataclass(frozen=True)
class GatewaySettings:
    """A validated `gateway.yaml`."""

    broker: BrokerSettings
    queues: tuple[QueueSettings, ...]
    templates: tuple[str, ...]
    application: ApplicationSettings = field(default_factory=ApplicationSettings)
    #: The topic exchange for progress; empty: no progress.
    progress_exchange: str = ""
    #: The most bytes of an encoded answer that is sent by value; the broker's limit may be less.
    largest_answer: int = 12 * 10**6
    #: Seconds for which answers are tried and results are kept.
    keep: float = 30 * 86400.0
    #: The loopback port and the token's file for metrics and health; 0 and None: only the unix socket.
    metrics_port: int = 0
    metrics_token: Path | None = None


@dataclass(frozen=True)
class Parameter:
    """A value that a request may set."""

    #: "integer", "number", "text", "choice" or "yes-no".
    type: str
    at_least: float | None = None
    at_most: float | None = None
    choices: tuple[str, ...] = ()
    #: For text: the most characters, and what the whole text must match.
    longest: int = 200
    pattern: str = ""
    default: str | int | float | bool | None = None
    #: Its value is left out of logs and replies.
    secret: bool = False


@dataclass(frozen=True)
class InputRule:
    """A file that a request may name."""

    #: Relative to $OUTLAST_DATA_DIR.
    to: str
    required: bool = True
    #: The most bytes.
    most: int = 2 * 10**9
    unpack: str = "no"
    #: Hosts (with port, if it is not the default) that it may be fetched from; redirects too.
    hosts: tuple[str, ...] = ()
    #: Of these hosts, those that may have a loopback or private address.
    private_hosts: tuple[str, ...] = ()
    #: Fetch it with the application's token.
    token: bool = True


@dataclass(frozen=True)
class Ceilings:
    """The most that a request of this template may use; bytes and seconds."""

    cpus: int = 1
    gpus: int = 0
    memory: int = 8 * 10**9
    disk: int = 20 * 10**9
    #: Of one attempt.
    time: float = 86400.0
    #: Of the whole run, from the acceptance of the request.
    total: float = 14 * 86400.0
    #: In a row, in which the inputs cannot be fetched for a reason that may pass.
    outage: float = 6 * 3600.0


@dataclass(frozen=True)
class Quota:
    """How many requests of a template are accepted."""

    #: Runs at the same time; more wait in the record.
    running: int = 20
    #: Accepted and not ended: of all users, and of each.
    waiting: int = 20_000
    waiting_per_user: int = 1000
    per_day_per_user: int = 10_000


@dataclass(frozen=True)
class Template:
    """What a site allows requests to start: a params.yaml and what a request may choose of it."""

    name: str
    directory: Path
    title: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    inputs: Mapping[str, InputRule] = field(default_factory=dict)
    ceilings: Ceilings = field(default_factory=Ceilings)
    quota: Quota = field(default_factory=Quota)
    #: Users (checked by the broker) who may use it; empty: everyone.
    users: tuple[str, ...] = ()
    #: The files of an answer: name in the answer → path in the results. A `?` at the end of the path: it may
    #: be missing. Empty: every file of the results, by its path.
    answer: Mapping[str, str] = field(default_factory=dict)
    #: Hosts to which results may be uploaded.
    upload_hosts: tuple[str, ...] = ()
    #: Below the application's URL: results are put with its token there, and nowhere else. Empty: never.
    upload_path: str = ""
    #: A directory below which results may be put.
    upload_directory: Path | None = None


def matches(pattern: str, name: str) -> bool:
    """Return True if a pattern of `reply_to`, which may end in `*`, matches the name of a queue."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern

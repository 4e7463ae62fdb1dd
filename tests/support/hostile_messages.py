"""Hostile messages, each with the answer that is expected of a gateway, and good ones to put between them.

The same table serves tests of the reading alone and of a whole gateway on a real broker. `properties` are
arguments of `pika.BasicProperties`; texts are bytes, because they may be no UTF-8.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

SERVED = "served"
QUARANTINED = "quarantined"

_PAGE = "/uploads/projects/%s/resources/%s/original_file"


def refused(code: str) -> str:
    return f"refused:{code}"


INVALID = refused("invalid_request")


@dataclass(frozen=True)
class Site:
    """The gateway that gets the messages: its queues, and a request that it serves."""

    queue: str = "requests"
    replies: str = "replies"
    rodan_queue: str = "hpc-jobs"
    rodan_replies: str = "hpc-results"
    template: str = "pages"
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"epochs": 2})
    #: The name of a parameter that is a text.
    text_parameter: str = "title"
    inputs: Mapping[str, Any] = field(default_factory=lambda: {"pages": "https://app.example.org/book.zip"})
    rodan_inputs: Mapping[str, str] = field(
        default_factory=lambda: {
            name: _PAGE % ("0" * 32, f"{number:032x}")
            for number, name in enumerate(("Image", "Background", "Selected Regions", "rgba PNG - Layer 0"))
        }
    )
    rodan_settings: Mapping[str, Any] = field(
        default_factory=lambda: {"CPUs": 1, "Maximum memory (MB)": 2048}
    )

    def request(self, **changes: Any) -> dict[str, Any]:
        """Return a good request of our own format, with keys added or replaced."""
        good = {"outlast": 1, "kind": "train", "template": self.template}
        return {**good, "parameters": dict(self.parameters), "inputs": dict(self.inputs), **changes}

    def rodan(self, **changes: Any) -> dict[str, Any]:
        """Return a good request of Rodan's, with settings added or replaced."""
        return {"inputs": dict(self.rodan_inputs), "settings": {**self.rodan_settings, **changes}}


@dataclass(frozen=True)
class Message:
    """A message and what a whole gateway makes of it."""

    name: str
    body: bytes
    #: `served`, `quarantined`, or `refused:` and a code.
    expected: str
    properties: Mapping[str, Any] = field(default_factory=dict)
    dialect: str = "outlast"
    #: What reading alone makes of it, where templates, ids or the time decide later.
    read_alone: str = ""
    #: What the failure names.
    names: str = ""
    #: The message that must have been sent, and recorded, before.
    after: str = ""
    #: The broker's reason for dead-lettering it. Only for tests without a broker.
    death: str = ""
    #: False if a broker does not accept it, or only from another user.
    sendable: bool = True

    @property
    def read_as(self) -> str:
        return self.read_alone or self.expected


def good_message(site: Site, number: int, dialect: str = "outlast") -> Message:
    """Return a message that is served; `number` makes its id."""
    body = site.rodan() if dialect == "rodan" else site.request()
    return _complete(site, Message(f"good-{number}", _json(body), SERVED, {}, dialect))


def hostile_messages(site: Site) -> list[Message]:
    """Return the table. Names begin with the number of the kind of attack."""
    rows = [
        *_bodies(site),
        *_numbers(site),
        *_texts(site),
        *_keys(site),
        *_identities(site),
        *_envelopes(site),
        *_rodan(site),
    ]
    return [_complete(site, row) for row in rows]


def _complete(site: Site, row: Message) -> Message:
    """Add the properties that all requests have, unless the row has its own; None removes one."""
    usual = {
        "correlation_id": row.name.encode(),
        "reply_to": (site.rodan_replies if row.dialect == "rodan" else site.replies).encode(),
    }
    properties = {key: value for key, value in {**usual, **row.properties}.items() if value is not None}
    return Message(**{**vars(row), "properties": properties})


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _with(value: Mapping[str, Any], written: bytes) -> bytes:
    """Return JSON with `written` in place of the value "@"."""
    body = _json(value)
    assert body.count(b'"@"') == 1
    return body.replace(b'"@"', written)


def _bodies(site: Site) -> Iterator[Message]:
    yield Message("1-empty", b"", INVALID)
    for value in (b"null", b"[]", b'"x"', b"7"):
        yield Message(f"2-{value.decode()}", value, INVALID, names="an object is expected")
    deep = 100_000
    yield Message("3-nested-lists", b"[" * deep + b"]" * deep, INVALID, names="too deeply")
    yield Message("3-open-lists", b"[" * deep, INVALID, names="too deeply")
    yield Message("3-nested-objects", b'{"a":' * 40_000 + b"1" + b"}" * 40_000, INVALID, names="too deeply")
    inside = _with(site.request(parameters={"epochs": "@"}), b"[" * deep + b"]" * deep)
    yield Message("3-nested-in-a-request", inside, INVALID, names="too deeply")
    yield Message("4-lists-of-16-MB", b"[" + b"[]," * 5_333_333, INVALID, names="bytes")
    yield Message(
        "4-lists-of-256-KiB", b"[" + b"[]," * 87_000 + b"[]]", INVALID, names="an object is expected"
    )
    good = json.dumps(site.request(comment="é"), ensure_ascii=False)
    yield Message("7-latin-1", good.encode("latin-1"), INVALID, names="UTF-8")
    good = json.dumps(site.request())
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32"):
        yield Message(f"7-{encoding}", good.encode(encoding), INVALID)
    yield Message("7-bom", good.encode("utf-8-sig"), SERVED)
    yield Message("7-two-boms", b"\xef\xbb\xbf" + good.encode("utf-8-sig"), INVALID)
    yield Message("7-overlong", good.encode().replace(b"train", b"\xc1\xb4rain"), INVALID)
    yield Message("7-trailing", good.encode() + b" {}", INVALID)


def _numbers(site: Site) -> Iterator[Message]:
    epochs = site.request(parameters={"epochs": "@"})
    long = {"5000-digits": b"9" * 5000, "1e400": b"1e400", "-1e400": b"-1e400", "20-digits": b"1" * 20}
    for name, written in {**long, "nan": b"NaN", "infinity": b"Infinity", "-infinity": b"-Infinity"}.items():
        yield Message(f"5-{name}", _with(epochs, written), INVALID, names="parameters.epochs")
    cpus = site.request(resources={"cpus": "@"})
    for name, written in _NO_COUNTS.items():
        yield Message(f"9-{name}", _with(cpus, written), INVALID)
    for time in ("0-25:61", "-1", "0", "0-06:00 --uid=0", "٢h", "1" * 100):
        yield Message(f"10-{time[:20]}", _json(site.request(resources={"time": time})), INVALID, names="time")
    for memory in ("16", "-16GB", "1e3GB", "٦GB", "16\N{KELVIN SIGN}B", "inf", 16, True, None):
        yield Message(f"10-memory-{memory!r}", _json(site.request(resources={"memory": memory})), INVALID)


#: What is no number of CPUs, as it is written in JSON.
_NO_COUNTS = {
    "true": b"true",
    "fraction": b"6.0",
    "text": b'"6"',
    "negative": b"-1",
    "2-63": str(2**63).encode(),
    "arabic": "٦".encode(),
    "arabic-text": '"٦"'.encode(),
    "null": b"null",
    "list": b"[6]",
}


def _texts(site: Site) -> Iterator[Message]:
    text = site.request(parameters={site.text_parameter: "@"})
    written = {
        "lone-surrogate": rb'"\ud800"',
        "swapped-surrogates": rb'"\udc00\ud800"',
        "encoded-surrogate": b'"\xed\xa0\x80"',
        "nul": rb'"a\u0000b"',
        "escape": rb'"\u001b]0;title\u0007\u001b[31m"',
        "raw-escape": b'"\x1b[31m"',
        "c1": rb'"\u009b31m"',
        "newline": rb'"a\nb"',
        "line-separator": rb'"a\u2028b"',
    }
    for name, value in written.items():
        yield Message(f"8-{name}", _with(text, value), INVALID)
    key = _json(site.request(parameters={"@": 1})).replace(b'"@"', rb'"\u001b[2J"')
    yield Message("8-escape-in-a-key", key, INVALID)
    names = {
        "unknown": "no-such-template",
        "10-KB": "x" * 10_000,
        "up": "../x",
        "absolute": "/etc",
        "dots": "..",
    }
    for name, template in {**names, "empty-looking": "-", "option": "--help"}.items():
        read_alone = SERVED if name == "unknown" else ""
        body = _json(site.request(template=template))
        yield Message(f"12-{name}", body, refused("unknown_template"), read_alone=read_alone)


def _keys(site: Site) -> Iterator[Message]:
    twice = _json(site.request()).replace(b'"kind"', b'"template": "x", "kind"')
    yield Message("6-key-twice", twice, INVALID, names="template: the key is given twice")
    inner = _with(site.request(parameters="@"), b'{"epochs": 1, "epochs": 2}')
    yield Message("6-inner-key-twice", inner, INVALID, names="parameters.epochs: the key is given twice")
    refusal = "not accepted from requests"
    for key in ("command", "env", "image", "partition", "sbatch_options", "container", "code", "outputs"):
        names = refusal if key != "sbatch_options" else "sbatch_options"
        yield Message(f"13-{key}", _json(site.request(**{key: "x"})), INVALID, names=names)
    resources = _json(site.request(resources={"cpus": 1, "native": "-P root"}))
    yield Message("13-resources", resources, INVALID, names="resources.native: not accepted from requests")
    yield Message("13-unknown", _json(site.request(colour="blue")), INVALID, names="colour")
    yield Message("14-version-99", _json(site.request(outlast=99)), refused("unsupported_version"))
    for version in (True, 1.0, "1", None, [1]):
        yield Message(f"14-version-{version}", _json(site.request(outlast=version)), INVALID, names="outlast")
    without = {key: value for key, value in site.request().items() if key != "outlast"}
    yield Message("14-no-version", _json(without), INVALID, names="outlast")
    yield Message("14-rodan-shape", _json(site.rodan()), INVALID, names="outlast")
    for kind in ("run", "", 1, None):
        yield Message(f"14-kind-{kind}", _json(site.request(kind=kind)), INVALID, names="kind")
    past = _json(site.request(deadline="2001-09-09T01:46:40Z"))
    yield Message("29-deadline-over", past, refused("expired"))
    for deadline in ("tomorrow", 1, "2026-02-30T00:00:00Z", "2026-11-19 12:00", "٢026-11-19T12:00:00Z"):
        yield Message(f"29-{deadline}", _json(site.request(deadline=deadline)), INVALID, names="deadline")
    for kind in ("cancel", "status"):
        about = {"outlast": 1, "kind": kind}
        unknown = _json({**about, "id": "no such request"})
        yield Message(f"32-{kind}-unknown", unknown, INVALID, read_alone=SERVED)
        yield Message(f"32-{kind}-no-id", _json(about), INVALID, names="id")
        yield Message(f"32-{kind}-long-id", _json({**about, "id": "é" * 200}), INVALID, names="id")
        yield Message(f"32-{kind}-number", _json({**about, "id": 7}), INVALID, names="id")
        yield Message(f"32-{kind}-bad-base64", _json({**about, "id_base64": "é"}), INVALID, names="id_base64")


def _identities(site: Site) -> Iterator[Message]:
    body = _json(site.request())
    other = _json(site.request(resources={"cpus": 1}))
    twice = {"correlation_id": b"16-twice", "message_id": b"16-twice"}
    yield Message("16-first", body, SERVED, twice)
    yield Message("16-again", body, SERVED, twice, after="16-first")
    clash = {"correlation_id": b"17-clash", "message_id": b"17-clash"}
    yield Message("17-first", body, SERVED, clash)
    duplicate = refused("duplicate_id")
    yield Message("17-other-body", other, duplicate, clash, read_alone=SERVED, after="17-first")
    yield Message("19-no-reply-to", body, SERVED, {"reply_to": None})
    yield Message("19-refused-without-reply-to", b"{}", INVALID, {"reply_to": None})
    targets = {
        "request-queue": site.queue.encode(),
        "amq": b"amq.rabbitmq.reply-to",
        "255-bytes": b"r" * 255,
        "not-listed": b"somebody-else",
        "not-utf-8": b"replies\xff",
        "newline": site.replies.encode() + b"\n",
        "star": b"*",
    }
    for name, target in targets.items():
        yield Message(f"20-{name}", body, QUARANTINED, {"reply_to": target})
        yield Message(f"20-{name}-invalid", b"[", QUARANTINED, {"reply_to": target})
    yield Message("23-no-id", body, SERVED, {"correlation_id": None})
    ids = {
        "not-utf-8": b"\xff\xfe id",
        "spaces": b" a  b ",
        "star": b"request.*.#",
        "quotes": b"'\"`$(id)`",
        "newline": b"a\nb\x1b[31m",
        "path": b"../../etc/passwd",
        "255-bytes": b"i" * 255,
    }
    for name, id_ in ids.items():
        yield Message(f"24-{name}", body, SERVED, {"correlation_id": id_})
    forbidden = refused("forbidden")
    yield Message("31-other-user", body, forbidden, {"user_id": b"stranger"}, sendable=False)


def _envelopes(site: Site) -> Iterator[Message]:
    """Yield messages that differ in their properties only."""
    body = _json(site.request())
    headers = {f"header-{number}": number for number in range(5000)}
    yield Message("27-5000-headers", body, SERVED, {"headers": headers})
    yield Message("26-timestamp", body, SERVED, {"timestamp": 2**64 - 1})
    for kind in (b"image/png", b"application/octet-stream", b"application/json; charset=utf-16", b"\xff"):
        name = f"28-{kind.decode('latin-1')}"
        yield Message(name, body, INVALID, {"content_type": kind}, names="content_type")
    batch = b"application/cloudevents-batch+json"
    yield Message("28-batch", b"[" + body + b"]", INVALID, {"content_type": batch}, names="content_type")
    for encoding in (b"gzip", b"deflate", b"base64"):
        properties = {"content_encoding": encoding}
        yield Message(f"28-{encoding.decode()}", body, INVALID, properties, names="content_encoding")
    yield Message("28-json", body, SERVED, {"content_type": b"Application/JSON; charset=UTF-8"})
    yield Message("28-plain", body, SERVED, {"content_encoding": b"utf-8"})
    envelope = {"content_type": b"application/cloudevents+json"}
    event = {"specversion": "1.0", "id": "1", "source": "/app", "type": "outlast.request"}
    yield Message("28-event", _json({**event, "data": site.request()}), SERVED, envelope)
    yield Message("28-event-without-data", _json(event), INVALID, envelope, names="data")
    yield Message("28-event-of-another-type", _json({**event, "type": "x"}), INVALID, envelope, names="type")
    later = _json({**event, "specversion": "2.0"})
    yield Message("28-event-of-version-2", later, refused("unsupported_version"), envelope)
    base64 = _json({**event, "data": site.request(), "data_base64": "e30="})
    yield Message("28-event-in-base64", base64, INVALID, envelope, names="data_base64: not accepted")
    bad = _json({**event, "data": site.request(command="id")})
    yield Message("28-event-with-command", bad, INVALID, envelope, names="data.command: not accepted")
    expired = refused("expired")
    yield Message("29-expiration-1-ms", body, expired, {"expiration": b"1"}, read_alone=SERVED)
    yield Message("29-dead", body, expired, death="expired", sendable=False)
    yield Message("29-dead-and-invalid", b"[", expired, death="expired", sendable=False)
    full = refused("site_unavailable")
    yield Message("29-no-room", body, full, death="maxlen", sendable=False)
    yield Message("29-delivered-too-often", body, QUARANTINED, death="delivery_limit", sendable=False)
    yield Message("29-rejected", body, QUARANTINED, death="rejected", sendable=False)
    yield Message("30-priority", body, SERVED, {"priority": 255})


def _rodan(site: Site) -> Iterator[Message]:
    """Yield messages in Rodan's format, for its queue."""
    for row in _rodan_rows(site):
        yield Message(**{**vars(row), "dialect": "rodan", "name": f"{row.name}-rodan"})


def _rodan_rows(site: Site) -> Iterator[Message]:
    good = _json(site.rodan())
    for name, written in {**_NO_COUNTS, "5000-digits": b"9" * 5000, "1e400": b"1e400", "nan": b"NaN"}.items():
        yield Message(f"9-{name}", _with(site.rodan(CPUs="@"), written), INVALID)
    for time in ("0-25:61", "-1", "0-00:00", "0-06:00 --uid=0", "٠-06:00", "6h", 6, None, ""):
        body = _json(site.rodan(**{"Maximum time (D-HH:MM)": time}))
        yield Message(f"10-{time}", body, INVALID, names="Maximum time (D-HH:MM)")
    body = _json(site.rodan(**{"Maximum time (D-HH:MM)": "9999-00:00"}))
    yield Message("10-27-years", body, refused("over_ceiling"))
    for email in (
        "a@b --wrap=id",
        "a@b.cd --wrap=id",
        "a@b.c\n",
        "a@b.c\n--uid=0",
        "-a@b.c",
        "a",
        "@",
        "a@b@c.d",
        7,
    ):
        body = _json(site.rodan(**{"Slurm Notification Email": email}))
        yield Message(f"11-{email!r}", body, INVALID, names="Slurm Notification Email")
    for key in ("command", "env", "image", "partition"):
        yield Message(f"13-{key}", _json({**site.rodan(), key: "x"}), INVALID, names="not accepted")
        yield Message(f"13-setting-{key}", _json(site.rodan(**{key: "x"})), INVALID, names="not accepted")
    yield Message("14-own-format", _json(site.request()), INVALID)
    yield Message("14-no-settings", _json({"inputs": dict(site.rodan_inputs)}), INVALID, names="settings")
    path = next(iter(site.rodan_inputs.values()))
    bare = {key: value for key, value in site.rodan_inputs.items() if "Layer" not in key}
    layers: dict[str, list[object]] = {
        "gap": [0, 2],
        "not-from-0": [1, 2],
        "11-layers": list(range(11)),
        "none": [],
        "leading-zero": [0, "01"],
        "arabic": [0, "١"],
        "negative": [0, -1],
        "5000-digits": [0, "9" * 5000],
    }
    for name, numbers in layers.items():
        inputs = {**bare, **{f"rgba PNG - Layer {number}": path for number in numbers}}
        yield Message(f"15-{name}", _json({**site.rodan(), "inputs": inputs}), INVALID, names="ayer")
    mixed = {**site.rodan_inputs, "Music Layer": path}
    yield Message("15-old-and-new", _json({**site.rodan(), "inputs": mixed}), INVALID, names="Music Layer")
    addresses = (
        "http://127.0.0.1/x",
        "//other/x",
        "/uploads/../admin",
        "x",
        "/",
        "/a?b",
        "/%2e%2e/a",
        "/a\\b",
    )
    for number, address in enumerate(addresses):
        inputs = {**site.rodan_inputs, "Image": address}
        body = _json({**site.rodan(), "inputs": inputs})
        yield Message(f"33-{number}", body, refused("input_refused"), names="inputs.Image")
    yield Message("20-request-queue", good, QUARANTINED, {"reply_to": site.rodan_queue.encode()})
    yield Message("23-no-correlation-id", good, QUARANTINED, {"correlation_id": None})
    yield Message("24-newline", good, SERVED, {"correlation_id": b"a\nb\xff"})
    yield Message("28-event", good, INVALID, {"content_type": b"application/cloudevents+json"})

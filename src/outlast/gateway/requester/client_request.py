"""What a client sends: requests in our own format, and the queue that their answers go to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outlast.errors import BadInput
from outlast.gateway.message_formats.encoding import id_members, routing_word
from outlast.gateway.message_formats.own import VERSION
from outlast.gateway.settings import Parameter, QueueSettings

_TRUE, _FALSE = ("true", "yes"), ("false", "no")


@dataclass(frozen=True)
class ClientRequest:
    """A message to a gateway: its id, its body, and where answers and progress come from."""

    id: bytes
    body: bytes
    #: The queue of requests.
    queue: str
    #: The queue for the answer; empty: none is asked for.
    reply_to: str = ""
    #: The answer's queue belongs to this client: it is created for it, and removed afterwards.
    own_reply_queue: bool = True
    #: The topic exchange for progress; empty: it is not followed.
    progress: str = ""


def training_body(
    template: str,
    *,
    parameters: Mapping[str, Any],
    inputs: Mapping[str, str],
    resources: Mapping[str, Any],
    deadline: str = "",
) -> bytes:
    """Return the body of a request to train."""
    body: dict[str, Any] = {"outlast": VERSION, "kind": "train", "template": template}
    for key, values in (("parameters", parameters), ("inputs", inputs), ("resources", resources)):
        if values:
            body[key] = dict(values)
    if deadline:
        body["deadline"] = deadline
    return json.dumps(body).encode()


def control_body(kind: str, id: bytes) -> bytes:
    """Return the body of a `cancel` or `status` request about the request with this id."""
    return json.dumps({"outlast": VERSION, "kind": kind, **id_members(id)}).encode()


def parse_value(name: str, text: str, parameter: Parameter | None) -> Any:
    """Return the JSON value of a parameter that was given as text. Raise BadInput.

    Its type is the template's. If that is not known here, what looks like a number, `true` or `false` is one,
    and text in double quotes is text.
    """
    if parameter is None:
        return _guess(text)
    try:
        match parameter.type:
            case "integer":
                return int(text)
            case "number":
                return float(text) if set(text) & set(".eE") else int(text)
            case "yes-no":
                return {**dict.fromkeys(_TRUE, True), **dict.fromkeys(_FALSE, False)}[text.lower()]
    except (ValueError, KeyError):
        wanted = {"integer": "a whole number", "number": "a number", "yes-no": "yes or no"}[parameter.type]
        raise BadInput("--parameter %s: %s is expected" % (name, wanted)) from None
    return text


def _guess(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, (bool, int, float, str)) else text


def split_pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Return `NAME=VALUE` texts as a mapping. Raise BadInput for other texts, and a name given twice."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise BadInput("%s %s: write it as NAME=VALUE" % (option, text))
        if name in found:
            raise BadInput("%s %s is given twice" % (option, name))
        found[name] = value
    return found


def choose_queue(queues: Sequence[QueueSettings], name: str) -> QueueSettings:
    """Return the queue of this name; for an empty one, the only one of our own format. Raise BadInput."""
    own = [queue for queue in queues if queue.dialect == "outlast"]
    names = ", ".join(queue.name for queue in own)
    if name:
        found = next((queue for queue in queues if queue.name == name), None)
        if found is None:
            raise BadInput(
                "gateway.yaml has no queue %s; it has %s" % (name, names or "none of our own format")
            )
        if found not in own:
            raise BadInput("queue %s takes requests in the format of %s, which this command does not send"
                           % (name, found.dialect))  # fmt: skip
        return found
    if len(own) != 1:
        raise BadInput(
            "gateway.yaml has several queues (%s); choose one with --queue NAME" % names
            if own
            else "gateway.yaml has no queue of the dialect `outlast`; add one under queues:"
        )
    return own[0]


def choose_reply_queue(queue: QueueSettings, name: str, id: bytes) -> tuple[str, bool]:
    """Return the queue for the answer, and whether it is made for it. Raise BadInput if no name is allowed.

    Its name follows from the id: a client that sends the same request again waits for the same answer.
    """
    if name:
        if not any(_allows(pattern, name) for pattern in queue.reply_to):
            raise BadInput(
                "queue %s sends no answers to %s; reply_to in gateway.yaml lists %s"
                % (queue.name, name, ", ".join(queue.reply_to) or "nothing")
            )
        return name, False
    pattern = next((one for one in queue.reply_to if one.endswith("*")), None)
    if pattern is None:
        raise BadInput(
            "queue %s sends answers to certain queues only; name one with --reply-to, or add `results.*` to "
            "its reply_to in gateway.yaml" % queue.name
        )
    beginning = pattern[:-1]
    dot = "" if beginning.endswith((".", "-", "_")) else "."
    return "%s%soutlast-%s" % (beginning, dot, routing_word(id)), True


def _allows(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern

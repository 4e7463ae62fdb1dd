"""Answers to bodies: failures, progress and states; results are in `result_encoding`.

Answers in our own format are described by `answer-1.json`. `facts` are further keys of an answer:
values for JSON, by name.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from typing import Any

from outlast.gateway.message_formats.clean_values import to_json
from outlast.gateway.message_formats.cloudevents import SOURCE, SPEC_VERSION
from outlast.gateway.message_formats.dialects import CLOUDEVENTS, JSON_TYPE, RODAN
from outlast.gateway.message_formats.own import VERSION
from outlast.gateway.requests import FailureCode, RequestFailure, RequestState

NO_FACTS: Mapping[str, Any] = {}
#: The state of a request that nobody has sent, in answers to questions about it.
UNKNOWN = "unknown"
#: The states that progress is reported for.
PROGRESS = ("queued", "started", "step", "raised", "ended")
#: The most characters of a failure's message.
LONGEST_MESSAGE = 4000
_RESERVED = frozenset(("outlast", "kind", "id", "id_base64", "files"))
_WORD = re.compile(rb"[A-Za-z0-9_-]{1,100}")


def encode_failure(
    dialect: str, id_: bytes, why: RequestFailure, facts: Mapping[str, Any] = NO_FACTS
) -> bytes:
    """Return the message that a request failed."""
    if dialect == RODAN:
        return to_json({"error": rodan_sentences(why)})
    content = {
        "code": why.code.value,
        "message": why.message[:LONGEST_MESSAGE],
        "advice": why.advice,
        "retryable": why.retryable,
        "mistakes": list(why.mistakes),
        "attempts": why.attempts,
    }
    return _encode(dialect, "failure", id_, content, facts)


def encode_progress(dialect: str, id_: bytes, state: str, facts: Mapping[str, Any] = NO_FACTS) -> bytes:
    """Return a progress message; `state` is one of PROGRESS. Rodan's requests have it in our own format."""
    return _encode(dialect, "progress", id_, {"state": state}, facts)


def encode_status(
    dialect: str, id_: bytes, state: RequestState | None, facts: Mapping[str, Any] = NO_FACTS
) -> bytes:
    """Return the answer to a status or cancel request about `id_`; None: there is no such request."""
    return _encode(dialect, "status", id_, {"state": UNKNOWN if state is None else state.value}, facts)


def rodan_sentences(why: RequestFailure) -> str:
    """Return all of a failure in sentences.

    People read "The request to Cedar failed with response: SENTENCES", and below it always "Try adding more
    memory and run the job again.", so the sentences end with whether that helps.
    """
    mistakes = "Mistakes: " + "; ".join(why.mistakes) + "." if why.mistakes else ""
    tried = f"It was tried {why.attempts} times." if why.attempts > 1 else ""
    if why.code is FailureCode.OUT_OF_MEMORY:
        last = "With the same memory it fails again."
    elif why.retryable:
        last = "Running the same job again may help; more memory does not."
    else:
        last = "Running the same job again does not help, nor does more memory."
    code = f"Error code: {why.code.value}."
    sentences = (why.message[:LONGEST_MESSAGE], mistakes, tried, why.advice, code, last)
    return " ".join(sentence for sentence in sentences if sentence)


def id_members(id_: bytes) -> dict[str, str]:
    """Return `id` with the id as text, or `id_base64` if it is not UTF-8."""
    try:
        return {"id": id_.decode("utf-8")}
    except UnicodeDecodeError:
        return {"id_base64": base64.b64encode(id_).decode("ascii")}


def routing_word(id_: bytes) -> str:
    """Return the id as one word of a topic: itself if it is plain and short, else `digest-` and 32 digits."""
    if _WORD.fullmatch(id_):
        return id_.decode("ascii")
    return f"digest-{hashlib.sha256(id_).hexdigest()[:32]}"


def answer_members(kind: str, id_: bytes, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what every answer of our own format begins with, and the facts, which have other names."""
    if _RESERVED & facts.keys():
        raise ValueError(f"facts of an answer cannot be called {sorted(_RESERVED & facts.keys())}")
    return {"outlast": VERSION, "kind": kind, **id_members(id_), **facts}


def envelope(kind: str, id_: bytes, event: str) -> bytes:
    """Return a CloudEvents envelope up to its data, which is followed by `}`.

    An answer that is sent twice has the same id both times; `event` distinguishes answers to one request.
    """
    names = id_members(id_)
    attributes = {
        "specversion": SPEC_VERSION,
        "id": "/".join((*names.values(), event)),
        "source": SOURCE,
        "type": f"outlast.{kind}",
        "subject": next(iter(names.values())),
        "datacontenttype": JSON_TYPE,
    }
    return to_json(attributes)[:-1] + b',"data":'


def _encode(dialect: str, kind: str, id_: bytes, content: dict[str, Any], facts: Mapping[str, Any]) -> bytes:
    data = to_json({**answer_members(kind, id_, facts), **content})
    if dialect != CLOUDEVENTS:
        return data
    # Progress and states change: their events are told apart by what they hold.
    event = kind if kind == "failure" else f"{kind}/{hashlib.sha256(data).hexdigest()[:16]}"
    return envelope(kind, id_, event) + data + b"}"

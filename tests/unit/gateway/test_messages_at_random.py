"""Whatever a message holds, reading it returns a request, or raises one of two errors: 5,000 of them."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outlast.gateway.message_formats import schemas
from outlast.gateway.message_formats.dialects import dialect_of
from outlast.gateway.message_formats.encoding import encode_failure
from outlast.gateway.message_formats.message_identity import request_id
from outlast.gateway.message_formats.read import read_message
from outlast.gateway.requests import (
    CancelRequest,
    Delivery,
    Properties,
    Quarantined,
    RequestRefused,
    StatusRequest,
    TrainingRequest,
)
from outlast.gateway.settings import QueueSettings
from support.hostile_messages import Site
from support.json_schema import schema_errors

NOW = 1_795_000_000.0
SITE = Site()
OWN = QueueSettings("requests", reply_to=("replies",), users=())
RODAN = QueueSettings("hpc-jobs", "rodan", "pages", reply_to=("hpc-results",))
REQUEST = schemas.read_schema(schemas.REQUEST)
ANSWER = schemas.read_schema(schemas.ANSWER)
NAMES = [None, b"replies", b"hpc-results", b"requests"]
TYPES = [None, b"application/json", b"application/cloudevents+json", b"text/plain"]

quick = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(
        ["16GB", "2h", "0-06:00", "2026-11-19T12:00:00Z", "/uploads/x", "train", "1.0", "..", "9" * 30]
    ),
)
keys = st.one_of(
    st.text(max_size=6),
    st.sampled_from(
        ["outlast", "kind", "template", "parameters", "inputs", "resources", "settings", "data", "id", "url"]
    ),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
properties = st.builds(
    Properties,
    message_id=st.none() | st.binary(max_size=20),
    correlation_id=st.none() | st.binary(max_size=20),
    reply_to=st.sampled_from(NAMES) | st.binary(max_size=300),
    content_type=st.sampled_from(TYPES) | st.binary(max_size=30),
    content_encoding=st.sampled_from([None, b"utf-8", b"gzip"]) | st.binary(max_size=10),
    user_id=st.none() | st.binary(max_size=10),
    expiration=st.none() | st.sampled_from([b"0", b"60000", b"9" * 400]) | st.binary(max_size=20),
    priority=st.none() | st.integers(0, 255),
    timestamp=st.none() | st.integers(0, 2**64 - 1),
    death=st.sampled_from(["", "", "expired", "maxlen", "delivery_limit", "else\x1b"]),
    damaged=st.sampled_from([False, False, False, True]),
)
queues = st.sampled_from([OWN, RODAN])
plain = Properties(correlation_id=b"c", reply_to=b"replies")


def check(delivery: Delivery, queue: QueueSettings) -> str:
    """Read a message and hold what comes of it against all that it may be."""
    try:
        body = read_message(delivery, queue, NOW)
    except Quarantined as error:
        assert str(error).isprintable()
        return "quarantined"
    except RequestRefused as error:
        dialect = dialect_of(delivery, queue)
        answer = json.loads(encode_failure(dialect, request_id(delivery, dialect), error.failure))
        assert all(mistake.isprintable() for mistake in error.failure.mistakes)
        assert len(json.dumps(answer)) < 40_000
        if queue is OWN:
            assert schema_errors(answer.get("data", answer), ANSWER) == []
        return "refused"
    assert isinstance(body, (TrainingRequest, CancelRequest, StatusRequest))
    if isinstance(body, TrainingRequest):
        check_training(body)
    if queue is OWN:
        value = json.loads(delivery.body.decode("utf-8-sig"))
        assert schema_errors(value.get("data", value), REQUEST) == []
    return "served"


def check_training(request: TrainingRequest) -> None:
    assert request.template
    assert all(type(value) in (str, int, float, bool) for value in request.parameters.values())
    assert all(0 <= value <= 10**18 for value in request.resources.values())
    assert all(reference.url for reference in request.inputs.values())
    assert request.deadline is None or NOW < request.deadline < 10**12
    json.dumps([*request.parameters.values()], allow_nan=False)


@settings(quick, max_examples=900)
@given(st.binary(max_size=300), queues)
def test_any_bytes_are_read_or_refused(body: bytes, queue: QueueSettings) -> None:
    check(Delivery(queue.name, body, Properties(correlation_id=b"c")), queue)


@settings(quick, max_examples=900)
@given(values, queues, st.booleans())
def test_any_json_is_read_or_refused(value: Any, queue: QueueSettings, escaped: bool) -> None:
    body = json.dumps(value, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    check(Delivery(queue.name, body, Properties(correlation_id=b"c")), queue)


@settings(quick, max_examples=900)
@given(properties, queues, st.booleans())
def test_any_properties_are_read_or_refused(properties: Properties, queue: QueueSettings, good: bool) -> None:
    body = json.dumps(SITE.rodan() if queue is RODAN else SITE.request()).encode()
    check(Delivery(queue.name, body if good else b"[", properties), queue)


FULL = SITE.request(
    parameters={"epochs": 2, "rate": 0.5},
    resources={"cpus": 2, "memory": "16GB", "time": "2h"},
    deadline="2030-11-19T12:00:00Z",
    uploads={"model": "https://store.example.org/m"},
)
GOOD = [
    (OWN, plain, FULL),
    (OWN, plain, {"outlast": 1, "kind": "cancel", "id": "a"}),
    (
        OWN,
        Properties(content_type=TYPES[2]),
        {"specversion": "1.0", "id": "1", "source": "s", "type": "outlast.request", "data": FULL},
    ),
    (RODAN, Properties(correlation_id=b"c"), SITE.rodan(**{"Maximum time (D-HH:MM)": "0-06:00"})),
]


@st.composite
def nearly_good(draw: st.DrawFn) -> tuple[QueueSettings, Properties, Any]:
    """Draw a good request with one value replaced, added or removed."""
    queue, properties, value = draw(st.sampled_from(GOOD))
    value = json.loads(json.dumps(value))
    holder = value
    while True:
        key = draw(st.sampled_from(sorted(holder)))
        if not isinstance(holder[key], dict) or not holder[key] or draw(st.booleans()):
            break
        holder = holder[key]
    change = draw(st.sampled_from(["replace", "add", "remove"]))
    if change == "remove":
        del holder[key]
    else:
        holder[key if change == "replace" else draw(keys)] = draw(values)
    return queue, properties, value


@settings(quick, max_examples=1500)
@given(nearly_good())
def test_a_request_with_one_change_is_read_or_refused(
    drawn: tuple[QueueSettings, Properties, Any],
) -> None:
    queue, properties, value = drawn
    check(Delivery(queue.name, json.dumps(value).encode("utf-8"), properties), queue)


@settings(quick, max_examples=800)
@given(
    st.sampled_from(GOOD),
    st.lists(st.tuples(st.integers(0), st.binary(max_size=3), st.integers(0, 3)), max_size=3),
)
def test_a_request_with_changed_bytes_is_read_or_refused(
    good: tuple[QueueSettings, Properties, Any], changes: list[tuple[int, bytes, int]]
) -> None:
    queue, properties, value = good
    body = json.dumps(value).encode()
    for place, new, skipped in changes:
        at = place % len(body)
        body = body[:at] + new + body[at + skipped :]
    result = check(Delivery(queue.name, body, properties), queue)
    assert changes or result == "served"

"""Our own format in a CloudEvents 1.0 envelope, in its structured JSON form."""

from __future__ import annotations

from typing import Any

from outlast.gateway.message_formats.failure_texts import failure
from outlast.gateway.message_formats.mistake_list import MistakeList
from outlast.gateway.message_formats.object_reader import ObjectReader
from outlast.gateway.message_formats.own import read_own
from outlast.gateway.message_formats.strict_json import UNUSABLE
from outlast.gateway.requests import Body, FailureCode, RequestRefused

SPEC_VERSION = "1.0"
#: The type of events that are requests.
REQUEST_TYPE = "outlast.request"
#: The source of events that are answers.
SOURCE = "outlast/gateway"


def read_envelope(value: Any, mistakes: MistakeList) -> Body | None:
    """Return the request in `data`. Extension attributes are ignored, as CloudEvents wants it."""
    if value is UNUSABLE:
        return None
    reader = ObjectReader(value, (), mistakes)
    if not reader.exists:
        return None
    version = reader.text("specversion", required=True)
    if version is not None and version != SPEC_VERSION:
        message = f"The event is not of version {SPEC_VERSION} of CloudEvents, which this gateway reads."
        advice = f'Send an event with "specversion": "{SPEC_VERSION}".'
        raise RequestRefused(failure(FailureCode.UNSUPPORTED_VERSION, message, advice))
    reader.text("id", required=True)
    reader.text("source", required=True)
    kind = reader.text("type", required=True)
    if kind is not None and kind != REQUEST_TYPE:
        reader.add("type", f"it must be {REQUEST_TYPE}")
    _check_content(reader)
    data = reader.value("data", required=True)
    return read_own(data, reader.at("data"), mistakes)


def _check_content(reader: ObjectReader) -> None:
    content = reader.text("datacontenttype")
    if content is not None and content.partition(";")[0].strip().lower() != "application/json":
        reader.add("datacontenttype", "it must be application/json")
    if "data_base64" in reader.values:
        reader.add("data_base64", "not accepted; write the request in `data`")
